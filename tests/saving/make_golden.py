"""Writes a golden save: a small table as today's formats save it, and the answers that the loaded table must give.

usage: python tests/saving/make_golden.py        (after a change of the region format or of the save format)

A golden save is two files under tests/saving/golden: `formatF-regionR.tar.xz`, the folder, and
`formatF-regionR.npz.xz`, the answers of the table that was saved. Files of earlier formats stay: test_golden loads
each of them.
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relive  # noqa: E402
from relive.saving.current import FORMAT  # noqa: E402

GOLDEN = Path(__file__).resolve().parent / "golden"
BESIDE = {"learner": b"bytes beside the table"}
SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((3,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
        "memory": relive.ArraySpec((20,), "float32", kind="start"),
        "prompt": relive.ArraySpec((), "int64", kind="episode"),
        "score": relive.ArraySpec((), "float32", late=True),
    }
)
PIECES = relive.Explicit(
    {"past": relive.Window(3, ("observation", "reward"), stride=2), "now": relive.Window(1, ("action", "score"))},
    columns={"weight": relive.ArraySpec((2,), "float32")},
    max_items=40,
)
INDEXES = {
    "steps": relive.Index(relive.Transitions(n_step=3, gamma=0.5), relive.Prioritized(0.6)),
    "uses": relive.Index(sampler=relive.Fifo(), max_times_sampled=2, limiter=relive.SamplesPerInsert(0.5, 5, 500.0)),
    "groups": relive.Index(
        relive.Episodes(10, group_by="prompt", group_size=2, max_groups=12),
        relive.PromptGroups("mean", of="score", priority_exponent=0.5),
    ),
    "pieces": relive.Index(PIECES, relive.Prioritized(0.9), remover=relive.MinPriority()),
    "sequences": relive.Index(relive.Sequences(6, burn_in=2, period=3, at_end="shift"), relive.Shuffle()),
}
SIZES = (1, 16, 9)  # of the batches that are recorded
COUNTERS = ("num_items", "pending", "inserted", "sampled", "in_flight", "timed_out", "filtered")
SUMS = ("total_mass", "max_priority")


def make_table() -> relive.Table:
    """A table that has evicted steps, with groups that wait for members and steps that wait for late columns."""
    table = relive.Table(SPEC, 300, INDEXES, seed=41, max_lanes=4)
    rng = np.random.default_rng(7)
    writer = table.writer()
    keys: list[int] = []
    for episode in range(58):
        table.set_policy_version(episode // 4)
        length = 3 + episode % 8
        for step in range(length):
            state, after = (np.array([episode, at, episode * at], np.float32) for at in (step, step + 1))
            keys.append(
                writer.append(
                    observation=state,
                    action=100 * episode + step,
                    reward=float(rng.integers(10)),
                    memory=np.full(20, episode + step / 16, np.float32),
                    prompt=episode // 3,
                    next_observation=after,
                    terminated=step == length - 1 and episode % 2 == 0,
                    truncated=step == length - 1 and episode % 2 == 1,
                )
            )
            if episode % 5 != 3:
                table.complete([keys[-1]], score=[float(rng.integers(1, 8))])
        if episode % 2:
            last = np.array(keys[-3:-1], np.int64)
            table.create_items(
                {"past": (last[:1], -min((length - 1) // 2, 3)), "now": (last[1:], 1)},
                index="pieces",
                weight=[[episode, 0.5]],
                priority=[1.0 + episode % 11],
            )
        if episode % 3 == 2:
            table.sample(4, index="uses")
    writer.close()
    recent = np.array(keys[-200:], np.int64)
    table.update_priorities(recent, rng.uniform(0.1, 6.0, len(recent)), index="steps")
    table.set_priority_exponent(0.7, index="steps")
    for index in table.indexes:
        table.sample(5, index=index)
    table.sample(32, index="uses")  # of its oldest items, some are used up and one has a use left
    return table


def answers(table: relive.Table) -> dict[str, np.ndarray[Any, Any]]:
    """The rows, items, priorities and counters of a table, and its next batches. Draws from the table."""
    stats = table.stats()
    told: dict[str, np.ndarray[Any, Any]] = {
        "table": np.array([len(table), table.capacity, table.policy_version, stats.evicted], np.int64),
        "indexes": np.array(list(table.indexes)),
    }
    for name, index in table.indexes.items():
        one = stats.indexes[name]
        told[f"{name}/counters"] = np.array([getattr(one, counter) for counter in COUNTERS], np.int64)
        told[f"{name}/sums"] = np.array([getattr(one, total) for total in SUMS], np.float64)
        if isinstance(index.sampler, relive.Prioritized):
            told[f"{name}/exponent"] = np.array(table.priority_exponent(name))
        keys = np.concatenate([np.zeros(0, np.int64), *table.keys(index=name)])
        told[f"{name}/keys"] = keys
        told |= _columns(f"{name}/items", table.gather(keys, index=name))
    for name in table.indexes:
        for call, size in enumerate(SIZES):
            batch = table.sample(size, index=name)
            told[f"{name}/batch {call}/item_keys"] = batch.item_keys
            told[f"{name}/batch {call}/probabilities"] = batch.probabilities
            told |= _columns(f"{name}/batch {call}", batch)
    return told


def _columns(name: str, part: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a batch by their flat names; windows of explicit items are dicts in it."""
    if not isinstance(part, Mapping):
        return {name: np.asarray(part).copy()}
    told: dict[str, np.ndarray[Any, Any]] = {}
    for column in part:
        told |= _columns(f"{name}/{column}", part[column])
    return told


def keep(folder: Path, path: Path, told: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes a golden save: the files of a folder to `path`.tar.xz, the answers to `path`.npz.xz."""
    path.parent.mkdir(exist_ok=True)
    packed, kept = path.with_name(f"{path.name}.tar.xz"), path.with_name(f"{path.name}.npz.xz")
    with tarfile.open(packed, "w:xz", preset=9) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != "lock":
                _add(archive, str(file.relative_to(folder)), file.read_bytes())
    arrays = io.BytesIO()
    np.savez(arrays, **told)  # type: ignore[arg-type]
    kept.write_bytes(lzma.compress(arrays.getvalue(), preset=9))
    sys.stdout.write("".join(f"{one.name}: {one.stat().st_size} bytes\n" for one in (packed, kept)))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Adds a file without its owner and time, so that two archives differ in the bytes of their saves only."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def unpack(path: Path, folder: Path) -> Path:
    """Unpacks the folder of a golden save, and returns it."""
    with tarfile.open(path.with_name(f"{path.name}.tar.xz")) as archive:
        # Python 3.11.2 has no filters.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def kept_answers(path: Path) -> Any:
    """The answers of a golden save, which the caller closes."""
    return np.load(io.BytesIO(lzma.decompress(path.with_name(f"{path.name}.npz.xz").read_bytes())))


def assert_same(told: Mapping[str, np.ndarray[Any, Any]], expected: Any) -> None:
    """Asserts that a table gives all answers of a golden save; a later version may give more."""
    assert set(told) >= set(expected.files)
    for part in expected.files:
        if part.endswith(("probabilities", "sums")):  # the last bit of a power differs between machines
            np.testing.assert_allclose(told[part], expected[part], rtol=1e-12, err_msg=part)
        else:
            assert told[part].dtype == expected[part].dtype, part
            assert told[part].tobytes() == expected[part].tobytes(), part


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, make_table() as table:
        table.save(folder, BESIDE)
        name = f"format{FORMAT}-region{table.core.geometry['format_version']}"
        keep(Path(folder), GOLDEN / name, answers(table))


if __name__ == "__main__":
    main()
