"""max_times_sampled: how often an item is drawn before it goes."""

from __future__ import annotations

from conformance.calls import (
    can_sample,
    counts,
    delete,
    drain,
    fields,
    fill,
    insert,
    insert_all,
    one,
    opens,
    ratio,
    sample,
    size,
    two,
    update,
)
from conformance.sources import LIMITER, SAMPLE_INFO, TABLE, TABLE_STATE, TABLES
from conformance.words import Case

KEEPS_ITS_PLACE = (
    "Reverb's max_size counts the items that are there. relive's capacity counts rows, which lie in their order of"
    " time: one that was used up keeps its place until those before it have gone."
)

CASES = (
    Case(
        "an item goes with the last of its uses",
        "An item that has reached max_times_sampled is deleted before it is returned, so that it cannot"
        " be drawn again.",
        TABLE_STATE,
        one(max_times_sampled=3),
        (
            insert(1),
            sample(2).gives([1, 1]),
            size().gives(1),
            sample(1).gives([1]),
            size().gives(0),
            sample(1).gives(["waits"]),
        ),
    ),
    Case(
        "zero uses means no limit",
        "Any value of max_times_sampled below 1 is ignored and means that there is no limit.",
        TABLE,
        one(max_times_sampled=0),
        (insert(1), drain(300).gives(300), size().gives(1)),
    ),
    Case(
        "a use count below zero",
        "Any value of max_times_sampled below 1 is ignored and means that there is no limit.",
        TABLE,
        one(max_times_sampled=-5),
        (insert(1), drain(50).gives(50), size().gives(1)),
    ),
    Case(
        "with one use each a table is drawn empty, every item once",
        "The number of times an item can be sampled before it is deleted is exact.",
        TABLE,
        one(max_times_sampled=1),
        (insert_all(range(6)), drain(9).gives(6), size().gives(0), counts().gives([6, 6])),
    ),
    Case(
        "uses are counted for each item by itself",
        "The number of times an item can be sampled before it is deleted is exact.",
        TABLE,
        one(max_times_sampled=2),
        (insert_all(range(5)), drain(99).gives(10), size().gives(0)),
    ),
    Case(
        "an update does not give uses back",
        "An update changes the priority and nothing else.",
        TABLE,
        one(sampler="prioritized", max_times_sampled=2),
        (insert(1), sample(1).gives([1]), update({1: 9.0}), sample(2).gives([1, "waits"])),
    ),
    Case(
        "a used-up item is gone to updates",
        "A key that cannot be found is ignored.",
        TABLE,
        one(sampler="prioritized", max_times_sampled=1),
        (insert(1), sample(1).gives([1]), update({1: 5.0}), size().gives(0), sample(1).gives(["waits"])),
    ),
    Case(
        "a table that was used up goes on with new items",
        "Items are removed, not the table's counts.",
        TABLE,
        one(max_times_sampled=1),
        (insert(1), drain(5).gives(1), insert(2), sample(2).gives([2, "waits"]), counts().gives([2, 2])),
    ),
    Case(
        "the remover may take an item that has uses left",
        "Items are removed at the maximum capacity, or at the maximum number of samples.",
        TABLES,
        one(max_size=2, max_times_sampled=5),
        (insert_all([1, 2]), insert(3), drain(99).gives(10)),
    ),
    Case(
        "a used-up item makes room",
        "max_size counts the items that are there.",
        TABLES,
        one(sampler="prioritized", max_size=2, max_times_sampled=1),
        (insert_all({1: 0.0, 2: 1.0}), sample(1).gives([2]), insert(3, 0.0), size().gives(2, relive=1)),
        differs=KEEPS_ITS_PLACE,
    ),
    Case(
        "prioritized draws go on to lighter items as heavier ones are used up",
        "A used-up item is deleted from the sampler.",
        TABLE,
        one(sampler="prioritized", max_times_sampled=2),
        (insert_all({1: 1e-6, 2: 1e6}), sample(2).gives([2, 2]), sample(3).gives([1, 1, "waits"])),
    ),
    Case(
        "a draw tells how often its item was sampled, this time included",
        "times_sampled: the number of times the item has been sampled, including this time.",
        SAMPLE_INFO,
        one(max_times_sampled=3),
        (
            insert(1),
            fields(["times_sampled"], 3).gives([[1], [2], [3]], relive="no word"),
        ),
        differs="Reverb sends the count with every sample. relive keeps what is left of an item's uses where"
        " max_times_sampled asks for it, and hands it to nobody: no update of a learner needs it.",
    ),
    Case(
        "asking for more draws than there are uses left",
        "can_sample ignores max_times_sampled: with two items of one use each it still says that three can be drawn.",
        TABLE_STATE,
        one(max_times_sampled=1),
        (insert_all([1, 2]), can_sample(2).gives(True), can_sample(3).gives(True, relive=False)),
        differs="Reverb asks the limiter alone. relive draws a batch whole or not at all, so that three draws of two"
        " items with one use each wait for a third.",
    ),
    Case(
        "more samples per insert than uses",
        "The limiter and max_times_sampled are set independently.",
        LIMITER,
        one(max_times_sampled=1, limit=ratio(2.0, 1, 4.0)),
        (
            opens().gives("done", relive="refused"),
            fill(9).gives(3),
            drain(9).gives(3),
            fill(9).gives(1),
            drain(9).gives(1),
            fill(9).gives(1),
        ),
        differs="Items go after one draw, so that two samples an insert can never be had. Reverb makes the table, which"
        " comes to stand at the upper edge of its window and moves item by item by the rule of the first fill; relive"
        " refuses it with the arithmetic.",
    ),
    Case(
        "uses in one table are none in another",
        "Every table has items of its own, even if they reference the same data.",
        TABLES,
        two({"max_times_sampled": 1}, {"max_times_sampled": 2}),
        (
            insert(1),
            sample(2, "left").gives([1, "waits"]),
            size("left").gives(0),
            size("right").gives(1),
            sample(3, "right").gives([1, 1, "waits"]),
        ),
    ),
    Case(
        "a deleted item takes its unused draws with it",
        "Deletion is at once, whatever is left of an item's uses.",
        TABLE,
        one(max_times_sampled=3),
        (insert(1), sample(1).gives([1]), delete([1]), insert(2), drain(9).gives(3)),
    ),
)
