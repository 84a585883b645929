"""Emptying a table, and saving a table."""

from __future__ import annotations

from conformance.calls import (
    can_sample,
    contents,
    counts,
    delete,
    drain,
    fill,
    insert,
    insert_all,
    learn,
    min_size,
    one,
    ratio,
    reset,
    sample,
    save_and_load,
    size,
    tally,
    two,
    update,
)
from conformance.sources import CHECKPOINTS, CLIENT, TABLE_STATE
from conformance.words import Case, Shares

COUNTS_GO_ON = (
    " relive's clear removes all steps, as delete does. relive's counters count since the table was made, so a replay"
    " ratio describes the whole run."
)

CASES = (
    Case(
        "a reset empties a table",
        "reset clears all items of the table.",
        CLIENT,
        one(),
        (insert_all([1, 2, 3]), reset(), size().gives(0), sample(1).gives(["waits"])),
    ),
    Case(
        "a table can be filled again after a reset",
        "reset clears all items of the table.",
        CLIENT,
        one(max_size=3),
        (insert_all([1, 2, 3]), reset(), insert_all([4, 5]), contents().gives([4, 5])),
    ),
    Case(
        "after a reset draws wait for min size again",
        "reset clears all items of the table and resets its rate limiter.",
        CLIENT,
        one(limit=min_size(2)),
        (
            insert_all([1, 2]),
            reset(),
            insert(3),
            can_sample(1).gives(False),
            insert(4),
            can_sample(1).gives(True),
        ),
    ),
    Case(
        "keys from before a reset are ignored",
        "A key that cannot be found is ignored.",
        CLIENT,
        one(sampler="prioritized"),
        (insert(1, 1.0), learn([1]), reset(), insert(2, 1.0), update({1: 4.0}), delete([1]), size().gives(1)),
    ),
    Case(
        "the numbers of the limiter after a reset",
        "reset resets the rate limiter.",
        CLIENT,
        one(),
        (insert_all([1, 2]), drain(3).gives(3), reset(), insert(3), counts().gives([1, 0], relive=[3, 3])),
        differs="Reverb's limiter begins at zero again." + COUNTS_GO_ON,
    ),
    Case(
        "the window of a ratio after a reset",
        "All items are removed and the rate limiter is in its initial state.",
        TABLE_STATE,
        one(limit=ratio(1.0, 2, 2.0)),
        (
            insert_all([1, 1]),
            drain(9).gives(2),
            reset(),
            fill(9).gives(4),
            drain(9).gives(4),
        ),
    ),
    # ---- written down ----------------------------------------------------------------------------------------------
    Case(
        "a saved table has its items when it is loaded",
        "A checkpoint stores the state and content of a server.",
        CHECKPOINTS,
        one(),
        (insert_all([1, 2, 3]), save_and_load(), contents().gives([1, 2, 3])),
    ),
    Case(
        "a saved table has its priorities when it is loaded",
        "A checkpoint stores the state and content of a server.",
        CHECKPOINTS,
        one(sampler="prioritized"),
        (insert_all({1: 1.0, 2: 3.0}), save_and_load(), tally(4000).gives(Shares({1: 1.0, 2: 3.0}))),
    ),
    Case(
        "a saved limiter goes on where it was when it is loaded",
        "A checkpoint stores the metadata that the server needs to continue.",
        CHECKPOINTS,
        one(limit=ratio(1.0, 2, 2.0)),
        (insert_all([1, 1]), drain(1).gives(1), save_and_load(), drain(9).gives(1)),
    ),
    Case(
        "a saved table has its order when it is loaded",
        "A checkpoint stores the state and content of a server.",
        CHECKPOINTS,
        one(sampler="fifo", max_size=3),
        (insert_all([3, 1, 2]), save_and_load(), sample(1).gives([3]), insert(4), sample(1).gives([1])),
    ),
    Case(
        "a saved use count goes on when it is loaded",
        "A checkpoint stores the state and content of a server.",
        CHECKPOINTS,
        one(max_times_sampled=3),
        (insert(1), sample(2).gives([1, 1]), save_and_load(), sample(2).gives([1, "waits"])),
    ),
    Case(
        "resetting one table of two",
        "reset affects only the table that the call names.",
        CLIENT,
        two(),
        (insert_all([1, 2]), reset("left"), size("left").gives(0), size("right").gives(2, relive=0)),
        differs="Reverb's tables have their own items over shared data. relive's indexes are views of the same steps."
        " clear removes the steps, and with them the items of every index.",
    ),
)
