"""HERVectorReplayBuffer and HERReplayBuffer: hindsight goals for the steps of a draw and for the steps after them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from tianshou.data import Batch, HERReplayBufferManager
from tianshou.data import HERReplayBuffer as _HERReplayBuffer
from tianshou.data import HERVectorReplayBuffer as _HERVectorReplayBuffer

from relive.adapters.tianshou.buffers import VectorReplayBuffer
from relive.checks.values import finite, integer
from relive.config.casting import unmasked
from relive.config.storage import Storage
from relive.errors import InvalidConfig, ShapeMismatch, UnknownArgument

__all__ = ["HERReplayBuffer", "HERVectorReplayBuffer"]

Places = NDArray[np.int64]  # indices of steps in the buffer

_OPTIONS = ("ignore_obs_next", "random_seed", "sample_avail", "save_only_last_obs", "stack_num")
_ACHIEVED, _WANTED = "achieved_goal", "desired_goal"
_NEXT_ACHIEVED = f"next_observation/{_ACHIEVED}"
_NOTHING: Places = np.zeros(0, np.int64)


class _Chosen(NamedTuple):
    """The episodes of a draw in one environment. An episode is a column of the paths of the drawn steps."""

    columns: Places  # the column of the oldest drawn step of each episode
    futures: Places  # the place of the step that reached the new goal
    is_replaced: NDArray[np.bool_]


@final
class _Lane(_HERReplayBuffer):
    """The part of a buffer that has one environment. The whole buffer replaces its goals."""

    def rewrite_transitions(self, indices: Places) -> None:
        """Does nothing."""


class HERVectorReplayBuffer(VectorReplayBuffer, _HERVectorReplayBuffer):
    """Tianshou's HERVectorReplayBuffer, with its observations in a table, which is `table`.

        HERVectorReplayBuffer(100_000, 8, compute_reward_fn=reward, horizon=50, future_k=8)

    A draw gives new goals to a part of its episodes. All steps of such an episode have the same new goal, from the
    oldest drawn step on, because Tianshou's algorithms read the steps after a drawn one by place. Their rewards are
    those of `compute_reward_fn`. The next draw, `add`, `reset`, `save_hdf5` and a pickle bring the stored goals and
    rewards back. The table always has the stored ones.

    Args:
        total_size: the most steps, over all environments.
        buffer_num: number of environments.
        compute_reward_fn: function(achieved [R, ...], desired [R, ...]) -> rewards [R] of R steps. `achieved` is what
            each step reached; `desired` is its new goal.
        horizon: the most steps of an episode. A new goal is reached less than horizon steps later.
        future_k: the part 1 - 1 / future_k of the drawn episodes of each environment, rounded down, gets a new goal.
        storage: as for VectorReplayBuffer.
        **kwargs: ignore_obs_next, save_only_last_obs, sample_avail and random_seed, as for VectorReplayBuffer.

    Raises:
        InvalidConfig: an argument has another type or value.
        UnknownArgument: an argument has another name.
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        compute_reward_fn: Callable[[NDArray[Any], NDArray[Any]], Any],
        horizon: int,
        future_k: float = 8.0,
        *,
        storage: Storage | None = None,
        **kwargs: Any,
    ) -> None:
        _check_options(type(self).__name__, kwargs)
        if not callable(compute_reward_fn):
            raise InvalidConfig("compute_reward_fn", "a function(achieved, desired) -> rewards", compute_reward_fn)
        number = integer("buffer_num", buffer_num, 1)
        size = math.ceil(integer("total_size", total_size, 1) / number)
        options = dict(kwargs, horizon=integer("horizon", horizon, 1), future_k=finite("future_k", future_k, 1.0))
        lanes = [_Lane(size, compute_reward_fn, **options) for _ in range(number)]
        HERReplayBufferManager.__init__(self, lanes)
        seed = int(kwargs.get("random_seed", 42))
        self._begin(storage, seed)
        self.compute_reward_fn = compute_reward_fn
        self.horizon = options["horizon"]
        self._goal_draws = np.random.default_rng(seed)
        self._goal_of = np.full(self.maxsize, -1, np.int64)  # the row of _goals that a place has for now
        self._goals: NDArray[Any] = np.zeros(0)
        self._replaced = _NOTHING  # the places with a row of _goals
        self._rewards: NDArray[Any] = np.zeros(0)  # their stored rewards

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _make(self, columns: dict[str, Any]) -> None:
        states = columns["observation"]
        parts = states if isinstance(states, dict) else {}
        shapes = {name: getattr(parts.get(name), "shape", None) for name in (_ACHIEVED, _WANTED)}
        if None in shapes.values() or len(set(shapes.values())) != 1:
            expected = f"a Batch with {_ACHIEVED} and {_WANTED}, two arrays of one shape"
            raise InvalidConfig(f"obs to add to a {type(self).__name__}", expected, shapes)
        super()._make(columns)

    def reset(self, keep_statistics: bool = False) -> None:
        """Removes all steps."""
        self._restore_cache()
        super().reset(keep_statistics)

    # ---- goals -----------------------------------------------------------------------------------------------------

    def _note_draw(self, indices: Places) -> None:
        self.rewrite_transitions(indices)

    def _restore_cache(self) -> None:
        """Brings back the stored goals and rewards of all steps."""
        if self._replaced.size:
            self._meta.rew[self._replaced] = self._rewards
            self._goal_of[self._replaced] = -1
            self._replaced = _NOTHING

    def rewrite_transitions(self, indices: NDArray[np.int64]) -> None:
        """Gives new goals to a part of the episodes of these steps, and brings back the stored goals of all others.

        Cost: `horizon` calls of next, and one call of compute_reward_fn for the steps with a new goal.
        """
        self._restore_cache()
        drawn = np.asarray(indices, np.int64).reshape(-1)
        if not drawn.size:
            return
        lanes = np.searchsorted(self._extend_offset, drawn, "right") - 1
        drawn, lanes = self._by_age(drawn, lanes)
        paths = self._paths(drawn)
        chosen = []
        for lane in np.unique(lanes):
            mine = np.flatnonzero(lanes == lane)
            found = self._choose(self.buffers[lane], paths[:, mine] - self._offset[lane])
            chosen.append(_Chosen(mine[found.columns], found.futures + self._offset[lane], found.is_replaced))
        self._replace(paths, _Chosen(*map(np.concatenate, zip(*chosen, strict=True))))

    def _by_age(self, drawn: Places, lanes: Places) -> tuple[Places, Places]:
        """The places environment by environment, the oldest step first, with their environments."""
        firsts = np.array([buffer._insertion_idx for buffer in self.buffers])
        sizes = np.array([buffer.maxsize for buffer in self.buffers])
        order = np.lexsort(((drawn - self._offset[lanes] - firsts[lanes]) % sizes[lanes], lanes))
        return drawn[order], lanes[order]

    def _paths(self, drawn: Places) -> Places:
        """The places of each step and of the steps after it, [horizon, n]. A path ends with the newest step."""
        paths = np.empty((self.horizon, len(drawn)), np.int64)
        paths[0] = drawn
        for step in range(1, self.horizon):
            paths[step] = self.next(paths[step - 1])
        return paths

    def _choose(self, lane: Any, paths: Places) -> _Chosen:
        """The episodes of an environment, and which of them get a goal; places count from its first one."""
        first, last = paths[0], paths[-1]
        lengths = (last - first) % lane.maxsize
        later = np.round(self._goal_draws.uniform(size=len(first)) * lengths).astype(np.int64)
        columns = np.concatenate([[0], np.flatnonzero(last[1:] != last[:-1]) + 1])
        newest = np.concatenate([columns[1:] - 1, [len(first) - 1]])  # its future is one of the others, too
        which = self._goal_draws.choice(len(columns), int(len(columns) * lane.future_p), replace=False)
        is_replaced = np.zeros(len(columns), np.bool_)
        is_replaced[which] = True
        return _Chosen(columns, ((first + later) % lane.maxsize)[newest], is_replaced)

    def _replace(self, paths: Places, chosen: _Chosen) -> None:
        """Notes the new goals of these paths, and writes the rewards of their steps into the library's array."""
        if not chosen.is_replaced.any():
            return
        wanted = self._table().spec.columns[f"observation/{_WANTED}"].dtype
        self._goals = self._achieved(chosen.futures[chosen.is_replaced]).astype(wanted)
        touched = paths.T[chosen.columns].reshape(-1)
        rows = np.where(chosen.is_replaced, np.cumsum(chosen.is_replaced) - 1, -1)
        # Paths meet if an episode has more than horizon steps. The one that begins last counts: a drawn step is on it.
        self._goal_of[touched] = np.repeat(rows, len(paths))
        places = np.unique(touched)
        self._replaced = places = places[self._goal_of[places] >= 0]
        self._rewards = self._meta.rew[places].copy()
        try:
            self._meta.rew[places] = self._new_rewards(places)
        except BaseException:
            self._restore_cache()
            raise

    def _new_rewards(self, places: Places) -> NDArray[np.float32]:
        told = self.compute_reward_fn(self._achieved(places), self._goals[self._goal_of[places]])
        given = unmasked("what compute_reward_fn returned", told)
        if given.shape != self._rewards.shape:
            raise ShapeMismatch("what compute_reward_fn returned", self._rewards.shape, given.shape)
        return given.astype(np.float32)

    def _achieved(self, places: Places) -> NDArray[Any]:
        """The goals that the steps at these places reached, [n, ...]."""
        achieved: NDArray[Any] = self._table().gather(self._keys[places], [_NEXT_ACHIEVED])[_NEXT_ACHIEVED]
        return achieved

    def _read(self, index: Any, key: str) -> Any:
        rows = super()._read(index, key)
        places = np.asarray(index)
        goals = self._goal_of[np.flatnonzero(places) if places.dtype == np.bool_ else places]
        is_replaced = goals >= 0
        if is_replaced.any():
            rows[_WANTED][is_replaced] = self._goals[goals[is_replaced]]
        return rows

    # ---- files -----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """As VectorReplayBuffer, with the stored goals and rewards. compute_reward_fn has to have a pickle."""
        self._restore_cache()
        return super().__getstate__()


class HERReplayBuffer(HERVectorReplayBuffer):
    """Tianshou's HERReplayBuffer, with its observations in a table: HERVectorReplayBuffer for one environment.

    It is no instance of the class that is replaced, because it is a buffer of several environments that has one.

    Args:
        size: the most steps.

    The other arguments are those of HERVectorReplayBuffer.
    """

    def __init__(
        self,
        size: int,
        compute_reward_fn: Callable[[NDArray[Any], NDArray[Any]], Any],
        horizon: int,
        future_k: float = 8.0,
        *,
        storage: Storage | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(size, 1, compute_reward_fn, horizon, future_k, storage=storage, **kwargs)

    @property
    def future_p(self) -> float:
        """The part of the drawn episodes that gets a new goal."""
        part: float = self.buffers[0].future_p
        return part

    @future_p.setter
    def future_p(self, part: float) -> None:
        self.buffers[0].future_p = finite("future_p", part, 0.0, 1.0)

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[NDArray[Any], ...]:
        """Adds one step. With buffer_ids=[0] the values of the batch have a leading axis of 1, without it none."""
        if buffer_ids is None:
            return super().add(Batch.stack([batch]), [0])
        return super().add(batch, buffer_ids)


def _check_options(owner: str, options: dict[str, Any]) -> None:
    """Raises UnknownArgument or InvalidConfig for an option that the buffer does not have."""
    for name in options:
        if name not in _OPTIONS:
            known = ("total_size", "buffer_num", "compute_reward_fn", "horizon", "future_k", "storage", *_OPTIONS)
            raise UnknownArgument(owner, name, known)
    if options.get("stack_num", 1) != 1:
        raise InvalidConfig(f"stack_num of {owner}", "1: goals are not stacked", options["stack_num"])
