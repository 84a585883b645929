"""The naive twin: a list of episodes and nothing else. It shares no code with the library and is slow on purpose.

It is told what was appended (with the keys the table answered) and says for each key which transition it stands for,
or that it does not stand for one yet, or never will.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Cells = dict[str, np.ndarray]


@dataclass
class NaiveStep:
    """One step: what was done in a state and what came of it."""

    key: int
    cells: Cells
    discount: float
    terminated: bool
    truncated: bool
    version: int
    order: int  # number of rows that were written before it, in the whole table
    is_filled: bool = True  # its late columns came; cells holds them from the beginning


@dataclass
class NaiveEpisode:
    """Steps, and the states before and after them: one state more where the last next is known."""

    lane: int
    steps: list[NaiveStep] = field(default_factory=list)
    states: list[Cells] = field(default_factory=list)
    over: bool = False

    @property
    def has_seam(self) -> bool:
        return len(self.states) > len(self.steps)


@dataclass(frozen=True)
class NaiveItems:
    """What an index makes of the steps."""

    n_step: int = 1
    gamma: float = 1.0
    stack: tuple[tuple[str, int], ...] = ()
    stack_pad: str = "repeat"


class NaiveReplay:
    """Episodes by lane, and where each key is."""

    def __init__(self, state_columns: dict[str, tuple[tuple[int, ...], str]], has_late: bool = False) -> None:
        self.state_columns = state_columns
        self.has_late = has_late
        self.lanes: dict[int, list[NaiveEpisode]] = {}
        self.where: dict[int, tuple[NaiveEpisode, int]] = {}
        self.keys: list[int] = []
        self.num_rows = 0
        self.num_closed_lanes = 0

    # writing

    def open_lane(self) -> int:
        lane = len(self.lanes)
        self.lanes[lane] = []
        return lane

    def open_episode(self, lane: int) -> NaiveEpisode | None:
        episodes = self.lanes[lane]
        return episodes[-1] if episodes and not episodes[-1].over else None

    def append(
        self,
        lane: int,
        key: int,
        state: Cells,
        cells: Cells,
        next_state: Cells | None,
        terminated: bool,
        truncated: bool,
        discount: float | None,
        version: int = 0,
    ) -> None:
        episode = self.open_episode(lane)
        if episode is None:
            episode = NaiveEpisode(lane)
            self.lanes[lane].append(episode)
        if not episode.has_seam:
            episode.states.append(state)
        given = 1.0 - float(terminated) if discount is None else discount
        step = NaiveStep(key, cells, given, terminated, truncated, version, self.num_rows, not self.has_late)
        self.num_rows += 1
        episode.steps.append(step)
        assert key not in self.where, f"key {key} was given twice"
        self.where[key] = (episode, len(episode.steps) - 1)
        self.keys.append(key)
        self._end(episode, next_state, terminated, truncated)

    def waiting(self) -> list[int]:
        """Keys of steps whose late columns are still to come, in the order of their writing."""
        steps = [(episode.steps[t], key) for key, (episode, t) in self.where.items()]
        return [key for step, key in steps if not step.is_filled]

    def complete(self, keys: list[int]) -> list[Cells]:
        """The late columns of these steps come; all cells of each."""
        steps = [self.where[key][0].steps[self.where[key][1]] for key in keys]
        for step in steps:
            step.is_filled = True
        return [step.cells for step in steps]

    def end_episode(self, lane: int, next_state: Cells | None, terminated: bool, truncated: bool) -> None:
        episode = self.open_episode(lane)
        assert episode is not None and episode.steps
        last = episode.steps[-1]
        last.terminated, last.truncated = terminated, truncated
        if terminated and last.discount == 1.0:
            last.discount = 0.0
        self._end(episode, None if episode.has_seam else next_state, terminated, truncated)

    def _end(self, episode: NaiveEpisode, next_state: Cells | None, terminated: bool, truncated: bool) -> None:
        if next_state is not None:
            episode.states.append(next_state)
        elif terminated and not episode.has_seam:
            episode.states.append({name: np.zeros(shape, dtype) for name, (shape, dtype) in self.state_columns.items()})
        if terminated or truncated:
            episode.over = True
            self.num_rows += 1  # the tail row

    def close_lane(self, lane: int) -> None:
        """The lane cut: a last row without its next becomes the bootstrap state of the rows before it."""
        episode = self.open_episode(lane)
        self.num_closed_lanes += 1
        if episode is None:
            return
        if not episode.has_seam:
            dropped = episode.steps.pop()
            del self.where[dropped.key]
        if episode.steps:
            episode.steps[-1].truncated = True
        episode.over = True

    # reading

    def num_steps(self) -> int:
        return len(self.where)

    def live_keys(self, items: NaiveItems) -> set[int]:
        return {key for key in self.where if self.item(key, items) is not None}

    def item(self, key: int, items: NaiveItems) -> dict[str, Any] | None:
        """All columns of the transition that starts at a key; None while, or because, it is not published."""
        if key not in self.where:
            return None
        episode, t = self.where[key]
        m = min(items.n_step, len(episode.steps) - t)
        if m < items.n_step and not episode.over:
            return None
        if len(episode.states) <= t + m:
            return None
        window = episode.steps[t : t + m]
        if not all(step.is_filled for step in window):
            return None
        reward, discount = 0.0, 1.0
        for step in window:
            reward += discount * float(step.cells.get("reward", np.float32(0.0)))
            discount *= items.gamma * step.discount
        result: dict[str, Any] = dict(window[0].cells)
        if "reward" in result:
            result["reward"] = np.asarray(reward, result["reward"].dtype)
        depth = dict(items.stack)
        for name in self.state_columns:
            result[name] = self._stacked(episode, t, name, depth.get(name), items.stack_pad)
            result[f"next_{name}"] = self._stacked(episode, t + m, name, depth.get(name), items.stack_pad)
        result["discount"] = np.float32(discount)
        result["terminated"] = window[-1].terminated
        result["truncated"] = window[-1].truncated
        result["episode_step"] = t
        result["first"] = t == 0
        result["num_steps"] = m
        result["policy_version"] = window[0].version
        return result

    @staticmethod
    def _stacked(episode: NaiveEpisode, row: int, name: str, depth: int | None, pad: str) -> np.ndarray:
        if depth is None or depth == 1:
            frame = episode.states[row][name]
            return frame if depth is None else frame[np.newaxis]
        frames = []
        for back in range(depth - 1, -1, -1):
            if row - back >= 0:
                frames.append(episode.states[row - back][name])
            elif pad == "repeat":
                frames.append(episode.states[0][name])
            else:
                frames.append(np.zeros_like(episode.states[0][name]))
        return np.stack(frames)

    # age, for tables that have begun to forget

    def steps_of_lane(self, lane: int) -> list[NaiveStep]:
        return [step for episode in self.lanes[lane] for step in episode.steps]
