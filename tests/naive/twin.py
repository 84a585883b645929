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
    cut: bool = False  # over because its lane was

    @property
    def has_seam(self) -> bool:
        return len(self.states) > len(self.steps)


@dataclass(frozen=True)
class NaiveWindow:
    """The window of a sequence or an episode. For an episode, at_end is the part of a long one that is kept."""

    length: int
    burn_in: int = 0
    bootstrap: int = 0
    period: int = 1
    at_end: str = "pad"
    pad: str = "right"
    is_episode: bool = False
    is_ragged: bool = False  # of episodes, with pad 'right': a batch has no padding

    @property
    def num_rows(self) -> int:
        return self.burn_in + self.length + self.bootstrap

    @property
    def crosses(self) -> bool:
        return self.at_end == "cross"

    def starts(self, episode: NaiveEpisode, has_state: bool) -> set[int]:
        """Steps of an episode at which items begin that are complete."""
        num = len(episode.steps)
        done = len(episode.states) - 1 if has_state else num  # steps that are steps for good, their next states known
        if self.is_episode:
            return self._starts_of_episode(episode, done)
        every = range(0, num, self.period)
        whole = {t for t in every if t + self.length <= num}
        if not episode.over:  # what an end can still change, and what is not all there, waits
            behind = max(self.bootstrap, int(self.at_end == "shift"))
            return {t for t in whole if done >= t + self.length + behind}
        if self.at_end == "drop":
            return whole
        if self.at_end == "pad":
            return set(every)
        return whole | {max(0, num - self.length)} if num else set()

    def _starts_of_episode(self, episode: NaiveEpisode, done: int) -> set[int]:
        num = len(episode.steps)
        if self.at_end == "tail":
            return {max(0, num - self.length)} if episode.over and not episode.cut and num else set()
        if episode.over and not episode.cut:
            return {0} if num else set()
        is_full = done >= self.length + self.bootstrap
        return {0} if is_full or (episode.cut and num >= self.length) else set()


@dataclass(frozen=True)
class NaiveItems:
    """The items that an index makes of the steps."""

    n_step: int = 1
    gamma: float = 1.0
    stack: tuple[tuple[str, int], ...] = ()
    stack_pad: str = "repeat"
    window: NaiveWindow | None = None  # of items with a time axis; n_step means nothing then
    least_step: int = 0  # of an index with a condition: items are of episodes' steps from this one on
    max_staleness: int | None = None

    @property
    def where(self) -> str | None:
        """The condition that says so, in words that ask it twice."""
        if self.least_step == 0:
            return None
        return f"{self.least_step} <= episode_step and not (first or episode_step / 1.0 < {self.least_step - 0.5})"

    @property
    def before(self) -> int:
        """Rows that an item may need before its own."""
        deepest = max((depth for _, depth in self.stack), default=1)
        twice = 2 if self.window and self.window.crosses else 1  # each step may have a tail behind it
        return deepest - 1 + (twice * self.window.burn_in if self.window else 0)

    @property
    def spanned(self) -> int:
        """Steps that it may need from its own on."""
        if self.window is None:
            return self.n_step
        steps = self.window.length + self.window.bootstrap
        return 2 * steps - 1 if self.window.crosses else steps


class NaiveReplay:
    """Episodes by lane, and where each key is."""

    def __init__(
        self,
        state_columns: dict[str, tuple[tuple[int, ...], str]],
        start_columns: frozenset[str] = frozenset(),
        has_late: bool = False,
    ) -> None:
        self.state_columns = state_columns
        self.start_columns = start_columns
        self.has_late = has_late
        self.version = 0  # the learner's, which only rises
        self.lanes: dict[int, list[NaiveEpisode]] = {}
        self.places: dict[int, list[tuple[NaiveEpisode, int]]] = {}  # of each lane: its steps, over its episodes
        self.numbers: dict[int, int] = {}  # of each key: how many steps its lane had before
        self.closed_lanes: set[int] = set()
        self.where: dict[int, tuple[NaiveEpisode, int]] = {}
        self.keys: list[int] = []
        self.num_rows = 0
        self.num_closed_lanes = 0
        self.deleted: set[tuple[int, NaiveItems]] = set()  # in front of episodes that were given up, of these items

    # writing

    def open_lane(self) -> int:
        lane = len(self.lanes)
        self.lanes[lane] = []
        self.places[lane] = []
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
        self.numbers[key] = len(self.places[lane])
        self.places[lane].append(self.where[key])
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
            self.num_rows += bool(self.state_columns)  # the tail row

    def close_lane(self, lane: int) -> None:
        """The lane cut: a last row without its next becomes the bootstrap state of the rows before it."""
        episode = self.open_episode(lane)
        self.num_closed_lanes += 1
        self.closed_lanes.add(lane)
        if episode is None:
            return
        if self.state_columns and not episode.has_seam:
            dropped = episode.steps.pop()
            del self.where[dropped.key]
            self.places[lane].pop()
        if episode.steps:
            episode.steps[-1].truncated = True
        episode.over = episode.cut = True

    def abandon(self, lane: int, all_items: tuple[NaiveItems, ...]) -> None:
        """Removes the open episode, and ends the lane. Items that began earlier and contain its steps are deleted."""
        episode = self.open_episode(lane)
        if episode is None:
            return
        front = len(self.places[lane]) - len(episode.steps)
        for items in all_items:
            window = items.window
            if window is None or not window.crosses:
                continue
            for number in range(max(0, front - window.length - window.bootstrap + 1), front):
                before, t = self.places[lane][number]
                if number % window.period == 0 and self._is_decided(number, lane, window):
                    self.deleted.add((before.steps[t].key, items))
        for step in episode.steps:
            del self.where[step.key]
        del self.places[lane][front:]
        self.lanes[lane].pop()
        self.num_closed_lanes += 1
        self.closed_lanes.add(lane)

    # reading

    def num_steps(self) -> int:
        return len(self.where) - len({key for key, _ in self.deleted})

    def live_keys(self, items: NaiveItems) -> set[int]:
        return {key for key in self.where if self.item(key, items) is not None}

    def item(self, key: int, items: NaiveItems) -> dict[str, Any] | None:
        """All columns of the transition that starts at a key; None while, or because, it is not published."""
        found = self._published(key, items)
        if found is None or items.max_staleness is None:
            return found
        return found if self.version - int(np.min(found["policy_version"])) <= items.max_staleness else None

    def _published(self, key: int, items: NaiveItems) -> dict[str, Any] | None:
        if key not in self.where:
            return None
        episode, t = self.where[key]
        if t < items.least_step:
            return None
        if items.window is not None and items.window.crosses:
            return self._item_across(key, items, items.window)
        if items.window is not None:
            starts = items.window.starts(episode, bool(self.state_columns))
            first = t - min(items.window.burn_in, t)
            steps = episode.steps[first : t + items.window.length + items.window.bootstrap]
            if t not in starts or not all(step.is_filled for step in steps):
                return None
            rows = [(episode, first + k) for k in range(len(steps))]
            return self._sequence(rows, t - first, items, items.window)
        m = min(items.n_step, len(episode.steps) - t)
        if m < items.n_step and not episode.over:
            return None
        if self.state_columns and len(episode.states) <= t + m:
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

    def _is_decided(self, number: int, lane: int, window: NaiveWindow) -> bool:
        """Whether the window that begins at this step of a lane is complete."""
        places = self.places[lane]
        last = places[-1][0]
        may_go = bool(self.state_columns) and not last.over and not last.has_seam  # the last step, if the lane is cut
        behind = number + window.length + window.bootstrap
        return lane in self.closed_lanes or len(places) - int(may_go) >= behind

    def _item_across(self, key: int, items: NaiveItems, window: NaiveWindow) -> dict[str, Any] | None:
        """A window over the steps of a lane, whatever episodes they are of."""
        lane, number = self.where[key][0].lane, self.numbers[key]
        places = self.places[lane]
        behind = number + window.length + window.bootstrap
        is_complete = self._is_decided(number, lane, window) and (key, items) not in self.deleted
        first = max(0, number - window.burn_in)
        rows = places[first:behind]
        if number % window.period or not is_complete or not all(e.steps[t].is_filled for e, t in rows):
            return None
        return self._sequence(rows, number - first, items, window)

    def _sequence(
        self, places: list[tuple[NaiveEpisode, int]], lead: int, items: NaiveItems, window: NaiveWindow
    ) -> dict[str, Any]:
        """All columns of a window of these steps, padded to its rows."""
        steps = [episode.steps[t] for episode, t in places]
        num = len(steps)
        is_short = num < lead + window.length + window.bootstrap
        shows_tail = bool(self.state_columns) and window.bootstrap > 0 and is_short and not window.crosses
        real = num + int(shows_tail)
        shown = [*places, (places[-1][0], places[-1][1] + 1)][:real]
        front = window.num_rows - real if window.pad == "left" else window.burn_in - lead

        def placed(rows: list[Any], like: Any, first: Any = None) -> np.ndarray:
            out = np.zeros((window.num_rows, *np.shape(like)), np.asarray(like).dtype)
            if first is not None:
                out[:front] = first
            for position, row in enumerate(rows):
                out[front + position] = row
            return out

        result: dict[str, Any] = {"num_rows": real}
        for name, cell in steps[0].cells.items():
            result[name] = cell if name in self.start_columns else placed([s.cells[name] for s in steps], cell)
        depth = dict(items.stack)
        for name in self.state_columns:
            rows = [self._stacked(episode, t, name, depth.get(name), items.stack_pad) for episode, t in shown]
            nexts = [self._stacked(episode, t + 1, name, depth.get(name), items.stack_pad) for episode, t in places]
            result[name] = placed(rows, rows[0], rows[0])
            result[f"next_{name}"] = placed(nexts, rows[0])
        result["discount"] = placed([items.gamma * s.discount for s in steps], np.float32(0))
        result["mask"] = placed([True] * num, np.bool_(False))
        result["loss_mask"] = placed([lead <= k < lead + window.length for k in range(num)], np.bool_(False))
        result["terminated"] = placed([s.terminated for s in steps], np.bool_(False))
        result["truncated"] = placed([s.truncated for s in steps], np.bool_(False))
        result["episode_step"] = placed([t for _, t in places], np.int64(0))
        result["first"] = placed([t == 0 for _, t in places], np.bool_(False))
        result["num_steps"] = num
        versions = [s.version for s in steps]
        result["policy_version"] = np.asarray([min(versions), max(versions)], np.int64)
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
