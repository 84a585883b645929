"""Mutants of kernels that return the row, leaf, page, frame, cell, step or version next to the right one."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DRAWS", "GATHERS", "ROWS", "SAMPLES", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One change of a kernel.

    Args:
        name: its name in the table.
        kernels: the kernels that it changes.
        file: a file of src/relive/gpu/kernels.
        old: text that the file contains exactly once.
        new: the text in its place.
        tests: tests under tests/gpu that must go red, each of them. "[*]" at the end: every variant. No bracket: at
            least one variant.
    """

    name: str
    kernels: tuple[str, ...]
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


GATHERS = "test_kinds.py::test_items_of_each_kind_are_gathered_as_the_core_gathers_them"
SAMPLES = "test_kinds.py::test_items_of_each_kind_are_sampled_as_the_core_samples_them"
DRAWS = "test_samplers.py::test_each_sampler_draws_what_the_core_draws"
SHUFFLE = "test_launches.py::test_the_device_shuffles_as_the_core_does"
STARTS = "test_kinds.py::test_start_values_are_read_from_rows_and_from_cells"
POINTS = "test_draw.py::test_the_same_points_lead_to_the_same_leaves"
LANES = "test_kinds.py::test_windows_that_cross_stop_where_another_lane_begins"
ONLY_OWN = "test_samplers.py::test_only_items_of_the_index_are_there"
NEXT_STATE = "newest += ahead * fact(column, IS_NEXT)\n    before += ahead * fact(column, IS_NEXT)"

CROSSING = "        crossing = moving & (row == 0) & (at > offset)\n"
CROSSING += "        there, there_word, found = follow(region, facts, "
IN_STEPS = f"at = offset + step\n        row = at & last_row\n{CROSSING}"
IN_STRETCHES = f"while num_moving > 0:\n        row = at & last_row\n{CROSSING}"

RESOLVE = ("resolve",)
ACROSS = ("resolve_across",)
WALKS = (*RESOLVE, *ACROSS)
COPIES = ("copy_columns",)
TIMES = ("fill_rows", "fill_versions")


def gathers(*kinds: str) -> tuple[str, ...]:
    """The gather tests of these kinds of items."""
    return tuple(f"{GATHERS}[{kind}]" for kind in kinds)


def samples(*kinds: str) -> tuple[str, ...]:
    """The sample tests of these kinds of items."""
    return tuple(f"{SAMPLES}[{kind}]" for kind in kinds if kind in SAMPLED)


TIMED = ("length", "burn-in", "bootstrap", "pad", "shift", "drop", "cross", "left", "major", "cross left major")
TIMED += ("sequence stack", "episodes", "episodes head", "episodes tail", "episodes random", "episodes left")
TIMED += ("episodes major", "ragged", "ragged head", "ragged tail", "ragged random")
SAMPLED = ("one step", "stack zeros", "shift", "cross left major", "episodes tail", "ragged head")
FEW = ("length", "burn-in", "cross", "left", "major", "episodes tail", "ragged")
LONG = ("n-step", "pad", "cross", "episodes", "ragged")

OF_DRAWS = (
    Mutant(
        "shuffle: random number of the next step", ("chain_swaps", "draw_slots"), "draw.py",
        "number + FORMAT.value.permutation_from) >> 32", "number + 1 + FORMAT.value.permutation_from) >> 32",
        (f"{SHUFFLE}[64-256]", f"{SHUFFLE}[4096-5000]", f"{DRAWS}[*]"),
    ),
    Mutant(
        "shuffle: swap listed at the next row", ("chain_swaps",), "draw.py",
        "heads + _swapped_with(base, step), step,", "heads + tl.minimum(_swapped_with(base, step) + 1, step), step,",
        (f"{SHUFFLE}[64-256]", f"{SHUFFLE}[4096-5000]", f"{DRAWS}[*]"),
    ),
    Mutant(
        "draw: random number of the next stratum", ("draw_slots",), "draw.py",
        "(_bits(base, number) >> 11)", "(_bits(base, number + 1) >> 11)", (f"{DRAWS}[*]", f"{SAMPLES}[*]"),
    ),
    Mutant(
        "draw: the next stratum", ("draw_slots",), "draw.py",
        "rest = (stratum.to(tl.float64) +", "rest = ((stratum ^ 1).to(tl.float64) +", (f"{DRAWS}[*]", f"{SAMPLES}[*]"),
    ),
    Mutant(
        "draw: the next leaf", ("draw_slots",), "draw.py",
        "tl.where(found, slot, -1)", "tl.where(found, slot ^ 1, -1)", (f"{DRAWS}[*]", f"{SAMPLES}[*]", POINTS),
    ),
    Mutant(
        "draw: the next child", ("draw_slots",), "draw.py",
        "slot * FANOUT + child, 0)", "slot * FANOUT + (child ^ 1), 0)", (f"{DRAWS}[*]", POINTS),
    ),
    Mutant(
        "draw: a point on a border", ("draw_slots",), "draw.py",
        "behind = running <= rest", "behind = running < rest", (POINTS,),
    ),
    Mutant(
        "draw: word of the next page", ("draw_slots",), "draw.py",
        "count, page, found, WORDS_BEFORE)", "count, page ^ 1, found, WORDS_BEFORE)",
        (f"{DRAWS}[uniform]", f"{DRAWS}[prioritized]", f"{DRAWS}[given]"),
    ),
    Mutant(
        "draw: mass of the next leaf", ("take_leaves", "resolve"), "draw.py",
        "+ slot * FORMAT.value.node_bytes, ready)", "+ (slot ^ 1) * FORMAT.value.node_bytes, ready)",
        (f"{DRAWS}[prioritized]", f"{DRAWS}[given]", f"{DRAWS}[where]", *samples("one step", "stack zeros")),
    ),
    Mutant(
        "draw: key of the next slot", ("take_leaves", "resolve"), "draw.py",
        "| generation | slot\n", "| generation | (slot ^ 1)\n", (f"{DRAWS}[*]", f"{SAMPLES}[*]"),
    ),
    Mutant(
        "draw: the next item's slot", ("take_leaves",), "draw.py",
        "count, item, ready, BLOCK)\n    tl.store(states",
        "count, tl.maximum(item - 1, 0), ready, BLOCK)\n    tl.store(states",
        (f"{DRAWS}[*]",),
    ),
)  # fmt: skip

OF_WINDOWS = (
    Mutant(
        "key: the next slot", ("note_words",), "windows.py",
        "slot = key & fact(facts, SLOT_MASK)", "slot = (key & fact(facts, SLOT_MASK)) ^ 1", (f"{GATHERS}[*]",),
    ),
    Mutant(
        "key: state of the next leaf", WALKS, "windows.py",
        "+ slot * FORMAT.value.leaf_state_bytes", "+ (slot ^ 1) * FORMAT.value.leaf_state_bytes",
        (*gathers(*FEW), ONLY_OWN),
    ),
    Mutant(
        "page: frame of the next page", WALKS, "words.py",
        "load_int32(number, mask)", "load_int32(number ^ 4, mask)",
        gathers("cross", "pad", "episodes", "ragged"),
    ),
    Mutant(
        "copy of pages: frame of the next page", ("note_words", "draw_slots"), "words.py",
        "load_int32(number, inside)", "load_int32(number ^ 4, inside)",
        ("test_gather.py::test_every_page_in_another_frame",),
    ),
    Mutant(
        "copy of pages: word of the next page", ("copy_words",), "windows.py",
        "tl.store(before + page, word", "tl.store(before + (page ^ 1), word",
        ("test_gather.py::test_words_of_pages_are_copied_as_they_are",),
    ),
    Mutant(
        "page: the page next to the linked one", WALKS, "words.py",
        "there = ref & fact(facts, PAGE_MASK)", "there = (ref & fact(facts, PAGE_MASK)) ^ 1",
        gathers(*LONG, "stack repeat", "stack zeros", "burn-in"),
    ),
    Mutant(
        "page: the next page instead of the one before", RESOLVE, "walks.py",
        "page, PREV_AT, needed)", "page, NEXT_AT, needed)", gathers("stack repeat", "stack zeros", "burn-in", "left"),
    ),
    Mutant(
        "page: the page before instead of the next", RESOLVE, "walks.py",
        f"{IN_STEPS}page, NEXT_AT, crossing)", f"{IN_STEPS}page, PREV_AT, crossing)", gathers("n-step"),
    ),
    Mutant(
        "page: the page before instead of the next, in stretches", RESOLVE, "walks.py",
        f"{IN_STRETCHES}page, NEXT_AT, crossing)", f"{IN_STRETCHES}page, PREV_AT, crossing)",
        gathers("pad", "episodes", "ragged"),
    ),
    Mutant(
        "window: head of the next row, in stretches", RESOLVE, "walks.py",
        "start[:, None] + along.to(tl.int64) *", "start[:, None] + (along ^ 1).to(tl.int64) *",
        gathers("length", "burn-in", "pad", "episodes", "ragged"),
    ),
    Mutant(
        "window: the next stretch begins a row later", RESOLVE, "walks.py",
        "at += tl.where(stopped, stop + 1,", "at += tl.where(stopped, stop + 1, 1 +",
        ("test_times.py::test_windows_of_more_than_a_stretch[*]",),
    ),
    Mutant(
        "window: head of the next row", RESOLVE, "walks.py",
        "head = load_int32(frame + row * fact", "head = load_int32(frame + (row ^ 1) * fact",
        gathers("one step", "n-step", "stack zeros"),
    ),
    Mutant(
        "window: reward of the next row", RESOLVE, "walks.py",
        "+ row * fact(job, REWARD_STRIDE)", "+ (row ^ 1) * fact(job, REWARD_STRIDE)",
        gathers("n-step", "stack zeros", "n-step without states"),
    ),
    Mutant(
        "window: discount of the next row", RESOLVE, "walks.py",
        "PAGE_LEN) + row) * fact(facts, MARK_BYTES)", "PAGE_LEN) + (row ^ 1)) * fact(facts, MARK_BYTES)",
        gathers("one step", "n-step", "stack repeat", "stack zeros", "n-step without states"),
    ),
    Mutant(
        "window: tail bit of the next row", WALKS, "words.py",
        "(word >> (row & FORMAT.value.tail_row_mask))", "(word >> ((row + 1) & FORMAT.value.tail_row_mask))",
        gathers("n-step", "stack zeros", "cross"),
    ),
    Mutant(
        "window: tail bit of the next row, in stretches", RESOLVE, "walks.py",
        "return ((low >> shift) | high)", "return (((low >> shift) | high) >> 1)", gathers("pad", "ragged"),
    ),
    Mutant(
        "item: version of the next row", RESOLVE, "derived.py",
        "+ slot * fact(facts, MARK_BYTES)\n        version", "+ (slot ^ 1) * fact(facts, MARK_BYTES)\n        version",
        gathers("one step", "n-step", "stack repeat", "stack zeros"),
    ),
    Mutant(
        "item: lane of the next page", WALKS, "derived.py",
        "its_mark = region + fact(facts, MARKS_OFFSET) + slot *",
        "its_mark = region + fact(facts, MARKS_OFFSET) + (slot ^ 8) *",
        gathers("one step", "length", "cross", "episodes major", "ragged"),
    ),
    Mutant(
        "recheck: page of the next item", ("recheck",), "windows.py",
        "RUN_PAGES + run) + item, mask=read, other=-1)",
        "RUN_PAGES + run) + tl.maximum(item - 1, 0), mask=read, other=-1)",
        ("test_torn.py::test_only_items_whose_pages_went_are_absent",),
    ),
    Mutant(
        "recheck: presence of the next item", ("recheck",), "windows.py",
        "pointer(present, tl.int8) + item,",
        "pointer(present, tl.int8) + tl.maximum(item - 1, 0),",
        gathers("length", "cross", "ragged"),
    ),
    Mutant(
        "across: begins at the next row", ACROSS, "crossing.py",
        "offset = slot & last_row", "offset = (slot ^ 1) & last_row", gathers("cross", "cross left major"),
    ),
    Mutant(
        "across: head of the next row", ACROSS, "crossing.py",
        "row * fact(facts, RECORD_STRIDE), is_step)\n        number",
        "(row ^ 1) * fact(facts, RECORD_STRIDE), is_step)\n        number",
        gathers("cross left major", "cross without states"),
    ),
    Mutant(
        "across: the next row is listed", ACROSS, "crossing.py",
        "((at + ROW_BIAS) << ROW_SHIFT)", "(((at ^ 1) + ROW_BIAS) << ROW_SHIFT)",
        gathers("cross", "cross left major", "cross without states"),
    ),
    Mutant(
        "across: the next row before is listed", ACROSS, "crossing.py",
        "((offset - back + ROW_BIAS) << ROW_SHIFT)", "((((offset - back) ^ 1) + ROW_BIAS) << ROW_SHIFT)",
        gathers("cross", "cross left major", "cross without states"),
    ),
    Mutant(
        "across: head of the next row before", ACROSS, "crossing.py",
        "row * fact(facts, RECORD_STRIDE), is_step)\n        step",
        "(row ^ 1) * fact(facts, RECORD_STRIDE), is_step)\n        step",
        (*gathers("cross left major"), f"{LANES}[5]"),
    ),
    Mutant(
        "across: the next page instead of the one before", ACROSS, "crossing.py",
        "page, PREV_AT, needed & has_room)", "page, NEXT_AT, needed & has_room)", gathers("cross", "cross left major"),
    ),
    Mutant(
        "across: lane of the next row", ACROSS, "crossing.py",
        "fact(facts, PAGE_LEN) + row) * fact", "fact(facts, PAGE_LEN) + (row ^ 1)) * fact",
        (f"{LANES}[*]",),
    ),
)  # fmt: skip

OF_COPIES = (
    Mutant(
        "copy: the next row", COPIES, "rows.py",
        "row = row & (fact(facts, PAGE_LEN) - 1)", "row = (row ^ 1) & (fact(facts, PAGE_LEN) - 1)",
        (f"{GATHERS}[*]", f"{SAMPLES}[*]", f"{STARTS}[*]"),
    ),
    Mutant(
        "copy: the next frame of a stack", COPIES, "rows.py",
        "back = stack - 1 - position", "back = tl.maximum(stack - 2 - position, 0)",
        gathers("stack repeat", "stack zeros", "major", "cross left major", "sequence stack", "ragged"),
    ),
    Mutant(
        "copy: a shared frame one place later in the next stack", COPIES, "rows.py",
        "earlier = ahead * units", "earlier = (ahead - 1) * units", gathers("stack repeat", "stack zeros"),
    ),
    Mutant(
        "copy: a shared state at its own step", COPIES, "rows.py",
        "earlier = stack * units * (1", "earlier = 0 * stack * units * (1", gathers("length", "major", "ragged"),
    ),
    Mutant(
        "copy: the newest frame counts as shared", COPIES, "rows.py",
        "is_shared = position + ahead < stack", "is_shared = position + ahead <= stack",
        gathers("stack repeat", "stack zeros"),
    ),
    Mutant(
        "copy: padding of stacks by the other rule", COPIES, "rows.py",
        "(1 - fact(column, PADS_ZEROS)) * stack", "fact(column, PADS_ZEROS) * stack",
        gathers("stack repeat", "stack zeros", "major", "sequence stack"),
    ),
    Mutant(
        "copy: the row before the next state", COPIES, "rows.py",
        NEXT_STATE, NEXT_STATE.replace("ahead", "(ahead - 1)"),
        gathers("one step", "n-step", "stack repeat", "stack zeros", "length", "burn-in", "cross", "left", "major"),
    ),
    Mutant(
        "copy: the next start cell", COPIES, "rows.py",
        "cell = word.to(tl.int64) & 0xFFFFFFFF", "cell = (word.to(tl.int64) & 0xFFFFFFFF) + 1",
        (*gathers(*FEW), f"{STARTS}[items1-cell]"),
    ),
    Mutant(
        "copy: the next time", COPIES, "rows.py",
        "rows_in_front(facts, job, num_rows, lead)", "rows_in_front(facts, job, num_rows, lead) - 1",
        (*gathers(*TIMED), *samples(*TIMED)),
    ),
    Mutant(
        "copy: own page instead of the page after", COPIES, "rows.py",
        "run = (row >> fact(facts, PAGE_SHIFT)) +", "run = tl.minimum(row >> fact(facts, PAGE_SHIFT), 0) +",
        gathers(*LONG, *(f"{kind} without states" for kind in LONG if kind != "n-step")),
    ),
    Mutant(
        "copy: own page instead of the page before", COPIES, "rows.py",
        "run = (row >> fact(facts, PAGE_SHIFT)) +", "run = tl.maximum(row >> fact(facts, PAGE_SHIFT), 0) +",
        gathers("stack repeat", "stack zeros", "burn-in", "cross", "major"),
    ),
    Mutant(
        "place: the next ragged item", (*COPIES, "fill_rows"), "places.py",
        "tl.where(begin <= place, item + jump, item)", "tl.where(begin < place, item + jump, item)",
        gathers("ragged", "ragged head", "ragged tail", "ragged random"),
    ),
    Mutant(
        "place: the next item, time first", (*COPIES, "fill_rows"), "places.py",
        "item = place - time * count", "item = tl.maximum(place - time * count - 1, 0)",
        gathers("major", "cross left major", "episodes major"),
    ),
    Mutant(
        "place: the next time", (*COPIES, "fill_rows"), "places.py",
        "time = place - item * rows", "time = tl.maximum(place - item * rows - 1, 0)",
        gathers("length", "pad", "cross", "left", "episodes", "episodes tail"),
    ),
    Mutant(
        "place: padding on the left, one row less", (*COPIES, "fill_rows"), "places.py",
        "MOST_STEPS) - num_rows)", "MOST_STEPS) - num_rows - 1)", gathers("left", "cross left major", "episodes left"),
    ),
    Mutant(
        "place: padding of burn-in, one row more", (*COPIES, "fill_rows"), "places.py",
        "* (burn_in - lead)", "* (burn_in - lead + 1)", gathers("burn-in", "pad", "shift", "cross", "major"),
    ),
    Mutant(
        "place: the next row of a window", (*COPIES, *TIMES), "places.py",
        "- lead + along\n    episode_step", "- lead + tl.maximum(along - 1, 0)\n    episode_step",
        gathers("length", "burn-in", "left", "episodes tail", "ragged head"),
    ),
    Mutant(
        "place: the next step of a window that crosses", (*COPIES, *TIMES), "places.py",
        "- lead + along), mask=mask", "- lead + tl.maximum(along - 1, 0)), mask=mask",
        gathers("cross", "cross left major", "cross without states"),
    ),
    Mutant(
        "rows: head of the next row", ("fill_rows",), "times.py",
        "base + (row & (fact(facts, PAGE_LEN) - 1))", "base + ((row ^ 1) & (fact(facts, PAGE_LEN) - 1))",
        (*gathers(*FEW), *samples(*FEW)),
    ),
    Mutant(
        "rows: mark of the next row", TIMES, "times.py",
        "+ (row & (fact(facts, PAGE_LEN) - 1))\n    return", "+ ((row ^ 1) & (fact(facts, PAGE_LEN) - 1))\n    return",
        (*gathers(*FEW), *samples(*FEW)),
    ),
    Mutant(
        "rows: loss of the next row", ("fill_rows",), "times.py",
        "is_step & (along >= lead)", "is_step & (along > lead)", gathers(*FEW),
    ),
    Mutant(
        "rows: end before the last row", ("fill_rows",), "times.py",
        "(along == num_steps - 1)", "(along == num_steps - 2)", gathers("pad", "shift", "left"),
    ),
    Mutant(
        "rows: own page instead of the page after", TIMES, "times.py",
        "run = (row >> fact(facts, PAGE_SHIFT)) +", "run = tl.minimum(row >> fact(facts, PAGE_SHIFT), 0) +",
        gathers("pad", "cross", "episodes", "ragged", "pad without states"),
    ),
    Mutant(
        "versions: from the next row on", ("fill_versions",), "times.py",
        "along = done + tl.arange(0, ROWS)", "along = done + 1 + tl.arange(0, ROWS)",
        (*gathers(*FEW), *samples(*FEW)),
    ),
)  # fmt: skip

ROWS = (*OF_DRAWS, *OF_WINDOWS, *OF_COPIES)
