"""Removers and max_size: which item goes when a table is full."""

from __future__ import annotations

from conformance.calls import (
    contents,
    delete,
    insert,
    insert_all,
    learn,
    one,
    opens,
    sample,
    size,
    update,
)
from conformance.sources import HEAP, PRIORITIZED, SELECTORS, TABLE, TABLE_STATE, TABLES
from conformance.words import Case, Other

CASES = (
    Case(
        "a table never has more items than its size",
        "The size of a table is limited to max_size.",
        TABLE,
        one(max_size=4),
        (insert_all(range(4)), size().gives(4), insert_all(range(4, 50)), size().gives(4)),
    ),
    Case(
        "a fifo remover takes the oldest",
        "By setting remover=Fifo() the oldest item is removed first.",
        TABLES,
        one(max_size=3),
        (insert_all([5, 1, 4, 2, 3]), contents().gives([2, 3, 4])),
    ),
    Case(
        "a fifo remover does not look at priorities",
        "The priority is ignored by a Fifo selector.",
        SELECTORS,
        one(sampler="prioritized", max_size=2),
        (insert_all({1: 100.0, 2: 1.0, 3: 2.0}), contents().gives([2, 3])),
    ),
    Case(
        "a fifo remover does not look at updates or draws",
        "First in, first out: insertion alone gives an item its place.",
        SELECTORS,
        one(sampler="prioritized", max_size=2),
        (insert_all({1: 1.0, 2: 1.0}), learn([1, 2]), update({1: 9.0}), insert(3), contents().gives([2, 3])),
    ),
    Case(
        "a table of one item keeps the newest under a fifo remover",
        "The size of a table is limited to max_size, which may be 1.",
        TABLE,
        one(max_size=1),
        (insert_all([1, 2, 3]), contents().gives([3]), sample(3).gives([3, 3, 3])),
    ),
    Case(
        "a table of size zero is refused",
        "max_size must be a positive integer.",
        TABLE,
        one(max_size=0),
        (opens().gives("refused"),),
    ),
    Case(
        "a deleted item makes room",
        "An item is removed if an insert would make the number of items exceed max_size.",
        TABLES,
        one(max_size=3),
        (insert_all([1, 2, 3]), learn([2]), delete([2]), insert(4), contents().gives([1, 3, 4], relive=[3, 4])),
        differs="Reverb's max_size counts the items in the table. relive's capacity counts rows, which lie in the"
        " order of time. The row of a deleted item keeps its place until all earlier rows have gone. A row is"
        " therefore found by its place, and no row is ever moved.",
    ),
    Case(
        "the oldest goes next when an older item is deleted",
        "The remover chooses among the items in the table.",
        TABLES,
        one(max_size=3),
        (
            insert_all([1, 2, 3]),
            learn([1]),
            delete([1]),
            insert(4),
            contents().gives([2, 3, 4]),
            insert(5),
            contents().gives([3, 4, 5]),
        ),
    ),
    Case(
        "an evicted item is gone to updates and deletions",
        "Keys that cannot be found are ignored.",
        TABLE_STATE,
        one(sampler="prioritized", max_size=1),
        (
            insert(1),
            learn([1]),
            insert(2),
            update({1: 7.0}),
            delete([1]),
            size().gives(1),
            sample(2).gives([2, 2]),
        ),
    ),
    Case(
        "a lifo remover takes the newest, which is the item just inserted",
        "The new item is inserted before the remover runs, so the remover may choose the new item.",
        TABLE_STATE,
        one(remover="lifo", max_size=2),
        (insert_all([1, 2, 3, 4]), contents().gives([1, 2])),
    ),
    Case(
        "a min heap remover takes the lowest priority",
        "MinHeap selects the data with the lowest priority.",
        SELECTORS,
        one(remover="min_heap", max_size=3),
        (insert_all({1: 5.0, 2: 1.0, 3: 3.0, 4: 4.0}), contents().gives([1, 3, 4])),
    ),
    Case(
        "a min heap remover refuses room to a new item of the lowest priority",
        "The new item is inserted before the remover runs, so the remover may choose the new item.",
        TABLE_STATE,
        one(remover="min_heap", max_size=2),
        (insert_all({1: 5.0, 2: 4.0, 3: 1.0}), contents().gives([1, 2])),
    ),
    Case(
        "a min heap remover follows updates",
        "Updates of a priority reach both the remover and the sampler.",
        TABLE_STATE,
        one(remover="min_heap", max_size=2),
        (insert_all({1: 5.0, 2: 4.0}), learn([1, 2]), update({1: 1.0}), insert(3, 2.0), contents().gives([2, 3])),
    ),
    Case(
        "a min heap remover breaks a tie for the item inserted longest ago",
        "Among items that share a priority, the selector takes the item that was inserted or updated least recently.",
        HEAP,
        one(remover="min_heap", max_size=2),
        (insert_all({1: 2.0, 2: 2.0, 3: 2.0}), contents().gives([2, 3])),
    ),
    Case(
        "a max heap remover takes the highest priority",
        "MaxHeap selects the data with the highest priority.",
        SELECTORS,
        one(remover="max_heap", max_size=2),
        (insert_all({1: 5.0, 2: 1.0, 3: 3.0}), contents().gives([2, 3])),
    ),
    Case(
        "a prioritized remover never takes an item of priority zero if others have more",
        "Any selector can remove. A Prioritized remover removes in proportion to priority.",
        PRIORITIZED,
        one(remover="prioritized", max_size=3),
        (
            insert_all({1: 0.0, 2: 0.0}),
            insert_all({label: 1.0 for label in range(10, 40)}),
            size().gives(3),
            learn([1, 2]),
            update({1: 1.0, 2: 1.0}),
        ),
    ),
    Case(
        "a uniform remover takes any item",
        "Any selector can remove. A Uniform remover removes every item with the same probability.",
        SELECTORS,
        one(remover="uniform", max_size=30),  # 30 survivors that happen to be the newest: once in five million
        (insert_all(range(200)), size().gives(30), contents().gives(Other(list(range(170, 200))))),
    ),
)
