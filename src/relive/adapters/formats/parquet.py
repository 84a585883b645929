"""Parquet: one row a step, in a file that any program for tables reads.

| column | value of a row |
|---|---|
| episode_index, step_index | the number of the episode, and of the step in it |
| column/<name> | the column of the step |
| final/<name> | of a state column: the state after the episode's last step; null in every other row |
| terminated, truncated | whether the episode ended so with this step |
| discount, policy_version | those of the step |

The metadata `relive` of the schema has the columns, and `relive.steps` the number of steps of each episode.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.arrow import from_arrow, to_arrow, type_of
from relive.adapters.formats.recorded import Recorded, described, episode_of, spec_of
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import MissingPackage
from relive.errors.extras import install_command
from relive.reading.episodes import Episode

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as _problem:
    raise MissingPackage("Parquet", "pyarrow", install_command("parquet")) from _problem

__all__ = ["read", "write"]

_GROUP_BYTES = 32 << 20  # of one row group
_FACTS = {
    "episode_index": ArraySpec((), "int64"),
    "step_index": ArraySpec((), "int64"),
    "terminated": ArraySpec((), "bool"),
    "truncated": ArraySpec((), "bool"),
    "discount": ArraySpec((), "float32"),
    "policy_version": ArraySpec((), "int64"),
}


def _schema(spec: StepSpec) -> Any:
    fields = [pa.field(name, type_of(one), nullable=False) for name, one in _FACTS.items()]
    fields += [pa.field(f"column/{name}", type_of(one), nullable=False) for name, one in spec.columns.items()]
    fields += [pa.field(f"final/{name}", type_of(spec.columns[name])) for name in spec.state_columns]
    return pa.schema(fields, metadata={"relive": described(spec)})


@final
class _Group:
    """Episodes that become one row group."""

    def __init__(self, spec: StepSpec, schema: Any) -> None:
        self._spec = spec
        self._schema = schema
        self._episodes: list[tuple[int, Episode]] = []
        self.num_bytes = 0

    def add(self, number: int, episode: Episode) -> None:
        """Adds one episode."""
        self._episodes.append((number, episode))
        self.num_bytes += len(episode) * max(1, self._spec.num_bytes)

    def taken(self) -> Any:
        """The table of these episodes; the group is empty then."""
        parts: dict[str, list[npt.NDArray[Any]]] = {field.name: [] for field in self._schema}
        for number, episode in self._episodes:
            for name, rows in _rows(self._spec, number, episode).items():
                parts[name].append(rows)
        arrays = {name: np.concatenate(some) for name, some in parts.items()}
        is_last = np.concatenate([np.arange(len(one)) == len(one) - 1 for _, one in self._episodes])
        self._episodes, self.num_bytes = [], 0
        columns = [
            _with_nulls(arrays[field.name], is_last, field.type)
            if field.name.startswith("final/")
            else to_arrow(arrays[field.name])
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


def _with_nulls(values: npt.NDArray[Any], is_there: npt.NDArray[np.bool_], kind: Any) -> Any:
    """The values [K, ...] in the K rows that have one, nulls in the others."""
    places = pa.array(np.where(is_there, np.cumsum(is_there) - 1, 0), mask=~is_there)
    return to_arrow(values).take(places).cast(kind)


def _rows(spec: StepSpec, number: int, episode: Episode) -> dict[str, npt.NDArray[Any]]:
    count = len(episode)
    last = np.arange(count) == count - 1
    rows: dict[str, npt.NDArray[Any]] = {
        "episode_index": np.full(count, number, np.int64),
        "step_index": np.arange(count, dtype=np.int64),
        "terminated": last & episode.terminated,
        "truncated": last & episode.truncated,
        "discount": episode.discount,
        "policy_version": episode.policy_version,
    }
    for name, array in episode.flat().items():
        kind = spec.columns[name].kind
        one = np.broadcast_to(array, (count, *array.shape)) if kind == "episode" else array[:count]
        rows[f"column/{name}"] = one
        if kind == "state":
            rows[f"final/{name}"] = array[count:]
    return rows


def write(path: str, spec: StepSpec, episodes: Iterable[Episode]) -> None:
    """Writes the file, 32 MiB of steps in a row group."""
    schema = _schema(spec)
    lengths: list[int] = []
    group = _Group(spec, schema)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for number, episode in enumerate(episodes):
            lengths.append(len(episode))
            group.add(number, episode)
            if group.num_bytes >= _GROUP_BYTES:
                writer.write_table(group.taken())
        if group.num_bytes:
            writer.write_table(group.taken())
        writer.add_key_value_metadata({"relive.steps": json.dumps(lengths)})


def read(path: str) -> Recorded:
    """Reads a file that write() wrote. One row group at a time is in memory."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata.metadata or {}
    except (pa.ArrowInvalid, OSError) as problem:
        if isinstance(problem, FileNotFoundError):
            raise
        raise DatasetUnreadable(path, "a Parquet file", str(problem)) from None
    if b"relive" not in metadata or b"relive.steps" not in metadata:
        raise DatasetUnreadable(path, "a Parquet file that relive exported", f"metadata {sorted(metadata)}")
    spec = spec_of(path, metadata[b"relive"])
    lengths = json.loads(metadata[b"relive.steps"])
    return Recorded(spec, len(lengths), sum(lengths), lambda: _episodes(path, spec, lengths))


def _episodes(path: str, spec: StepSpec, lengths: list[int]) -> Iterator[Episode]:
    number = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            begin = 0
            while begin < table.num_rows:  # a group has whole episodes
                yield _episode(path, spec, table.slice(begin, lengths[number]))
                begin += lengths[number]
                number += 1


def _episode(path: str, spec: StepSpec, rows: Any) -> Episode:
    facts = {name: from_arrow(rows[name], _FACTS[name], path) for name in ("discount", "policy_version")}
    ends = [bool(rows[name][-1].as_py()) for name in ("terminated", "truncated")]
    flat = {}
    for name, one in spec.columns.items():
        values = from_arrow(rows[f"column/{name}"], one, path)
        if one.kind == "state":
            values = np.concatenate((values, from_arrow(rows[f"final/{name}"].slice(len(values) - 1), one, path)))
        flat[name] = values[0] if one.kind == "episode" else values
    return episode_of(spec, flat, ends[0], ends[1], facts["discount"], facts["policy_version"])
