"""The four processes of a table with every kind of item: two write, one completes, one reads; each counts what it did.

Each says "ready", waits for "go", works until it is told "stop" and then says its counts.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, final

import numpy as np

import relive
from processes.numbered import (
    FAR,
    INDEXES,
    PAST,
    STRIDE,
    WIDTH,
    Numbers,
    columns_of,
    faults_of,
    items_of_ended,
    lengths_of,
    marks_of,
    rewards_of,
    rows_of,
    seals_of,
    steps_of,
    terminates,
    words,
)
from relive import errors

LANES = 3
CALL_S = 20.0
REMEMBERED = 5000  # deleted keys and completed rows


def write(pipe: Any, name: str, writer_id: int) -> None:
    """Steps in lanes and pieces over them; the keys of all steps go to the parent. Ends with its episodes."""
    table = relive.attach(name)
    pipe.send("ready")
    is_told = pipe.recv() == "stop"  # a process that was restarted may come too late
    random = np.random.default_rng(writer_id)
    done: Counter[str] = Counter()
    recent: deque[tuple[Numbers, Numbers]] = deque(maxlen=40)
    lanes = np.arange(LANES)
    number = (np.int64(writer_id) << 48) | (lanes.astype(np.int64) << 40)
    with table.writer(num_lanes=LANES) as writer:
        while True:
            is_told = is_told or pipe.poll(0)
            if is_told:
                lanes = lanes[steps_of(number[lanes]) > 0]
            if not len(lanes):
                break
            given = number[lanes]
            ends = steps_of(given) == lengths_of(given) - 1
            done.update(steps=len(given), items=len(given) + items_of_ended(given[ends]))
            keys = _append(writer, lanes, given, ends, random)
            number[lanes] = np.where(ends, ((given >> 16) + 1) << 16, given + 1)
            pipe.send((keys, given))
            if len(given) == LANES:
                recent.append((keys, given))
            if random.random() < 0.5 and recent:
                made, refused = _make_pieces(table, recent, random)
                done.update(items=made, made=made, refused=refused)
    table.close()
    pipe.send(dict(done))


def _append(writer: Any, lanes: Any, number: Numbers, ends: Any, random: np.random.Generator) -> Numbers:
    columns = {"observation": words(number, WIDTH), "number": number}
    if ends.any() or random.random() < 0.2:
        columns["next_observation"] = words(number + 1, WIDTH)
    terminated = ends & terminates(number)
    keys: Numbers = writer.append(
        lanes=lanes, terminated=terminated, truncated=ends & ~terminated, timeout_s=CALL_S, **columns
    )
    return keys


def _make_pieces(table: Any, recent: Any, random: np.random.Generator) -> tuple[int, int]:
    """Some items over rows of the last while, which may have gone by now: how many were made, and were refused."""
    keys, numbers = recent[random.integers(len(recent))]
    back = np.minimum(random.integers(1, PAST + 1, LANES), steps_of(numbers) + 1)
    other, far_numbers = recent[random.integers(len(recent))]
    left = lengths_of(far_numbers) - steps_of(far_numbers)  # rows of the episode from there on
    most = np.minimum(FAR, (left + STRIDE - 1) // STRIDE)
    count = random.integers(0, most + 1)
    firsts = np.stack([np.stack([numbers - back + 1, back], -1), np.stack([far_numbers, count], -1)], 1)
    windows = {"past": (keys, -back), "far": (other, count)}
    try:
        table.create_items(
            windows,
            index="pieces",
            firsts=firsts,
            seals=seals_of(firsts),
            priority=random.random(LANES),
            timeout_s=CALL_S,
        )
    except errors.RowGone as error:  # evicted, or still to come
        return error.stored, LANES - error.stored
    return LANES, 0


def complete(pipe: Any, name: str, seed: int) -> None:
    """Gives rows their late columns in random order, some of them late, a few never, and some twice in vain."""
    table = relive.attach(name)
    pipe.send("ready")
    random = np.random.default_rng(seed)
    done: Counter[str] = Counter()
    waiting: list[tuple[int, int]] = []
    completed: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
    is_told = False
    while not (is_told and not waiting):
        while pipe.poll(0 if waiting or is_told else 0.05):
            told = pipe.recv()
            if isinstance(told, str):
                is_told = told == "stop"
                continue
            keys, numbers = told
            kept = random.random(len(keys)) > 0.01
            done.update(told=len(keys), left=int((~kept).sum()))
            waiting += zip(keys[kept].tolist(), numbers[kept].tolist(), strict=True)
        if not waiting:
            continue
        some = random.permutation(len(waiting))[: random.integers(1, 60)]
        chosen = [waiting[position] for position in some]
        for position in sorted(some.tolist(), reverse=True):
            waiting[position] = waiting[-1]
            waiting.pop()
        _complete(table, np.array(chosen, np.int64), done)
        completed.extend(chosen)
        if random.random() < 0.05:
            _complete_again(table, completed[random.integers(len(completed))], done)
    table.close()
    pipe.send(dict(done))


def _complete(table: Any, rows: Numbers, done: Counter[str]) -> None:
    keys, numbers = rows[:, 0], rows[:, 1]
    applied = table.complete(keys, reward=rewards_of(numbers), mark=marks_of(numbers))
    done.update(applied=applied, stale=len(rows) - applied)


def _complete_again(table: Any, row: tuple[int, int], done: Counter[str]) -> None:
    """A second time: refused, or stale where the row has gone."""
    number = np.int64(row[1])
    try:
        applied = table.complete(row[0], reward=-1.0, mark=marks_of(number + 1))
    except errors.AlreadyCompleted:
        done.update(twice=1)
        return
    done.update(again=1, torn=applied)


def read(pipe: Any, name: str, seed: int, may_be_cut: bool) -> None:
    """Draws from every index and verifies all of it; sets priorities, deletes a few and never sees them again."""
    table = relive.attach(name)
    pipe.send("ready")
    is_told = pipe.recv() == "stop"
    random = np.random.default_rng(seed)
    done: Counter[str] = Counter()
    past = _Past()
    while not (is_told or pipe.poll(0)):
        index = INDEXES[random.integers(len(INDEXES))]
        done.update(updates=past.look(table, random))
        try:
            batch = table.sample(32, index=index, columns=columns_of(index), timeout_s=0.02)
        except errors.DeadlineExceeded:
            done.update({f"none of {index}": 1})
            continue
        keys = batch.item_keys
        done.update({index: len(keys)})
        done.update(torn=int(faults_of(index, batch, may_be_cut).sum()))
        done.update(
            deleted_drawn=past.deleted_among(index, keys), evicted_drawn=past.evicted_among(rows_of(index, batch))
        )
        if index == "transitions":
            past.drawn.append((keys, batch["number"]))
        if index != "episodes":
            done.update(updates=len(keys))
            table.update_priorities(keys, random.random(len(keys)) + 0.01, index=index)
        if random.random() < 0.05:
            some = np.unique(keys)[:3]
            past.deleted["pieces" if index == "pieces" else "steps"].extend(some.tolist())
            done.update(deleted=table.delete(some))
    table.close()
    done.update(evictions_seen=len(past.evicted))
    pipe.send(dict(done))


@final
class _Past:
    """Items that a reader knows to be gone: keys that it deleted, and rows of lanes that it found evicted."""

    def __init__(self) -> None:
        self.drawn: deque[tuple[Numbers, Numbers]] = deque(maxlen=200)  # keys and numbers of transitions
        self.deleted: dict[str, deque[int]] = {"pieces": deque(maxlen=REMEMBERED), "steps": deque(maxlen=REMEMBERED)}
        self.evicted: dict[int, int] = {}  # of each lane, which goes row by row: the newest row that has gone

    def look(self, table: Any, random: np.random.Generator) -> int:
        """Looks for some of what was drawn. A transition goes with the row before it, so that one has gone: with its
        stack's first row, and one that begins an episode with the last row of the episode before, too (rule D3).

        Items over one row end one after the other in a hold of the lock, and draws and gathers take none: until that
        hold ends another item may still bring the row (rule D4). So the lock is taken once, by priorities for what has
        gone, which do nothing else; returns how many.
        """
        if not self.drawn:
            return 0
        keys, numbers = self.drawn[random.integers(len(self.drawn))]
        gone = ~table.gather(keys, columns=["number"]).present & ~np.isin(keys, self._deleted("steps"))
        if gone.any():
            updated = table.update_priorities(keys[gone], np.ones(gone.sum()), index="transitions")
            assert not updated
        for number in numbers[gone].tolist():
            lane = number >> 40
            self.evicted[lane] = max(self.evicted.get(lane, 0), number - 1)
        return int(gone.sum())

    def deleted_among(self, index: str, keys: Numbers) -> int:
        return int(np.isin(keys, self._deleted("pieces" if index == "pieces" else "steps")).sum())

    def evicted_among(self, numbers: Numbers) -> int:
        return sum(self.evicted.get(number >> 40, -1) >= number for number in numbers.tolist())

    def _deleted(self, what: str) -> Numbers:
        return np.array(self.deleted[what], np.int64)
