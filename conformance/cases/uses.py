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
    "Reverb's max_size counts the items in the table. relive's capacity counts rows, which lie in the order of time."
    " The row of a used-up item keeps its place until all earlier rows have gone."
)

CASES = (
    Case(
        "an item goes with the last of its uses",
        "An item that has reached max_times_sampled is deleted before the sample is returned, so the item cannot be"
        " drawn again.",
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
        "Any value of max_times_sampled below 1 is ignored: there is no limit.",
        TABLE,
        one(max_times_sampled=0),
        (insert(1), drain(300).gives(300), size().gives(1)),
    ),
    Case(
        "a use count below zero",
        "Any value of max_times_sampled below 1 is ignored: there is no limit.",
        TABLE,
        one(max_times_sampled=-5),
        (insert(1), drain(50).gives(50), size().gives(1)),
    ),
    Case(
        "with one use each a table is drawn empty, every item once",
        "The limit on the samples of an item is exact.",
        TABLE,
        one(max_times_sampled=1),
        (insert_all(range(6)), drain(9).gives(6), size().gives(0), counts().gives([6, 6])),
    ),
    Case(
        "uses are counted for each item by itself",
        "The limit on the samples of an item is exact.",
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
        "Using up removes items, and leaves the table's counts.",
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
        "max_size counts the items in the table.",
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
        "a draw reports how often its item was sampled, this time included",
        "times_sampled: the number of times the item has been sampled, including this time.",
        SAMPLE_INFO,
        one(max_times_sampled=3),
        (
            insert(1),
            fields(["times_sampled"], 3).gives([[1], [2], [3]], relive="no word"),
        ),
        differs="Reverb sends the count with every sample. relive stores the remaining uses of an item if"
        " max_times_sampled is set. relive does not return this number, because no update of a learner needs the"
        " number.",
    ),
    Case(
        "asking for more draws than there are uses left",
        "can_sample ignores max_times_sampled: with two items of one use each, can_sample still allows three draws.",
        TABLE_STATE,
        one(max_times_sampled=1),
        (insert_all([1, 2]), can_sample(2).gives(True), can_sample(3).gives(True, relive=False)),
        differs="Reverb asks the limiter only. relive draws a complete batch or no batch, so a batch of three from"
        " two items with one use each waits for a third item.",
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
        differs="Items go after one draw, so two samples per insert are impossible. Reverb makes the table. The table"
        " reaches the upper edge of its window, and then moves item by item by the rule of the first fill. relive"
        " refuses the table and shows the arithmetic.",
    ),
    Case(
        "uses in one table are none in another",
        "Every table has its own items, even if the items reference the same data.",
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
        "A deletion takes effect at once, whatever number of uses the item has left.",
        TABLE,
        one(max_times_sampled=3),
        (insert(1), sample(1).gives([1]), delete([1]), insert(2), drain(9).gives(3)),
    ),
)
