"""Writes whole episodes into a table: the one way in of every file format, as table.episodes() is the one way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.config.spec import StepSpec
from relive.core.protocol import ReplayTable, ReplayWriter
from relive.errors import UnknownColumn
from relive.reading.episodes import Episode

__all__ = ["write_episode", "write_episodes"]


def write_episodes(table: ReplayTable, episodes: Iterable[Episode]) -> Iterator[int]:
    """Writes episodes into a table through one writer, as they come. Yields the steps of each after it is written.

    Raises:
        UnknownColumn: an episode has a column that the table lacks, or lacks one that the table has.
        ReliveError: the errors of Writer.extend and Table.complete.

    Blocks: as Writer.extend, while the limiter lets no step in.
    """
    with table.writer() as writer:
        for episode in episodes:
            yield len(write_episode(table, writer, episode))


def write_episode(table: ReplayTable, writer: ReplayWriter, episode: Episode) -> npt.NDArray[np.int64]:
    """Writes one episode with all of its facts: ends, discounts, policy versions and late columns.

    Args:
        table: the table of the writer, for late columns.
        writer: a writer without a lane axis, with no open episode.
        episode: the episode.

    Returns:
        Keys int64[T].
    """
    spec, flat = table.spec, episode.flat()
    if set(flat) != set(spec.columns):
        wrong = sorted(set(flat) ^ set(spec.columns))[0]
        raise UnknownColumn(wrong, tuple(spec.columns))
    versions, keys = episode.policy_version, []
    cuts = [0, *(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), len(episode)]
    for begin, end in zip(cuts[:-1], cuts[1:], strict=True):
        writer.set_policy_version(int(versions[begin]))
        is_last = end == len(episode)
        columns: dict[str, Any] = {
            name: _rows(spec, name, array, begin, end) for name, array in flat.items() if not _is_late(spec, name)
        }
        ends: dict[str, Any] = {
            "terminated": episode.terminated and is_last,
            "truncated": episode.truncated and is_last,
        }
        keys.append(writer.extend(**columns, **ends, discount=episode.discount[begin:end]))
    writer.set_policy_version(None)
    found = np.concatenate(keys)
    late = {name: flat[name] for name in spec.late_columns}
    if late:
        table.complete(found, **late)
    return found


def _is_late(spec: StepSpec, name: str) -> bool:
    return spec.columns[name].late


def _rows(spec: StepSpec, name: str, array: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[Any]:
    """The rows of one column for extend: one more of a state, and each of them once more of an episode column."""
    kind = spec.columns[name].kind
    if kind == "episode":
        return np.broadcast_to(array, (end - begin, *array.shape))
    if kind != "state":
        return array[begin:end]
    stack = spec.unstack.get(name, 1)
    if stack == 1:
        return array[begin : end + 1]
    back: npt.NDArray[np.int64] = (
        np.arange(begin, end + 1)[:, None] - np.arange(stack)[::-1]
    )  # the newest value is last
    stacked: npt.NDArray[Any] = array[np.maximum(back, 0)]
    return stacked
