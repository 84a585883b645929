"""The numbers that the core hands out, against docs/format.md: what readers outside of the core are built on.

The numbers are written here once more on purpose. A number that differs is a new format, and needs a new version.
"""

from __future__ import annotations

import numpy as np

import relive
from relive import _core
from relive.core.streams import number_on_stream

DOCUMENTED = {
    # The header.
    "magic": int.from_bytes(b"relive\n\0", "little"),
    "format_version": 14,
    "header_bytes": 31_872,
    "policy_version_at": 29_520,
    "policy_version_bytes": 4,
    # Keys, page words and refs: generation << 18 | moves << 2 | state.
    "leaf_bits": 51,
    "word_bytes": 8,
    "state_bits": 2,
    "state_mask": 3,
    "page_free": 0,
    "page_open": 1,
    "page_closed": 2,
    "page_retired": 3,
    "move_bits": 16,
    "generation_shift": 18,
    # Page frames, page records, tails.
    "frame_number_bytes": 4,
    "page_bytes": 96,
    "page_range_at": 0,
    "range_end_shift": 32,
    "page_prev_at": 8,
    "page_next_at": 16,
    "page_lane_uid_at": 32,
    "page_lane_slot_at": 56,
    "tail_word_bytes": 8,
    "tail_word_rows": 64,
    # Lanes and marks.
    "lane_bytes": 64,
    "lane_state_at": 0,
    "lane_uid_at": 8,
    "mark_bytes": 16,
    "mark_version_at": 0,
    "mark_discount_at": 4,
    "mark_priority_at": 8,
    "mark_lane_at": 12,
    # The head of a row, and the number of its start cell.
    "head_bytes": 4,
    "terminated_bit": 0x80000000,
    "truncated_bit": 0x40000000,
    "discount_bit": 0x20000000,
    "late_bit": 0x10000000,
    "step_mask": 0x0FFFFFFF,
    "cell_number_at": 4,
    "cell_number_bytes": 4,
    "no_cell": 0xFFFFFFFF,
    # Trees and leaf states.
    "fanout": 8,
    "most_levels": 16,
    "node_bytes": 8,
    "leaf_state_bytes": 2,
    "most_uses": 0xFFF9,
    "state_dropped": 0xFFFA,
    "state_unfilled": 0xFFFB,
    "state_pending": 0xFFFC,
    "state_awaiting": 0xFFFD,
    "state_removed": 0xFFFE,
    "state_ended": 0xFFFF,
    "no_priority": 0x7FC00000,
}

ALL_BITS = 2**64 - 1
RANDOM = {
    "golden": 0x9E3779B97F4A7C15,
    "first_shift": 30,
    "first_factor": 0xBF58476D1CE4E5B9,
    "second_shift": 27,
    "second_factor": 0x94D049BB133111EB,
    "third_shift": 31,
    "permutation_from": 1 << 40,
}
PUBLISHED = [  # the sequence of SplitMix64 from the state 1234567
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_region_format_is_the_documented_one() -> None:
    assert _core.region_format() == DOCUMENTED


def test_parts_of_words_fit_together() -> None:
    f = _core.region_format()
    assert f["generation_shift"] == f["state_bits"] + f["move_bits"] and f["state_mask"] == (1 << f["state_bits"]) - 1
    bits = [f["terminated_bit"], f["truncated_bit"], f["discount_bit"], f["late_bit"]]
    assert sum(bits) | f["step_mask"] == (1 << 8 * f["head_bytes"]) - 1 and sum(bits) & f["step_mask"] == 0
    assert f["state_ended"] == (1 << 8 * f["leaf_state_bytes"]) - 1


def test_structs_of_a_table_are_those_of_the_format() -> None:
    spec = relive.StepSpec({"observation": relive.ArraySpec((), "float32", kind="state")})
    with relive.Table(spec, 4000) as table:
        geometry = table.core.geometry
    f, structs = _core.region_format(), geometry["structs"]
    assert geometry["format_version"] == f["format_version"]
    assert structs["page"] == {
        "num_bytes": f["page_bytes"],
        "range": f["page_range_at"],
        "prev": f["page_prev_at"],
        "next": f["page_next_at"],
        "lane_uid": f["page_lane_uid_at"],
        "lane_slot": f["page_lane_slot_at"],
    }
    assert structs["lane"] == {"num_bytes": f["lane_bytes"], "state": f["lane_state_at"], "uid": f["lane_uid_at"]}
    assert structs["mark"] == {
        "num_bytes": f["mark_bytes"],
        "policy_version": f["mark_version_at"],
        "discount": f["mark_discount_at"],
        "lane": f["mark_lane_at"],
    }
    assert structs["header"] == {"num_bytes": f["header_bytes"], "policy_version": f["policy_version_at"]}


def test_random_format_is_that_of_splitmix64() -> None:
    assert _core.random_format() == RANDOM


def test_splitmix64_is_the_published_sequence() -> None:
    states = [(1234567 + k * RANDOM["golden"]) & ALL_BITS for k in range(len(PUBLISHED) + 1)]
    assert [_core.splitmix64(state) for state in states[:-1]] == PUBLISHED
    mixed = _core.mix_words(np.array(states[1:], np.uint64).reshape(5, 1)[::-1])
    assert mixed.dtype == np.uint64 and mixed.shape == (5, 1) and mixed[::-1, 0].tolist() == PUBLISHED


def test_a_draw_on_one_stream_can_have_the_random_numbers_of_a_draw_on_another() -> None:
    for seed, own, stream, number in ((0, 0, 2**39, 2**40), (ALL_BITS, 3, 2**62 + 1, 7), (5, 4, 4, 9)):
        there = number_on_stream(seed, own, stream, number)
        assert 0 <= there <= ALL_BITS and (there == number) == (own == stream)
        for attempt in (0, 1, 2**32):
            assert _core.random_base(seed, own, there, attempt) == _core.random_base(seed, stream, number, attempt)


def test_random_base_is_where_a_call_begins() -> None:
    seed, stream, call = 7, 8, ALL_BITS
    base = _core.splitmix64(seed)
    for word in (stream, call, 0):
        base = _core.splitmix64(base ^ word)
    assert _core.random_base(seed, stream, call, 0) == base
    rows = list(range(9))
    for row in range(8, 0, -1):
        state = (base + (RANDOM["permutation_from"] + row) * RANDOM["golden"]) & ALL_BITS
        other = (_core.splitmix64(state) >> 32) * (row + 1) >> 32
        rows[row], rows[other] = rows[other], rows[row]
    assert _core.permutation(seed, stream, call, 9).tolist() == rows
