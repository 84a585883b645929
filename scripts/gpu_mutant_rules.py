"""Mutants of kernels that lack one rule of the protocol by which they read beside writers (docs/design/gpu.md)."""

from __future__ import annotations

from gpu_mutant_rows import (
    ACROSS,
    COPIES,
    LANES,
    ONLY_OWN,
    RESOLVE,
    SHUFFLE,
    WALKS,
    Mutant,
    gathers,
)

__all__ = ["RULES"]

TORN = "test_torn.py::"
REUSED = f"{TORN}test_a_page_before_that_was_freed_and_reused_is_not_read_as_the_old_one"
WAYS = ("copied", "read")  # of the words of pages
SPANS = "test_spans.py::"
SEEMS_LOST = f"{SPANS}test_a_window_that_seems_lost_because_its_page_moved_is_read_again"
MARK_LOST = "lost = lost | (crossing & ~found)\n        unmapped = unmapped | (found & ~there_seen)\n"

OF_WORDS = (
    Mutant(
        "generation of keys", ("note_words",), "windows.py",
        "is_used(word) & (generation_of(word) == generation)", "is_used(word)",
        ("test_gather.py::test_generations_of_reused_pages_tell_old_keys_from_new",),
    ),
    Mutant(
        "generation of links", WALKS, "words.py",
        "is_used(word) & (generation_of(word) == (ref >> fact(facts, PAGE_BITS)))", "is_used(word)",
        tuple(f"{REUSED}[words {way}-linked]" for way in WAYS),
    ),
    Mutant(
        "state of leaves", WALKS, "windows.py",
        "ready & (state <= FORMAT.value.most_uses)", "ready",
        ("test_gather.py::test_items_deleted_or_of_a_cut_lane", ONLY_OWN, *gathers("length", "cross", "ragged")),
    ),
    Mutant(
        "second reading of a leaf", ("take_leaves", "resolve"), "draw.py",
        "good = ready & (mass > 0.0)", "good = ready & (mass >= 0.0)",
        (f"{TORN}test_a_leaf_that_lost_its_mass_after_the_descent_is_not_taken",),
    ),
    Mutant(
        "a leaf that is not taken is drawn again", ("take_leaves",), "draw.py",
        "tl.int64), mask=ready & ~good)", "tl.int64), mask=ready & good & ~good)",
        (f"{TORN}test_a_leaf_that_lost_its_mass_after_the_descent_is_not_taken",),
    ),
    Mutant(
        "the shuffle's bound", ("draw_slots",), "draw.py",
        "listed & (step < until)", "listed & (step <= until)", (f"{SHUFFLE}[64-256]", f"{SHUFFLE}[4096-5000]"),
    ),
    Mutant(
        "frames that are not mapped", WALKS, "words.py",
        ", mask & (frame >= 0) & (frame < mapped_frames)", ", mask & (frame >= 0)",
        ("test_reader.py::test_frames_the_device_cannot_see_yet_are_asked_for_again[words read]",),
    ),
    Mutant(
        "frames of a copy that are not mapped", RESOLVE, "words.py",
        "mask & copied & (frame >= 0) & (frame < mapped_frames)", "mask & copied & (frame >= 0)",
        ("test_reader.py::test_frames_the_device_cannot_see_yet_are_asked_for_again[words copied]",),
    ),
    Mutant(
        "cells that are not mapped", COPIES, "rows.py",
        "seen = shown & (cell < mapped_cells)", "seen = shown & (cell >= 0)",
        ("test_times_torn.py::test_start_cells_that_the_device_cannot_see_yet_are_asked_for_again",),
    ),
)  # fmt: skip

OF_THE_RECHECK = (
    Mutant(
        "recheck of the page", ("recheck",), "windows.py",
        "touched = read & (page >= 0)", "touched = read & (page >= 0) & (run + page * 0 != fact(facts, PAGES_BEFORE))",
        (
            f"{TORN}test_an_item_evicted_while_it_is_read_is_not_present[*]",
            f"{TORN}test_items_whose_pages_move_are_read_again",
        ),
    ),
    Mutant(
        "recheck of neighbours", ("recheck",), "windows.py",
        "touched = read & (page >= 0)", "touched = read & (page >= 0) & (run + page * 0 == fact(facts, PAGES_BEFORE))",
        tuple(f"{REUSED}[words {way}-walked]" for way in WAYS),
    ),
    Mutant(
        "recheck of moves", ("recheck",), "windows.py",
        "(now >> FORMAT.value.state_bits) != (word >> FORMAT.value.state_bits)",
        "generation_of(now) != generation_of(word)",
        (
            f"{TORN}test_items_whose_pages_move_are_read_again",
            f"{SPANS}test_pages_in_the_midst_of_a_window_that_move_are_read_again",
            "test_times_torn.py::test_pages_that_move_are_read_again_and_at_last_by_the_core[*]",
        ),
    ),
    Mutant(
        "recheck of a lost window", ("recheck",), "windows.py",
        "changed = changed | (touched & moved)", "changed = changed | (touched & moved & (state == READY))",
        (SEEMS_LOST,),
    ),
    Mutant(
        "recheck of a draw", ("recheck",), "windows.py",
        "changed = read & (generation_of(now) != generation_of(word))", "changed = read & ~read",
        (f"{TORN}test_a_draw_alone_never_pairs_an_old_key_with_a_new_mass",),
    ),
)  # fmt: skip

OF_WALKS = (
    Mutant(
        "recheck by the words that were noted", ("recheck",), "windows.py",
        "touched, WORDS_AFTER)", "touched, WORDS_BEFORE)",
        (f"{TORN}test_an_item_evicted_while_it_is_read_is_not_present",),
    ),
    Mutant(
        "a lost page shortens a window", RESOLVE, "walks.py",
        f"{MARK_LOST}        moving = moving & ~lost & ~unmapped\n\n        is_first",
        "unmapped = unmapped | (found & ~there_seen)\n        moving = moving & ~(crossing & ~found) & ~unmapped\n\n"
        "        is_first",
        (f"{SPANS}test_a_page_that_goes_while_its_link_is_followed_makes_the_window_absent_at_once",),
    ),
    Mutant(
        "a lost page shortens a window that crosses", ACROSS, "crossing.py",
        f"{MARK_LOST}        moving = moving & ~lost & ~unmapped",
        "unmapped = unmapped | (found & ~there_seen)\n        moving = moving & ~(crossing & ~found) & ~unmapped",
        ("test_times_torn.py::test_a_page_that_goes_while_its_link_is_followed_loses_a_window_that_crosses",),
    ),
    Mutant(
        "tails in the walk", RESOLVE, "walks.py",
        "unknown & (row < end) & tail, 6, ends)", "unknown & (row < end) & tail & ~tail, 6, ends)",
        gathers("n-step", "stack zeros"),
    ),
    Mutant(
        "tails in a walk by stretches", RESOLVE, "walks.py",
        "_number(unknown & known & tail)", "_number(unknown & known & tail & ~tail)",
        gathers("pad", "ragged head"),
    ),
    Mutant(
        "tails in a walk that crosses", ACROSS, "crossing.py",
        "tail = is_there & is_tail(region, facts, page, row, is_there)", "tail = is_there & ~is_there",
        gathers("cross", "cross left major"),
    ),
    Mutant(
        "a tail marks its step as cut", ACROSS, "crossing.py",
        "tl.store(last, entry | CUT_BIT, mask=ends_step)", "tl.store(last, entry, mask=ends_step)",
        gathers("cross", "cross left major"),
    ),
    Mutant(
        "a tail before burn-in marks its step as cut", ACROSS, "crossing.py",
        "tl.where(was_tail, CUT_BIT, 0)", "0", gathers("cross", "cross left major"),
    ),
    Mutant(
        "the end of a lane", ACROSS, "crossing.py",
        "is_step & (~is_behind | (other == lane))", "is_step",
        (f"{LANES}[*]",),
    ),
    Mutant(
        "the beginning of a lane", ACROSS, "crossing.py",
        "((step > 0) | (other == lane))", "(step >= 0)",
        (f"{LANES}[5]",),
    ),
)  # fmt: skip

RULES = (*OF_WORDS, *OF_THE_RECHECK, *OF_WALKS)
