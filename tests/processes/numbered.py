"""Steps that are known by their number: a reader of a row can check every byte of the row and of its window.

A number is writer << 48 | lane << 40 | episode << 16 | step. Lengths of episodes, rewards and contents follow from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import relive
from relive import _core

Numbers = npt.NDArray[np.int64]
GOLDEN = np.uint64(_core.random_format()["golden"])
WIDTH = 16  # words of a state
MARK = 4  # words of the late column
LONGEST = 20  # steps of an episode
N_STEP, STACK = 3, 2
LENGTH, BURN_IN, PERIOD = 5, 2, 3
PAST, FAR, STRIDE = 4, 3, 2
INDEXES = ("transitions", "sequences", "episodes", "pieces")
PIECE_COLUMNS = ("number", "observation", "mark", "reward", "mask")


def words(numbers: Any, width: int, salt: int = 0) -> npt.NDArray[np.uint64]:
    """uint64[..., width] that no other number or salt gives."""
    states = np.asarray(numbers, np.int64).astype(np.uint64)[..., np.newaxis]
    return _core.mix_words(states + np.arange(1, width + 1, dtype=np.uint64) * GOLDEN + np.uint64(salt << 32))


def steps_of(numbers: Numbers) -> Numbers:
    return numbers & 0xFFFF


def lengths_of(numbers: Numbers) -> Numbers:
    """Steps that the episode of each step has."""
    drawn = words(numbers >> 16, 1, 2)[..., 0] % np.uint64(LONGEST)
    return drawn.astype(np.int64) + 1


def terminates(numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the episode of each step terminates; if not, it is truncated."""
    ends: npt.NDArray[np.bool_] = words(numbers >> 16, 1, 3)[..., 0] % np.uint64(2) == 1
    return ends


def rewards_of(numbers: Numbers) -> npt.NDArray[np.float32]:
    return (words(numbers, 1, 4)[..., 0] % np.uint64(16)).astype(np.float32)


def marks_of(numbers: Numbers) -> npt.NDArray[np.uint64]:
    return words(numbers, MARK, 5)


def seals_of(firsts: Any) -> npt.NDArray[np.uint64]:
    """uint64[N, 2] of the first number and the count of rows of an explicit item's windows, int64[N, 2, 2]."""
    array = np.asarray(firsts, np.int64)
    sealed: npt.NDArray[np.uint64] = words(array[..., 0] * 31 + array[..., 1], 1, 6)[..., 0]
    return sealed


def items_of_ended(numbers: Numbers) -> int:
    """Sequences and episodes that the episodes of these numbers are."""
    length = lengths_of(numbers)
    whole = np.maximum(length - LENGTH, 0)
    return int((1 + whole // PERIOD + (whole % PERIOD > 0) + 1).sum())


def make_table(name: str, capacity: int, max_items: int, seed: int) -> relive.Table:
    """Every kind of item over the same steps, none of which can be drawn before the late columns of its steps came."""
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((WIDTH,), "uint64", kind="state"),
            "number": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32", late=True),
            "mark": relive.ArraySpec((MARK,), "uint64", late=True),
        }
    )
    transitions = relive.Transitions(N_STEP, 1.0, {"observation": STACK})
    sequences = relive.Sequences(LENGTH, BURN_IN, 1, PERIOD, at_end="shift")
    pieces = relive.Explicit(
        {"past": relive.Window(PAST), "far": relive.Window(FAR, stride=STRIDE)},
        {"firsts": relive.ArraySpec((2, 2), "int64"), "seals": relive.ArraySpec((2,), "uint64")},
        max_items,
    )
    indexes = {
        "transitions": relive.Index(transitions, relive.Prioritized(0.6)),
        "sequences": relive.Index(sequences, relive.Prioritized(0.9)),
        "episodes": relive.Index(relive.Episodes(LONGEST, bootstrap=1), max_times_sampled=4),
        "pieces": relive.Index(pieces, relive.Prioritized(0.6)),
    }
    storage = relive.SharedMemory(name)
    return relive.Table(spec, capacity, indexes, storage=storage, max_lanes=16, seed=seed)


def columns_of(index: str) -> list[str]:
    """The columns that a reader needs to verify items of this index."""
    if index == "pieces":
        both = [f"{window}/{name}" for window in ("past", "far") for name in PIECE_COLUMNS]
        return [*both, "firsts", "seals"]
    shared = ["observation", "number", "reward", "mark", "discount"]
    return [*shared, "num_steps", "next_observation"] if index == "transitions" else [*shared, "mask"]


def faults_of(index: str, batch: relive.Batch, may_be_cut: bool = False) -> npt.NDArray[np.bool_]:
    """bool[B]: which items of a batch are not what their numbers say. may_be_cut: writers died amid their episodes."""
    if index == "transitions":
        return _faults_of_transitions(batch, may_be_cut)
    if index == "pieces":
        return _faults_of_pieces(batch)
    return _faults_of_windows(batch, index == "episodes", may_be_cut)


def rows_of(index: str, batch: relive.Batch) -> Numbers:
    """The numbers of all steps that a batch has rows of, but for the returns and stacks of transitions."""
    if index == "transitions":
        return batch["number"]  # type: ignore[no-any-return]
    windows = ("past/", "far/") if index == "pieces" else ("",)
    return np.concatenate([batch[f"{window}number"][batch[f"{window}mask"]] for window in windows])


def _differs(given: Any, expected: Any) -> npt.NDArray[np.bool_]:
    """bool[B]: in which of the first axis anything is not equal."""
    result: npt.NDArray[np.bool_] = (given != expected).reshape(len(given), -1).any(axis=1)
    return result


def _faults_of_transitions(batch: relive.Batch, may_be_cut: bool) -> npt.NDArray[np.bool_]:
    number = batch["number"]
    step, length = steps_of(number), lengths_of(number)
    count = np.minimum(N_STEP, length - step)
    if may_be_cut:
        count = np.clip(batch["num_steps"], 1, count)
    back = np.arange(1 - STACK, 1)
    before = np.maximum(number[:, np.newaxis] + back, (number - step)[:, np.newaxis])
    behind = np.maximum((number + count)[:, np.newaxis] + back, (number - step)[:, np.newaxis])
    ahead = np.arange(N_STEP)
    rewards = np.where(ahead < count[:, np.newaxis], rewards_of(number[:, np.newaxis] + ahead), 0).sum(axis=1)
    ends = (step + count == length) & terminates(number)
    return (
        (batch["num_steps"] != count)
        | _differs(batch["observation"], words(before, WIDTH))
        | _differs(batch["next_observation"], words(behind, WIDTH))
        | _differs(batch["mark"], marks_of(number))
        | (batch["reward"] != rewards)
        | (batch["discount"] != np.where(ends, 0.0, 1.0))
    )


def _faults_of_windows(batch: relive.Batch, is_episode: bool, may_be_cut: bool) -> npt.NDArray[np.bool_]:
    mask, number = batch["mask"], batch["number"]
    items, num_rows = mask.shape
    lead = 0 if is_episode else BURN_IN
    first = number[np.arange(items), lead]  # of the steps that carry loss, which always are
    begin, length = steps_of(first), lengths_of(first)
    last = LONGEST if is_episode else LENGTH + 1
    ends = terminates(first)
    tail = np.ones(items, np.bool_)  # whether the state behind the episode's last step is there
    if may_be_cut:
        seen = begin + np.maximum(mask[:, lead:].sum(axis=1), 1)
        tail = seen >= np.minimum(length, begin + last)
        ends, length = ends & tail, np.where(tail, length, seen)
    starts = (begin == 0) if is_episode else (begin % PERIOD == 0) & (begin + LENGTH <= length)
    if not is_episode:
        starts |= begin == np.maximum(length - LENGTH, 0)
    at = begin[:, np.newaxis] + np.arange(num_rows) - lead  # the step that each row shows
    is_row = (at >= 0) & (at < np.minimum(length, begin + last)[:, np.newaxis])
    shown = (first - begin)[:, np.newaxis] + np.maximum(at, 0)
    states = np.where((at <= length[:, np.newaxis])[..., np.newaxis], words(shown, WIDTH), np.uint64(0))
    is_known = tail[:, np.newaxis] | (at < length[:, np.newaxis])
    is_end = (at == length[:, np.newaxis] - 1) & ends[:, np.newaxis]
    return (
        ~starts
        | _differs(mask, is_row)
        | _differs(number, np.where(is_row, shown, 0))
        | _differs(batch["observation"] * is_known[..., np.newaxis], states * is_known[..., np.newaxis])
        | _differs(batch["mark"], np.where(is_row[..., np.newaxis], marks_of(shown), np.uint64(0)))
        | _differs(batch["reward"], np.where(is_row, rewards_of(shown), 0))
        | _differs(batch["discount"], np.where(is_row & ~is_end, 1.0, 0.0))
    )


def _faults_of_pieces(batch: relive.Batch) -> npt.NDArray[np.bool_]:
    firsts = batch["firsts"]
    faults: npt.NDArray[np.bool_] = _differs(batch["seals"], seals_of(firsts))
    for window, (name, stride) in enumerate((("past", 1), ("far", STRIDE))):
        first, count = firsts[:, window, 0], firsts[:, window, 1]
        at = np.arange(batch[f"{name}/mask"].shape[1])
        is_row = at < count[:, np.newaxis]
        shown = first[:, np.newaxis] + at * stride
        whole = is_row[..., np.newaxis]
        faults |= (
            _differs(batch[f"{name}/mask"], is_row)
            | _differs(batch[f"{name}/number"], np.where(is_row, shown, 0))
            | _differs(batch[f"{name}/observation"], np.where(whole, words(shown, WIDTH), np.uint64(0)))
            | _differs(batch[f"{name}/mark"], np.where(whole, marks_of(shown), np.uint64(0)))
            | _differs(batch[f"{name}/reward"], np.where(is_row, rewards_of(shown), 0))
        )
    return faults
