"""The interface of a system to the cases: the verbs of programs, their meaning and their results.

There are two systems: reverb_system.ReverbSystem, in dm-reverb's environment, and relive_system.ReliveSystem. A call
returns plain JSON: "done"; "waits" if the call would have to wait (the call then had no effect); "refused" if the
system refuses the call; "no word" if the system has no equivalent, on purpose; else the values that the verb names.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from conformance.words import Call, Part, Pattern, Setup

__all__ = ["DONE", "NO_WORD", "REFUSED", "WAITS", "System", "in_order", "label_of"]

DONE, WAITS, REFUSED, NO_WORD = "done", "waits", "refused", "no word"
TABLE = "table"
SETTLED_S = 0.25  # a call that has not come back by then waits
PATIENCE_S = 10.0  # what was released comes back by then


def in_order(item: Any) -> Any:
    """Sorts contents: labels, or the data of trajectories part by part."""
    if not isinstance(item, dict):
        return item
    return [value if isinstance(value, list) else [value] for value in item.values()]


def label_of(item: Any) -> int:
    """The name that a case gives an item: its label, or the first value of a trajectory's first part."""
    if isinstance(item, dict):
        value = next(iter(item.values()))
        return int(value[0] if isinstance(value, list) else value)
    return int(item)


class System(ABC):
    """Tables of one system. notes: sentences of refusals, for readers; nothing is compared with them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._pending: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    # ---- tables ----------------------------------------------------------------------------------------------------

    def read(self, calls: Sequence[Call]) -> None:
        """The whole program, before it begins: for a system whose tables must know their content in advance."""
        return

    @abstractmethod
    def open(self, setup: Setup) -> str:
        """Makes the tables; the first call of every programme."""

    @abstractmethod
    def close(self) -> None:
        """Ends them, whatever waits."""

    @abstractmethod
    def size(self, table: str = TABLE) -> int:
        """Items in a table."""

    @abstractmethod
    def counts(self, table: str = TABLE) -> list[int]:
        """[items inserted, items sampled], as the limiter counts them."""

    @abstractmethod
    def reset(self, table: str = TABLE) -> str:
        """Empties a table."""

    @abstractmethod
    def save_and_load(self) -> str:
        """Writes the tables down and goes on with new ones, made from that."""

    # ---- items that are one labelled step --------------------------------------------------------------------------

    @abstractmethod
    def insert(self, label: int, priority: float | None = 1.0, tables: Sequence[str] | None = None) -> str:
        """One item with this label, in these tables (None: in all)."""

    def insert_all(self, labels: Mapping[int, float] | Sequence[int]) -> str:
        """Items with these labels in order, each with a priority of 1 or that given; the first answer but "done"."""
        pairs = labels.items() if isinstance(labels, Mapping) else ((label, 1.0) for label in labels)
        for label, priority in pairs:
            answer = self.insert(label, priority)
            if answer != DONE:
                return answer
        return DONE

    def fill(self, most: int) -> int:
        """Inserts until one would wait, at most so many; how many went in. Their labels are counted from 1000."""
        for number in range(most):
            if self.insert(1000 + number) != DONE:
                return number
        return most

    @abstractmethod
    def contents(self, table: str = TABLE) -> list[Any]:
        """The items of a table in order of value: labels, or the data of items. Draws only if there is no other way."""

    # ---- drawing ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def sample(self, num_draws: int, table: str = TABLE) -> list[Any]:
        """Labels of single draws, one after another; ends with "waits" at the first that would wait."""

    @abstractmethod
    def batch(self, num_items: int, table: str = TABLE) -> Any:
        """Labels of one request for so many items; where it waits those handed out before, and "waits"."""

    @abstractmethod
    def fields(self, names: Sequence[str], num_draws: int = 1, table: str = TABLE) -> Any:
        """A list of fields for each single draw: 'label', 'probability', 'table_size', 'priority', 'times_sampled'."""

    @abstractmethod
    def tally(self, num_draws: int, table: str = TABLE) -> Any:
        """{label: draws}, by one or more requests."""

    def drain(self, most: int, table: str = TABLE) -> int:
        """Single draws until one would wait, at most so many; how many there were."""
        drawn = self.sample(most, table)
        return len(drawn) - (WAITS in drawn)

    @abstractmethod
    def can_insert(self, num_items: int, table: str = TABLE) -> bool:
        """Whether the limiter lets so many items in at once, now. Changes nothing."""

    @abstractmethod
    def can_sample(self, num_items: int, table: str = TABLE) -> bool:
        """Whether so many items could be drawn at once, now. Changes nothing."""

    # ---- changing --------------------------------------------------------------------------------------------------

    @abstractmethod
    def learn(self, labels: Sequence[int], table: str = TABLE) -> str:
        """Comes to know the keys of these items, by drawing where the system tells them in no other way."""

    @abstractmethod
    def mutate(self, updates: Mapping[int, float], deletes: Sequence[int] = (), table: str = TABLE) -> str:
        """New priorities by label (label_of), then removals. Keys must be known: from a draw, or by learn."""

    def update(self, updates: Mapping[int, float], table: str = TABLE) -> str:
        """New priorities by label."""
        return self.mutate(updates, (), table)

    def delete(self, labels: Sequence[int], table: str = TABLE) -> str:
        """Removals by label."""
        return self.mutate({}, labels, table)

    @abstractmethod
    def mutate_key(self, key: int, priority: float | None) -> str:
        """A new priority for a key that was never returned, or (None) its removal."""

    # ---- what waits ------------------------------------------------------------------------------------------------

    def begin_sample(self, num_draws: int = 1) -> Any:
        """Draws in a thread of its own: labels, or "waits" and goes on waiting."""
        return self._begin(lambda: self.waiting_sample(num_draws))

    def begin_insert(self, label: int) -> Any:
        """Inserts in a thread of its own: "done", or "waits" and goes on waiting."""
        return self._begin(lambda: self.waiting_insert(label))

    def settle(self) -> Any:
        """The result of the call that was begun, after that call returns; "waits" if it still waits."""
        assert self._pending is not None, "nothing was begun"
        return self._answer(SETTLED_S if self._pending.done() else PATIENCE_S / 2)

    def _begin(self, call: Callable[[], Any]) -> Any:
        pending: Future[Any] = Future()

        def run() -> None:
            try:
                pending.set_result(call())
            except Exception as error:  # raised when the answer is read
                pending.set_exception(error)

        # A daemon: a system that never answers must not keep the process.
        self._pending, self._thread = pending, threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self._answer(SETTLED_S)

    def _answer(self, patience_s: float) -> Any:
        assert self._pending is not None
        done, _ = wait([self._pending], patience_s)
        return self._pending.result() if done else WAITS

    def end_waits(self) -> None:
        """After close: a pending call ends, or is abandoned."""
        if self._thread is not None:
            self._thread.join(SETTLED_S)

    @abstractmethod
    def waiting_sample(self, num_draws: int) -> list[Any]:
        """Labels of draws that wait as long as it takes, PATIENCE_S at most."""

    @abstractmethod
    def waiting_insert(self, label: int) -> str:
        """An insert that waits as long as it takes, PATIENCE_S at most."""

    # ---- data ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def put(self, data: Mapping[str, Any]) -> str:
        """One item of these columns: {column: (dtype, value)}, nested as the signature is."""

    @abstractmethod
    def take(self) -> Any:
        """One item drawn: {column: [dtype, shape, value]}, nested as the signature is."""

    @abstractmethod
    def change_what_was_put(self) -> str:
        """Writes zeros over the arrays that put() handed over last."""

    @abstractmethod
    def change_what_was_taken(self) -> str:
        """Writes zeros over the arrays that take() gave last."""

    # ---- trajectories ----------------------------------------------------------------------------------------------

    @abstractmethod
    def write(self, keep: int = 10) -> str:
        """Opens the writer of trajectories: items may reach back over the last `keep` steps."""

    @abstractmethod
    def step(self, partial: bool = False, **columns: Any) -> str:
        """Appends a step; partial: the next one fills in the columns that are left."""

    def walk(self, num_steps: int) -> str:
        """So many steps, a counting from 0 and b ten times as much; the first answer but "done"."""
        answers = (self.step(a=t, b=10 * t) for t in range(num_steps))
        return next((answer for answer in answers if answer != DONE), DONE)

    @abstractmethod
    def item(self, parts: Mapping[str, Part], priority: float = 1.0, table: str = TABLE, stored: bool = True) -> str:
        """Makes an item of parts of the steps so far; stored: and waits until it is in the table."""

    @abstractmethod
    def item_of_last(self, num_steps: int) -> str:
        """Makes an item of whole steps, the last so many."""

    @abstractmethod
    def flush(self) -> str:
        """Has what was written stored: "done" or "waits"."""

    @abstractmethod
    def end_episode(self, keep_steps: bool = False) -> str:
        """Ends the episode; keep_steps: later items may reach back over its end."""

    @abstractmethod
    def episode_steps(self) -> Any:
        """Steps of the episode so far."""

    @abstractmethod
    def patterns(self, patterns: Sequence[Pattern]) -> str:
        """Opens a writer that makes items by itself: step() and end_episode() then write through it."""
