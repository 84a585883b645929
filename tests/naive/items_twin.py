"""The naive twin of explicit items: lists of rows, and nothing else. It shares no code with the library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

# name -> (length, stride); what the table of the tests declares
WINDOWS = {"near": (4, 1), "now": (1, 1), "far": (3, 3)}


@dataclass
class NaiveRow:
    """One step. number: of all that were written. deleted: no step any more, but a row of the items that it has.

    filled: its late columns came; before that nothing tells whether it is there but the rows around it.
    """

    key: int
    number: int
    lane: int
    episode: int
    step: int
    deleted: bool = False
    filled: bool = True
    terminated: bool = False
    truncated: bool = False  # by the step, later, or with its lane

    @property
    def is_seen(self) -> bool:
        return self.filled and not self.deleted


@dataclass
class NaiveItem:
    """Rows by window, those that any window spans, and values of its own."""

    key: int
    rows: dict[str, list[NaiveRow]]
    spanned: list[NaiveRow]
    score: float
    priority: float | None  # None: that of a new item when it comes
    uses: int = 0
    over: bool = False  # deleted, pushed out by others, ended with a row, or waited too long
    since_s: float = 0.0  # it was made

    @property
    def is_waiting(self) -> bool:
        return not all(row.filled for rows in self.rows.values() for row in rows)


@dataclass
class NaiveTable:
    """Rows of each lane in order, items in order of their making."""

    max_items: int
    max_times: int | None
    has_late: bool = False
    lanes: dict[int, list[NaiveRow]] = field(default_factory=dict)
    rows: dict[int, NaiveRow] = field(default_factory=dict)
    items: list[NaiveItem] = field(default_factory=list)
    largest: float = 1.0

    def append(self, key: int, lane: int, episode: int, step: int) -> None:
        row = NaiveRow(key, len(self.rows), lane, episode, step, filled=not self.has_late)
        self.lanes.setdefault(lane, []).append(row)
        assert key not in self.rows
        self.rows[key] = row

    def spanned(self, first: NaiveRow, name: str, num_rows: int) -> list[NaiveRow] | None:
        """All rows of a window that begins at a row; None where its episode or its lane has not so many (yet)."""
        lane = self.lanes[first.lane]
        at, span = lane.index(first), (num_rows - 1) * WINDOWS[name][1] + 1
        rows = lane[at : at + span]
        return rows if len(rows) == span and rows[-1].episode == first.episode else None

    def create(self, key: int, rows: dict[str, list[NaiveRow]], score: float, priority: float | None) -> None:
        self.largest = max(self.largest, priority or 0.0)
        spanned = [row for name, some in rows.items() for row in some]
        picked = {name: some[:: WINDOWS[name][1]] for name, some in rows.items()}
        assert all(key != item.key for item in self.items)
        self.items.append(NaiveItem(key, picked, spanned, score, priority))
        self.publish()
        if len(self.items) > self.max_items:
            self.items[-1 - self.max_items].over = True

    def complete(self, rows: list[NaiveRow]) -> None:
        for row in rows:
            row.filled = True
        self.publish()

    def publish(self) -> None:
        """Items whose rows are all filled, and that have no priority yet, get the largest that there was."""
        for item in self.items:
            if item.priority is None and not item.is_waiting:
                item.priority = self.largest

    def is_there(self, row: NaiveRow, present: set[int]) -> bool | None:
        """Whether a row is there, by the steps that are: rows of a lane go from the front. None: no telling."""
        if row.is_seen:
            return row.key in present
        lane = self.lanes[row.lane]
        at = lane.index(row)
        if any(other.key in present for other in lane[:at]):
            return True
        return False if any(other.key not in present and other.is_seen for other in lane[at:]) else None

    def is_live(self, item: NaiveItem) -> bool:
        return not item.over and not item.is_waiting and (self.max_times is None or item.uses < self.max_times)

    def live(self) -> list[NaiveItem]:
        return [item for item in self.items if self.is_live(item)]

    @staticmethod
    def expected(item: NaiveItem) -> dict[str, Any]:
        """Every column of an item."""
        columns: dict[str, Any] = {"score": np.float32(item.score)}
        for name, (length, _) in WINDOWS.items():
            rows = item.rows.get(name, [])
            columns[f"{name}/observation"] = np.zeros((length, 3), np.float32)
            columns[f"{name}/action"] = np.zeros(length, np.int64)
            columns[f"{name}/episode_step"] = np.zeros(length, np.int64)
            columns[f"{name}/terminated"] = np.zeros(length, np.bool_)
            columns[f"{name}/truncated"] = np.zeros(length, np.bool_)
            columns[f"{name}/mask"] = np.arange(length) < len(rows)
            columns[f"{name}/num_steps"] = np.int64(len(rows))
            columns[f"{name}/verdict"] = np.zeros(length, np.int64)
            for at, row in enumerate(rows):
                columns[f"{name}/observation"][at] = cells(row.lane, row.episode, row.step)
                columns[f"{name}/action"][at] = row.number
                columns[f"{name}/verdict"][at] = verdict(row.number)
                columns[f"{name}/episode_step"][at] = row.step
                columns[f"{name}/terminated"][at] = row.terminated
                columns[f"{name}/truncated"][at] = row.truncated
        return columns


def verdict(number: int) -> int:
    """The late column of a row."""
    return 7 * number + 3


def cells(lane: int, episode: int, step: int) -> np.ndarray:
    """The observation of a row."""
    return np.array([lane + episode / 64, step / 4, -lane - step], np.float32)
