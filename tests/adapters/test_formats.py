"""Every file format gives back exactly the episodes that were exported, and reads files of other programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.adapters import transfer
from relive.adapters.errors import DatasetUnreadable
from relive.cli.entry import run

NEEDS = {"hdf5": "h5py", "parquet": "pyarrow", "lerobot": "pyarrow", "huggingface": "pyarrow"}
SUFFIXES = {"npz": ".npz", "hdf5": ".h5", "parquet": ".parquet", "lerobot": "", "huggingface": ""}
LENGTHS = [3, 1, 12, 7, 1, 30]


@pytest.fixture(params=sorted(transfer.FORMATS))
def format_name(request: pytest.FixtureRequest) -> str:
    if request.param in NEEDS:
        package = NEEDS[request.param]
        pytest.importorskip(package, reason=f"{package} is not installed here")
    return str(request.param)


def rich_spec(complex_numbers: bool) -> relive.StepSpec:
    """Every kind of column, nested, and dtypes of every kind."""
    spec = relive.ArraySpec
    columns: dict[str, Any] = {
        "observation": {"camera": spec((4, 3, 2), "uint8", "state"), "pose": (spec((), "float64", "state"),) * 2},
        "action": spec((2,), "float16"),
        "reward": spec((), "float32"),
        "flag": spec((3,), "bool"),
        "count": spec((), "uint64"),
        "core": spec((2, 2), "float32", "start"),
        "task": spec((2,), "int16", "episode"),
        "score": spec((), "float32", late=True),
    }
    if complex_numbers:
        columns["wave"] = spec((2,), "complex64")
    return relive.StepSpec(columns)


def values(spec: relive.StepSpec, name: str, rows: int, seed: int) -> np.ndarray:
    column = spec.columns[name]
    bits = np.random.default_rng(seed).integers(0, 256, (rows, *column.shape, column.dtype.itemsize), np.uint8)
    made = bits.view(column.dtype).reshape(rows, *column.shape) if column.dtype.kind in "iu" else None
    if made is None:
        made = np.random.default_rng(seed).standard_normal((rows, *column.shape)).astype(column.dtype)
    return made


def filled(table: relive.Table) -> relive.Table:
    """Episodes that end in each way, with discounts and versions of their own."""
    spec = table.spec
    with table.writer() as writer:
        for number, length in enumerate(LENGTHS):
            columns = {}
            for position, name in enumerate(spec.columns):
                kind = spec.columns[name].kind
                made = values(spec, name, length + (kind == "state"), 100 * number + position)
                columns[name] = np.repeat(made[:1], length, 0) if kind == "episode" else made
            late = {name: columns.pop(name) for name in spec.late_columns}
            ends = [{"terminated": True}, {"truncated": True}, {"terminated": True, "truncated": True}][number % 3]
            discount = np.linspace(0.1, 0.9, length) if number % 2 else None
            writer.set_policy_version(number)
            keys = writer.extend(**columns, **ends, **({} if discount is None else {"discount": discount}))
            if late:
                table.complete(keys, **late)
        if not spec.late_columns:
            return table
        open_one = {name: values(spec, name, 1, 5)[0] for name in spec.columns if name not in spec.late_columns}
        writer.append(**open_one)
    return table


def assert_equal(one: relive.ReplayTable, other: relive.ReplayTable) -> None:
    mine, theirs = list(one.episodes()), list(other.episodes())
    assert [len(episode) for episode in mine] == [len(episode) for episode in theirs] != []
    for a, b in zip(mine, theirs, strict=True):
        assert (a.terminated, a.truncated) == (b.terminated, b.truncated)
        facts = {"discount": (a.discount, b.discount), "version": (a.policy_version, b.policy_version)}
        for name, (x, y) in {**facts, **{name: (x, b.flat()[name]) for name, x in a.flat().items()}}.items():
            assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes(), name


def target(folder: Path, format_name: str) -> Path:
    return folder / f"out{SUFFIXES[format_name]}"


@pytest.fixture
def rich(format_name: str) -> Iterator[relive.Table]:
    with relive.Table(rich_spec(complex_numbers=format_name != "lerobot"), 1000) as table:
        yield filled(table)


def test_round_trips_are_exact(rich: relive.Table, format_name: str, tmp_path: Path) -> None:
    path = target(tmp_path, format_name)
    seen: list[tuple[int, int]] = []
    moved = transfer.export_table(rich, path, format_name, progress=lambda *counts: seen.append(counts))
    assert moved == transfer.Moved(len(LENGTHS), sum(LENGTHS)) and seen[-1] == (len(LENGTHS), sum(LENGTHS))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "nothing else is left"
    index = relive.Index(relive.Transitions(n_step=3))
    with transfer.import_table(path, index=index) as table:  # the path tells the format
        assert table.spec == rich.spec and table.indexes["default"] == index and len(table) == sum(LENGTHS)
        assert table.stats().evicted == 0
        assert_equal(rich, table)
        table.check()
        again = target(tmp_path / "again", format_name)
        again.parent.mkdir()
        transfer.export_table(table, again, format_name)
        with transfer.import_table(again) as third:
            assert_equal(rich, third)


def test_an_empty_table(format_name: str, tmp_path: Path) -> None:
    path = target(tmp_path, format_name)
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((2,), "int64")}), 100) as table:
        assert transfer.export_table(table, path, format_name) == transfer.Moved(0, 0)
    with transfer.import_table(path, format_name) as table:
        assert len(table) == 0 and list(table.spec.columns) == ["x"]


def test_an_export_appears_whole_or_not_at_all(rich: relive.Table, format_name: str, tmp_path: Path) -> None:
    path = target(tmp_path, format_name)

    def stop(episodes: int, steps: int) -> None:
        if episodes == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.export_table(rich, path, format_name, progress=stop)
    assert list(tmp_path.iterdir()) == []
    transfer.export_table(rich, path, format_name)
    with pytest.raises(errors.InvalidConfig, match="new file or folder"):
        transfer.export_table(rich, path, format_name)


def test_files_of_another_form_are_refused(format_name: str, tmp_path: Path) -> None:
    path = target(tmp_path, format_name)
    if SUFFIXES[format_name]:
        path.write_bytes(b"not at all" * 100)
    else:
        path.mkdir()
        (path / "data").mkdir()
        (path / "data" / "train-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetUnreadable) as caught:
        transfer.import_table(path, format_name)
    assert caught.value.path.startswith(str(path))


def test_episodes_go_into_a_table_that_exists(rich: relive.Table, format_name: str, tmp_path: Path) -> None:
    path = target(tmp_path, format_name)
    transfer.export_table(rich, path, format_name)
    with relive.Table(rich.spec, 1000) as table:
        assert transfer.import_episodes(table, path).num_steps == sum(LENGTHS)
        assert_equal(rich, table)
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 1000) as other:
        with pytest.raises(errors.UnknownColumn):
            transfer.import_episodes(other, path)
        assert len(other) == 0


def test_stacks_are_given_as_the_environment_gave_them(tmp_path: Path) -> None:
    columns = {"observation": relive.ArraySpec((2,), "float32", "state"), "action": relive.ArraySpec((), "int64")}
    with relive.Table(relive.StepSpec(columns, unstack={"observation": 3}), 200) as table, table.writer() as writer:
        frames = np.arange(20, dtype=np.float32).reshape(10, 2)
        stacks = frames[np.maximum(np.arange(10)[:, None] - np.arange(3)[::-1], 0)]
        writer.extend(observation=stacks, action=np.arange(9), truncated=True)
        transfer.export_table(table, tmp_path / "stacks.npz")
        with transfer.import_table(tmp_path / "stacks.npz") as other:
            assert_equal(table, other)


def test_bad_arguments(tmp_path: Path) -> None:
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100) as table:
        with pytest.raises(errors.InvalidConfig, match="format"):
            transfer.export_table(table, tmp_path / "out.csv")
        with pytest.raises(errors.InvalidConfig, match="format"):
            transfer.export_table(table, tmp_path / "out", "csv")
        with pytest.raises(errors.InvalidConfig, match="progress"):
            transfer.export_table(table, tmp_path / "out.npz", progress=3)  # type: ignore[arg-type]
        with pytest.raises(DatasetUnreadable, match="nothing"):
            transfer.import_table(tmp_path / "missing.npz")
        np.savez(tmp_path / "other.npz", x=np.zeros(3))
        with pytest.raises(DatasetUnreadable, match="exported"):
            transfer.import_table(tmp_path / "other.npz")
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other.npz"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    column = relive.ArraySpec((), "int64")
    with relive.Table(relive.StepSpec({"a.b": column, "a": {"b": column}, "frame_index": column}), 100) as table:
        for name in ("lerobot", "huggingface"):
            with pytest.raises(errors.InvalidConfig, match="a.b"):
                transfer.export_table(table, tmp_path / "out", name)
            assert not list(tmp_path.iterdir())


# ---- files of other programs ---------------------------------------------------------------------------------------


def d4rl_file(path: Path, has_next: bool) -> dict[str, np.ndarray]:
    """Episodes of 3 (terminal), 4 (timeout) and 2 (the recording stops) steps."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed here")
    arrays = {
        "observations": np.arange(18, dtype=np.float32).reshape(9, 2),
        "actions": np.arange(9, dtype=np.float32)[:, None],
        "rewards": np.arange(9, dtype=np.float32),
        "terminals": np.arange(9) == 2,
        "timeouts": np.arange(9) == 6,
        "infos/qpos": np.arange(27, dtype=np.float64).reshape(9, 3),
    }
    if has_next:
        arrays["next_observations"] = arrays["observations"] + 0.5
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file["metadata/algorithm"] = "text"
    return arrays


@pytest.mark.parametrize("has_next", [False, True])
def test_a_file_of_d4rl(tmp_path: Path, has_next: bool) -> None:
    arrays = d4rl_file(tmp_path / "hopper.hdf5", has_next)
    with transfer.import_table(tmp_path / "hopper.hdf5") as table:
        assert list(table.spec.columns) == ["observation", "action", "reward", "qpos"]
        found = list(table.episodes())
    lengths = [3, 4, 2] if has_next else [3, 3, 1]
    assert [len(one) for one in found] == lengths
    assert [(one.terminated, one.truncated) for one in found] == [(True, False), (False, True), (False, True)]
    for one, begin in zip(found, (0, 3, 7), strict=True):
        count = len(one)
        assert one["qpos"].tolist() == arrays["infos/qpos"][begin : begin + count].tolist()
        assert one["observation"][:-1].tolist() == arrays["observations"][begin : begin + count].tolist()
        last = one["observation"][-1].tolist()
        if has_next:
            assert last == arrays["next_observations"][begin + count - 1].tolist()
        else:
            assert last == ([0.0, 0.0] if one.terminated else arrays["observations"][begin + count].tolist())


def test_a_table_in_d4rls_layout(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed here")
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((2,), "float32", "state"),
            "action": relive.ArraySpec((1,), "float32"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )
    with relive.Table(spec, 1000) as table:
        transfer.export_table(filled(table), tmp_path / "out.hdf5")
        found = list(table.episodes())
    with h5py.File(tmp_path / "out.hdf5") as file:
        count = sum(LENGTHS)
        shapes = {"observations": (count, 2), "next_observations": (count, 2), "actions": (count, 1)}
        for name, shape in {**shapes, "rewards": (count,), "terminals": (count,), "timeouts": (count,)}.items():
            assert file[name].shape == shape, name
        ends = np.cumsum(LENGTHS) - 1
        assert np.flatnonzero(file["terminals"][:] | file["timeouts"][:]).tolist() == ends.tolist()
        inside = np.setdiff1d(np.arange(count), ends)
        assert (file["next_observations"][:][inside] == file["observations"][:][inside + 1]).all()
        assert file["rewards"][:].tolist() == np.concatenate([one["reward"] for one in found]).tolist()


def test_a_dataset_of_lerobot(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    import pyarrow.parquet as pq

    folder = tmp_path / "so100"
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["a", "b"]},
        "observation.images.top": {"dtype": "video", "shape": [3, 4, 4], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        **{name: {"dtype": "int64", "shape": [1], "names": None} for name in ("frame_index", "index", "episode_index")},
    }
    info = {"codebase_version": "v2.1", "features": features, "chunks_size": 1000, "data_path": None}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    lines = [json.dumps({"episode_index": number, "tasks": ["x"], "length": 5}) for number in range(2)]
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    for number in range(2):
        rows = np.arange(10, dtype=np.float32).reshape(5, 2) + 100 * number
        columns = {
            "observation.state": pa.array(rows.tolist(), pa.list_(pa.float32())),
            "action": pa.array(rows.tolist()),
        }
        columns["next.reward"] = pa.array(np.arange(5, dtype=np.float32))
        pq.write_table(pa.table(columns), folder / "data" / "chunk-000" / f"episode_{number:06d}.parquet")
    with transfer.import_table(folder) as table:
        assert list(table.spec.columns) == ["observation", "action", "reward"]
        found = list(table.episodes())
    assert [(len(one), one.truncated) for one in found] == [(4, True)] * 2
    assert found[1]["observation"].tolist() == (np.arange(10).reshape(5, 2) + 100).tolist()
    assert found[1]["reward"].tolist() == [0, 1, 2, 3]


def test_hugging_faces_library_reads_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed here")
    with relive.Table(rich_spec(complex_numbers=False), 1000) as table:
        transfer.export_table(filled(table), tmp_path / "out", "huggingface")
        found = list(table.episodes())
    read = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(read) == len(LENGTHS) and [len(one["actions"]) for one in read] == LENGTHS
    assert np.asarray(read[2]["actions"], np.float16).tolist() == found[2]["action"].tolist()
    assert read[2]["dones"] == [False] * 11 + [True]


# ---- the commands --------------------------------------------------------------------------------------------------


def test_the_commands(tmp_path: Path, shm_name: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name, folder = shm_name(), str(tmp_path / "made")
    spec = rich_spec(complex_numbers=True)
    with relive.Table(spec, 1000, storage=relive.SharedMemory(name)) as table:
        filled(table)
        assert run(["export", name, str(tmp_path / "out.npz")]) == 0
        assert run(["import", str(tmp_path / "out.npz"), folder]) == 0
        assert "54 steps" in capsys.readouterr().out
        with pytest.raises(errors.InvalidConfig, match="no save"):  # the save there would be lost
            run(["import", str(tmp_path / "out.npz"), folder])
        with relive.load(folder) as made:
            assert_equal(table, made)
        assert run(["export", folder, str(tmp_path / "again.npz"), "--format", "npz"]) == 0
        with relive.Table(spec, 1000, storage=relive.SharedMemory(f"{name}b")) as other:
            assert run(["import", str(tmp_path / "again.npz"), f"{name}b"]) == 0
            assert_equal(table, other)
    with pytest.raises(errors.NoSuchTable):
        run(["export", name, str(tmp_path / "none.npz")])


def test_the_commands_need_nothing_but_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['h5py'] = sys.modules['rich'] = None\n"
        "import relive\nfrom relive.adapters import transfer\n"
        "with relive.Table(relive.StepSpec({'x': relive.ArraySpec((), 'int64')}), 100) as table:\n"
        "    with table.writer() as writer: writer.extend(x=range(5), terminated=True)\n"
        "    print(transfer.export_table(table, 'out.npz').num_steps)\n"
        "    try: transfer.export_table(table, 'out.h5')\n"
        "    except relive.errors.MissingPackage as problem: print(problem.package, 'hdf5' in problem.command)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.stdout.split() == ["5", "h5py", "True"], done.stderr
