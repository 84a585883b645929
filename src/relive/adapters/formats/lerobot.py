"""LeRobot's layout, version 2.1: a folder with one Parquet file an episode.

    data/chunk-000/episode_000000.parquet, ...
    meta/info.json, meta/tasks.jsonl, meta/episodes.jsonl, meta/episodes_stats.jsonl
    meta/relive.parquet      # what the layout has no place for: one row an episode

| feature | column |
|---|---|
| observation.state | observation; a nested column observation/camera is observation.camera |
| action, next.reward, next.done | action, reward, and whether the episode ended with the step |
| <name> | every other column, the parts of its name joined by dots |
| timestamp, frame_index, episode_index, index, task_index | as LeRobot has them |

meta/relive.parquet has the states after the last steps, the discounts, policy versions and ends, and in its metadata
the columns. A folder without that file is one of LeRobot: numeric features become columns, those below `observation`
state columns; images and videos are left out. The last step of each episode is left out there, because the state after
it is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.arrow import from_arrow, lists, to_arrow
from relive.adapters.formats.recorded import Recorded, described, episode_of, spec_of
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import InvalidConfig, MissingPackage, ReliveError
from relive.errors.extras import install_command
from relive.reading.episodes import Episode

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as _problem:
    raise MissingPackage("LeRobot's layout", "pyarrow", install_command("parquet")) from _problem

__all__ = ["read", "write"]

_CHUNK = 1000  # episodes of a folder
_FPS = 30  # LeRobot asks for a rate; a table has none
_TASK = "recorded with relive"
_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_OURS = {"observation": "observation.state", "reward": "next.reward"}
_COUNTS = ("frame_index", "episode_index", "index", "task_index")
_NUMERIC = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)
_EPISODES_A_GROUP = 256


def _feature(column: str) -> str:
    return _OURS.get(column) or column.replace("/", ".")


def _file(folder: Path, number: int) -> Path:
    return folder / _DATA.format(episode_chunk=number // _CHUNK, episode_index=number)


# ---- writing -------------------------------------------------------------------------------------------------------


def write(path: str, spec: StepSpec, episodes: Iterable[Episode]) -> None:
    """Writes the folder. Raises InvalidConfig for complex columns, and for two columns of one name there."""
    names = [*map(_feature, spec.columns), "next.done", "timestamp", *_COUNTS]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [name for name, one in spec.columns.items() if one.dtype.name not in _NUMERIC]
    if twice or wrong:
        got = ", ".join((*twice, *wrong))
        raise InvalidConfig("columns of LeRobot's layout", "real numbers or bools, and names that differ there", got)
    folder = Path(path)
    (folder / "meta").mkdir(parents=True)
    lengths: list[int] = []
    some: list[Episode] = []
    with (
        open(folder / "meta" / "episodes.jsonl", "w") as listed,
        open(folder / "meta" / "episodes_stats.jsonl", "w") as stats,
        pq.ParquetWriter(folder / "meta" / "relive.parquet", _rest(spec, []).schema, compression="zstd") as rest,
    ):
        for number, episode in enumerate(episodes):
            columns = _columns(spec, episode, number, sum(lengths))
            _file(folder, number).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({name: to_arrow(rows) for name, rows in columns.items()}), _file(folder, number))
            lengths.append(len(episode))
            listed.write(json.dumps({"episode_index": number, "tasks": [_TASK], "length": len(episode)}) + "\n")
            told = {name: _statistics(rows) for name, rows in columns.items()}
            stats.write(json.dumps({"episode_index": number, "stats": told}) + "\n")
            some.append(episode)
            if len(some) == _EPISODES_A_GROUP:
                rest.write_table(_rest(spec, some))
                some = []
        if some:
            rest.write_table(_rest(spec, some))
    (folder / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": _TASK}) + "\n")
    (folder / "meta" / "info.json").write_text(json.dumps(_info(spec, lengths), indent=2) + "\n")


def _columns(spec: StepSpec, episode: Episode, number: int, before: int) -> dict[str, npt.NDArray[Any]]:
    count = len(episode)
    frames = np.arange(count, dtype=np.int64)
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, array in episode.flat().items():
        is_once = spec.columns[name].kind == "episode"
        columns[_feature(name)] = np.broadcast_to(array, (count, *array.shape)) if is_once else array[:count]
    return columns | {
        "next.done": frames == count - 1,
        "timestamp": (frames / _FPS).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(count, number, np.int64),
        "index": frames + before,
        "task_index": np.zeros(count, np.int64),
    }


def _statistics(rows: npt.NDArray[Any]) -> dict[str, list[Any]]:
    wide = rows.astype(np.float64).reshape(len(rows), -1)
    found = {"min": wide.min(0), "max": wide.max(0), "mean": wide.mean(0), "std": wide.std(0)}
    shape = rows.shape[1:] or (1,)
    return {name: values.reshape(shape).tolist() for name, values in found.items()} | {"count": [len(rows)]}


def _info(spec: StepSpec, lengths: list[int]) -> dict[str, Any]:
    features = {
        _feature(name): {"dtype": one.dtype.name, "shape": list(one.shape) or [1], "names": None}
        for name, one in spec.columns.items()
    }
    features["next.done"] = {"dtype": "bool", "shape": [1], "names": None}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    features |= {name: {"dtype": "int64", "shape": [1], "names": None} for name in _COUNTS}
    return {
        "codebase_version": "v2.1",
        "robot_type": None,
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 1,
        "total_videos": 0,
        "total_chunks": -(-len(lengths) // _CHUNK),
        "chunks_size": _CHUNK,
        "fps": _FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": _DATA,
        "video_path": None,
        "features": features,
    }


def _rest(spec: StepSpec, some: list[Episode]) -> Any:
    """The parts of episodes that LeRobot has no place for."""
    lengths = np.array([len(one) for one in some], np.int64)
    nothing = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    columns = {
        "terminated": pa.array([one.terminated for one in some], pa.bool_()),
        "truncated": pa.array([one.truncated for one in some], pa.bool_()),
        "discounts": lists(np.concatenate([one.discount for one in some] or nothing[0]), lengths),
        "policy_versions": lists(np.concatenate([one.policy_version for one in some] or nothing[1]), lengths),
    }
    for name in spec.state_columns:
        one = spec.columns[name]
        last = [episode.flat()[name][-1:] for episode in some] or [np.empty((0, *one.shape), one.dtype)]
        columns[f"final/{name}"] = to_arrow(np.concatenate(last))
    return pa.table(columns).replace_schema_metadata({"relive": described(spec)})


# ---- reading -------------------------------------------------------------------------------------------------------


def read(path: str) -> Recorded:
    """Reads a folder that write() wrote, or one of LeRobot's version 2. One episode at a time is in memory."""
    folder = Path(path)
    try:
        info = json.loads((folder / "meta" / "info.json").read_text())
        told = (folder / "meta" / "episodes.jsonl").read_text().splitlines()
        lengths = [int(json.loads(line)["length"]) for line in told]
        features, version = dict(info["features"]), str(info["codebase_version"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        if isinstance(problem, FileNotFoundError) and not folder.exists():
            raise
        raise DatasetUnreadable(path, "meta/info.json and meta/episodes.jsonl of LeRobot 2", str(problem)) from None
    if not version.startswith("v2"):
        raise DatasetUnreadable(path, "a dataset of LeRobot's version 2", version)
    template = str(info.get("data_path") or _DATA)
    size = int(info.get("chunks_size") or _CHUNK)
    files = [
        folder / template.format(episode_chunk=number // size, episode_index=number) for number in range(len(lengths))
    ]
    rest = folder / "meta" / "relive.parquet"
    if rest.exists():
        with pq.ParquetFile(rest) as file:
            spec = spec_of(rest, (file.schema_arrow.metadata or {}).get(b"relive"))
        return Recorded(spec, len(lengths), sum(lengths), lambda: _episodes(files, spec, rest))
    spec, places = _inferred(path, features)
    kept = [length for length in lengths if length > 1]
    return Recorded(spec, len(kept), sum(kept) - len(kept), lambda: _foreign(files, spec, places))


def _episodes(files: list[Path], spec: StepSpec, rest: Path) -> Iterator[Episode]:
    numbers = iter(files)
    with pq.ParquetFile(rest) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            for row in range(table.num_rows):
                yield _episode(next(numbers), spec, table.slice(row, 1))


def _episode(path: Path, spec: StepSpec, facts: Any) -> Episode:
    table = pq.read_table(path)
    flat = {}
    for name, one in spec.columns.items():
        values = from_arrow(table[_feature(name)], one, path)
        if one.kind == "state":
            values = np.concatenate((values, from_arrow(facts[f"final/{name}"], one, path)))
        flat[name] = values[0] if one.kind == "episode" else values
    of_steps = {
        name: from_arrow(facts[name].combine_chunks().flatten(), ArraySpec((), dtype), path)
        for name, dtype in (("discounts", "float32"), ("policy_versions", "int64"))
    }
    ends = facts["terminated"][0].as_py(), facts["truncated"][0].as_py()
    return episode_of(spec, flat, *ends, of_steps["discounts"], of_steps["policy_versions"])


def _inferred(path: str, features: Mapping[str, Any]) -> tuple[StepSpec, dict[str, str]]:
    """The columns of a dataset of LeRobot, and the feature of each."""
    left_out = {"next.done", "timestamp", *_COUNTS}
    columns: dict[str, Any] = {}
    places: dict[str, str] = {}
    numeric = {name: one for name, one in features.items() if isinstance(one, Mapping) and one.get("dtype") in _NUMERIC}
    is_alone = [name for name in numeric if name.startswith("observation.")] == ["observation.state"]
    for feature, one in numeric.items():
        if feature in left_out:
            continue
        shape = tuple(one.get("shape") or ())
        shape = () if shape == (1,) else shape
        top, *below = ["reward"] if feature == "next.reward" else feature.split(".")
        if feature == "observation.state" and is_alone:
            below = []
        if top == "next" or top.startswith("next_"):
            top = f"after_{top}"
        node = columns
        for part in [top, *below][:-1]:
            node = node.setdefault(part, {})
        leaf = [top, *below][-1]
        node[leaf] = ArraySpec(shape, one["dtype"], "state" if top == "observation" else "step")
        places["/".join((top, *below))] = feature
    try:
        return StepSpec(columns), places
    except ReliveError as problem:
        raise DatasetUnreadable(path, "features that are columns of a table", str(problem)) from None


def _foreign(files: list[Path], spec: StepSpec, places: Mapping[str, str]) -> Iterator[Episode]:
    for path in files:
        table = pq.read_table(path)
        if table.num_rows < 2:
            continue
        flat = {}
        for name, one in spec.columns.items():
            values = from_arrow(table[places[name]], one, path)
            flat[name] = values if one.kind == "state" else values[:-1]
        yield episode_of(spec, flat, False, True)
