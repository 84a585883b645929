"""Episode: one whole episode as it was written, and the search for whole episodes among the steps of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.checks.html import html_table
from relive.config.spec import StepSpec, nest
from relive.errors import UnknownColumn
from relive.reading.columns import ColumnViews

__all__ = ["Episode", "EpisodeFacts", "Place", "StepFacts", "whole_episodes"]

Keys = npt.NDArray[np.int64]

_SHARD_BITS = _core.region_format()["leaf_bits"]  # of a key; the shard stands above them


class EpisodeFacts(NamedTuple):
    """The facts of an episode of T steps that are no columns.

    Attributes:
        lane: the number of its lane.
        item_keys: int64[T].
        terminated: whether it terminated.
        truncated: whether it was cut: by truncated=, or by the end of its writer.
        discount: float32[T], as stored: 1 - terminated, or the given values.
        policy_version: int64[T].
    """

    lane: int
    item_keys: Keys
    terminated: bool
    truncated: bool
    discount: npt.NDArray[np.float32]
    policy_version: npt.NDArray[np.int64]


@final
class Episode(ColumnViews):
    """One whole episode of T steps, as it was written: a mapping of column name -> array.

    | kind of the column | shape |
    |---|---|
    | step | [T, ...] |
    | state | [T + 1, ...]: the last row is the state after the last step |
    | start | [T, ...] |
    | episode | [...]: one value |

    Nested columns are dicts and tuples, as they were declared; episode["a/b"] is one of them. len() is T.

    Attributes:
        spec: the columns of a step.
        facts: lane, item_keys, terminated, truncated, discount and policy_version. Each is an attribute, too.
    """

    __slots__ = ("_flat", "facts", "spec")

    def __init__(self, spec: StepSpec, flat: Mapping[str, npt.NDArray[Any]], facts: EpisodeFacts) -> None:
        self.spec = spec
        self._flat = dict(flat)
        self.facts = facts

    def __getitem__(self, name: str) -> Any:
        if isinstance(name, str) and name in self._flat:
            return self._flat[name]
        below = {path: array for path, array in self._flat.items() if path.startswith(f"{name}/")}
        if not below:
            raise UnknownColumn(str(name), self._flat)
        group: Any = nest(below, self._is_whole_tuple)
        for key in name.split("/"):
            group = group[int(key) if isinstance(group, tuple) else key]
        return group

    def _is_whole_tuple(self, path: str) -> bool:
        if not self.spec.is_tuple(path):
            return False
        return sum(name.startswith(f"{path}/") for name in self._flat) == len(self.spec.expand(path))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.partition("/")[0] for name in self._flat))

    def __len__(self) -> int:
        """T, the number of steps."""
        return len(self.facts.item_keys)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._flat or any(one.startswith(f"{name}/") for one in self._flat))

    def flat(self) -> dict[str, Any]:
        """{flat name: array}, with nested columns as 'a/b'."""
        return dict(self._flat)

    @property
    def lane(self) -> int:
        """The number of its lane."""
        return self.facts.lane

    @property
    def item_keys(self) -> Keys:
        """int64[T]: the keys of its steps."""
        return self.facts.item_keys

    @property
    def terminated(self) -> bool:
        """Whether it terminated."""
        return self.facts.terminated

    @property
    def truncated(self) -> bool:
        """Whether it was cut: by truncated=, or by the end of its writer."""
        return self.facts.truncated

    @property
    def discount(self) -> npt.NDArray[np.float32]:
        """float32[T], as stored: 1 - terminated, or the given values."""
        return self.facts.discount

    @property
    def policy_version(self) -> npt.NDArray[np.int64]:
        """int64[T]."""
        return self.facts.policy_version

    __eq__ = object.__eq__  # a mapping would compare arrays, which have no truth value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated"
        return f"Episode({len(self)} steps, {end}, {', '.join(self._flat)})"

    def _repr_html_(self) -> str:
        end = "terminated" if self.terminated else "truncated"
        rows = [(name, array.dtype, list(array.shape)) for name, array in self._flat.items()]
        return html_table(f"Episode of {len(self)} steps, {end}", ("column", "dtype", "shape"), rows)


class StepFacts(NamedTuple):
    """Facts of N steps in any order, each an array [N]."""

    keys: Keys
    ages: npt.NDArray[np.uint64]
    lanes: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]  # of the episode
    ends: npt.NDArray[np.bool_]  # whether the episode ended with this step


class Place(NamedTuple):
    """A whole episode among the sorted steps: those from `first` up to `end`."""

    first: int
    end: int


def whole_episodes(facts: StepFacts) -> tuple[Keys, Sequence[Place]]:
    """The keys of all steps lane by lane, and the places of the whole episodes among them, the oldest first.

    An episode is whole if all of its steps are there, from step 0 to the step that ended it.
    """
    shards = facts.keys >> _SHARD_BITS
    rows = np.lexsort((facts.ages, facts.lanes, shards))
    keys, steps, ends = facts.keys[rows], facts.steps[rows], facts.ends[rows]
    if not len(rows):
        return keys, []
    lanes, shards = facts.lanes[rows], shards[rows]
    goes_on = (steps[1:] == steps[:-1] + 1) & ~ends[:-1] & (lanes[1:] == lanes[:-1]) & (shards[1:] == shards[:-1])
    cuts = np.flatnonzero(~goes_on) + 1
    first, end = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(rows)]))
    are_whole = (steps[first] == 0) & ends[end - 1]
    first, end = first[are_whole], end[are_whole]
    in_order = np.argsort(facts.ages[rows][first], kind="stable")
    return keys, [Place(int(a), int(b)) for a, b in zip(first[in_order], end[in_order], strict=True)]
