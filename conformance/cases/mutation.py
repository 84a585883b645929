"""Updates of priorities, and deletions."""

from __future__ import annotations

from conformance.calls import (
    contents,
    delete,
    insert,
    insert_all,
    learn,
    mutate,
    mutate_key,
    one,
    sample,
    size,
    tally,
    update,
)
from conformance.sources import CLIENT, PRIORITIZED, TABLE_STATE
from conformance.words import Case, Shares

NEVER_GIVEN = (
    " Reverb ignores every key that is not in the table. relive distinguishes two kinds of key. A key of a removed"
    " item is ignored and counted as stale. A key that this table never returned is a mistake, and relive refuses the"
    " key."
)

CASES = (
    Case(
        "an update takes an item out of the draws by priority zero",
        "The probability is proportional to the priority. Priority zero has probability zero.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert_all({1: 1.0, 2: 1.0}), learn([1, 2]), update({1: 0.0}), sample(6).gives([2] * 6), size().gives(2)),
    ),
    Case(
        "an update brings an item of priority zero back",
        "The probability is proportional to the last priority given.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (
            insert(1, 1.0),
            sample(1).gives([1]),
            update({1: 0.0}),
            insert(2, 1.0),
            sample(3).gives([2, 2, 2]),
            update({1: 1.0, 2: 0.0}),
            sample(3).gives([1, 1, 1]),
        ),
    ),
    Case(
        "the last of several updates counts",
        "Actions are executed in the order of their arrival.",
        CLIENT,
        one(sampler="prioritized"),
        (
            insert_all({1: 1.0, 2: 2.0}),
            learn([1, 2]),
            update({1: 50.0}),
            update({1: 0.5}),
            update({1: 6.0}),
            tally(4000).gives(Shares({1: 3.0, 2: 1.0})),
        ),
    ),
    Case(
        "one call updates many items",
        "updates maps keys to new priorities.",
        CLIENT,
        one(sampler="prioritized"),
        (
            insert_all({label: 1.0 for label in range(8)}),
            learn(range(8)),
            update({label: float(label) for label in range(8)}),
            tally(4000).gives(Shares({label: float(label) for label in range(8)})),
        ),
    ),
    Case(
        "a call without updates or deletions changes nothing",
        "Both arguments are optional.",
        CLIENT,
        one(sampler="prioritized"),
        (insert_all({1: 1.0, 2: 0.0}), mutate({}, []), size().gives(2), sample(1).gives([1])),
    ),
    Case(
        "an update and a deletion of one item in one call",
        "Updates are executed before deletions.",
        CLIENT,
        one(sampler="prioritized"),
        (
            insert(1, 1.0),
            sample(1).gives([1]),
            insert(2, 1.0),
            mutate({1: 100.0}, [1]),
            size().gives(1),
            sample(3).gives([2, 2, 2]),
        ),
    ),
    Case(
        "a deleted item is not drawn again",
        "deletes: keys of the items to delete.",
        CLIENT,
        one(),
        (insert_all([1, 2, 3]), learn([1, 2, 3]), delete([1, 3]), size().gives(1), sample(4).gives([2, 2, 2, 2])),
    ),
    Case(
        "deleting everything leaves an empty table that waits",
        "deletes: keys of the items to delete.",
        CLIENT,
        one(),
        (insert_all([1, 2]), learn([1, 2]), delete([1, 2]), size().gives(0), sample(1).gives(["waits"])),
    ),
    Case(
        "a second deletion of an item is ignored",
        "A key that cannot be found is ignored.",
        CLIENT,
        one(),
        (insert_all([1, 2]), learn([1, 2]), delete([1]), delete([1]), contents().gives([2])),
    ),
    Case(
        "an update of a deleted item is ignored",
        "A key that cannot be found is ignored.",
        CLIENT,
        one(sampler="prioritized"),
        (insert_all({1: 1.0, 2: 1.0}), learn([1, 2]), delete([1]), update({1: 5.0}), size().gives(1)),
    ),
    Case(
        "an update of an item that is gone does not stop the other updates",
        "A key that cannot be found is ignored.",
        CLIENT,
        one(sampler="prioritized"),
        (
            insert_all({1: 1.0, 2: 1.0, 3: 1.0}),
            learn([1, 2, 3]),
            delete([1]),
            update({1: 5.0, 2: 0.0, 3: 2.0}),
            sample(4).gives([3, 3, 3, 3]),
        ),
    ),
    Case(
        "an update of a key that was never returned",
        "A key that cannot be found is ignored.",
        CLIENT,
        one(sampler="prioritized"),
        (insert(1, 1.0), mutate_key(123_456_789, 5.0).gives("done", relive="refused"), size().gives(1)),
        differs=NEVER_GIVEN.strip(),
    ),
    Case(
        "a deletion of a key that was never returned",
        "A key that cannot be found is ignored.",
        CLIENT,
        one(),
        (insert(1), mutate_key(123_456_789, None).gives("done", relive="refused"), size().gives(1)),
        differs=NEVER_GIVEN.strip(),
    ),
    Case(
        "a negative priority in an update",
        "The priority must be non-negative.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert(1, 1.0), learn([1]), update({1: -1.0}).gives("refused"), sample(1).gives([1])),
    ),
    Case(
        "an update to a value that is no number",
        "The priority must not be NaN.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert(1, 1.0), learn([1]), update({1: float("nan")}).gives("refused"), sample(1).gives([1])),
    ),
    Case(
        "an update with one bad priority among good ones",
        "Operations are applied in order, and may be applied partially when an error occurs.",
        TABLE_STATE,
        one(sampler="prioritized"),
        (
            insert(1, 1.0),
            sample(1).gives([1]),
            update({1: 0.0}),
            insert(2, 1.0),
            sample(1).gives([2]),
            update({1: 1.0, 2: -1.0}).gives("refused"),
            update({2: 0.0}),
            sample(1).gives([1], relive=["waits"]),
        ),
        differs="Reverb applies the updates before the bad priority. relive checks all updates of a call before it"
        " applies the first update, so bad input changes nothing.",
    ),
    Case(
        "the same data inserted twice is two items",
        "An item belongs to its table. Its data may also be the data of another item.",
        TABLE_STATE,
        one(),
        (insert(7), insert(7), size().gives(2), learn([7]), delete([7]), size().gives(1), contents().gives([7])),
    ),
)
