"""Hugging Face's layout: a folder that datasets.load_dataset(folder) reads, one row an episode.

    data/train-00000.parquet, data/train-00001.parquet, ...      # up to 256 MiB of steps in a file
    README.md                                                    # the dataset card

| column | value of a row |
|---|---|
| observations, actions, rewards | lists of the steps' values, as datasets for decision transformers have them |
| <name> | the list of every other column; of an episode column its one value |
| final_<name> | of a state column: the state after the last step |
| dones | a list of bools: whether the episode ended with the step |
| terminated, truncated | how the episode ended |
| discounts, policy_versions | lists of the steps' values |

Names of nested columns are joined by dots. The metadata `relive` of each file's schema has the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.arrow import from_arrow, lists, to_arrow
from relive.adapters.formats.recorded import Recorded, described, episode_of, spec_of
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.reading.episodes import Episode

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as _problem:
    raise MissingPackage("Hugging Face's layout", "pyarrow", install_command("parquet")) from _problem

__all__ = ["read", "write"]

_FILE_BYTES = 256 << 20
_GROUP_BYTES = 32 << 20
_PLURALS = {"observation": "observations", "action": "actions", "reward": "rewards"}
_CARD = """---
task_categories:
- reinforcement-learning
tags:
- relive
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---

Recorded episodes, one row an episode. `relive import --format huggingface` makes a table of them.
"""


def _shown(column: str, spec: StepSpec) -> str:
    """The name of a column in the files: a plural, unless another column has that name."""
    top, _, rest = column.partition("/")
    plural = _PLURALS.get(top, top)
    name = top if plural in spec.columns else plural
    return ".".join((name, *rest.split("/"))) if rest else name


def _check_names(spec: StepSpec) -> None:
    shown = [_shown(name, spec) for name in spec.columns]
    shown += [f"final_{_shown(name, spec)}" for name in spec.state_columns]
    shown += ["dones", "terminated", "truncated", "discounts", "policy_versions"]
    twice = sorted({name for name in shown if shown.count(name) > 1})
    if twice:
        raise InvalidConfig("columns of Hugging Face's layout", "names that differ in that layout", ", ".join(twice))


def write(path: str, spec: StepSpec, episodes: Iterable[Episode]) -> None:
    """Writes the folder. Raises InvalidConfig if two columns would have one name there."""
    _check_names(spec)
    folder = Path(path)
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(_CARD)
    number, writer, written = 0, None, 0
    try:
        for group in _groups(spec, episodes):
            table = _table(spec, group)
            if writer is None:
                file = folder / "data" / f"train-{number:05d}.parquet"
                writer, written = pq.ParquetWriter(file, table.schema, compression="zstd"), 0
                number += 1
            writer.write_table(table)
            written += table.nbytes
            if written >= _FILE_BYTES:
                writer.close()
                writer = None
    finally:
        if writer is not None:
            writer.close()


def _groups(spec: StepSpec, episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    some: list[Episode] = []
    num_bytes = 0
    is_first = True
    for episode in episodes:
        some.append(episode)
        num_bytes += len(episode) * max(1, spec.num_bytes)
        if num_bytes >= _GROUP_BYTES:
            yield some
            some, num_bytes, is_first = [], 0, False
    if some or is_first:  # a file without rows has the columns
        yield some


def _table(spec: StepSpec, some: list[Episode]) -> Any:
    lengths = np.array([len(one) for one in some], np.int64)

    def joined(arrays: list[npt.NDArray[Any]], dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.concatenate(arrays) if arrays else np.empty((0, *shape), dtype)

    columns: dict[str, Any] = {}
    for name, one in spec.columns.items():
        arrays, shown = [episode.flat()[name] for episode in some], _shown(name, spec)
        if one.kind == "episode":
            columns[shown] = to_arrow(joined([array[None] for array in arrays], one.dtype, one.shape))
            continue
        cut = [array[: len(episode)] for array, episode in zip(arrays, some, strict=True)]
        columns[shown] = lists(joined(cut, one.dtype, one.shape), lengths)
        if one.kind == "state":
            columns[f"final_{shown}"] = to_arrow(joined([array[-1:] for array in arrays], one.dtype, one.shape))
    dones = joined([np.arange(len(one)) == len(one) - 1 for one in some], np.bool_, ())
    columns["dones"] = lists(dones, lengths)
    columns["terminated"] = pa.array([one.terminated for one in some], pa.bool_())
    columns["truncated"] = pa.array([one.truncated for one in some], pa.bool_())
    columns["discounts"] = lists(joined([one.discount for one in some], np.float32, ()), lengths)
    columns["policy_versions"] = lists(joined([one.policy_version for one in some], np.int64, ()), lengths)
    return pa.table(columns).replace_schema_metadata({"relive": described(spec)})


def read(path: str) -> Recorded:
    """Reads a folder that write() wrote. One row group at a time is in memory."""
    files = sorted(Path(path, "data").glob("train-*.parquet"))
    if not files:
        raise DatasetUnreadable(path, "data/train-*.parquet", "none")
    spec, num_episodes, num_steps = None, 0, 0
    for name in files:
        try:
            with pq.ParquetFile(name) as file:
                metadata = file.schema_arrow.metadata or {}
                if b"relive" not in metadata:
                    raise DatasetUnreadable(name, "a file that relive exported", f"metadata {sorted(metadata)}")
                spec = spec or spec_of(name, metadata[b"relive"])
                num_episodes += file.metadata.num_rows
                for group in range(file.num_row_groups):
                    dones = file.read_row_group(group, ["dones"])["dones"].combine_chunks()
                    num_steps += len(dones.flatten())
        except pa.ArrowInvalid as problem:
            raise DatasetUnreadable(name, "a Parquet file", str(problem)) from None
    assert spec is not None
    known = spec
    return Recorded(known, num_episodes, num_steps, lambda: _episodes(files, known))


def _episodes(files: list[Path], spec: StepSpec) -> Iterator[Episode]:
    for name in files:
        with pq.ParquetFile(name) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                for row in range(table.num_rows):
                    yield _episode(name, spec, table.slice(row, 1))


def _episode(path: Path, spec: StepSpec, row: Any) -> Episode:
    def values(shown: str, column: ArraySpec) -> npt.NDArray[Any]:
        return from_arrow(row[shown].combine_chunks().flatten(), column, path)

    flat = {}
    for name, one in spec.columns.items():
        shown = _shown(name, spec)
        if one.kind == "episode":
            flat[name] = from_arrow(row[shown], one, path)[0]
            continue
        flat[name] = values(shown, one)
        if one.kind == "state":
            flat[name] = np.concatenate((flat[name], from_arrow(row[f"final_{shown}"], one, path)))
    return episode_of(
        spec,
        flat,
        row["terminated"][0].as_py(),
        row["truncated"][0].as_py(),
        values("discounts", ArraySpec((), "float32")),
        values("policy_versions", ArraySpec((), "int64")),
    )
