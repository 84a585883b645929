"""Several tables over the same data: in relive, several indexes over the same steps."""

from __future__ import annotations

from conformance.calls import (
    can_insert,
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
    opens,
    ratio,
    sample,
    size,
    tally,
    two,
    update,
)
from conformance.sources import CLIENT, TABLE, TABLES
from conformance.words import Case, Setup, Shares, TableSetup

VIEWS = "relive's indexes are views of the same steps, and every step is stored once. "

CASES = (
    Case(
        "one insert is an item of two tables",
        "Multiple items can reference the same data element, even in different tables.",
        TABLES,
        two(),
        (insert_all([1, 2]), contents("left").gives([1, 2]), contents("right").gives([1, 2])),
    ),
    Case(
        "each table has a selector of its own",
        "Tables define their own sample and removal strategies.",
        TABLES,
        two({}, {"sampler": "prioritized"}),
        (
            insert_all({1: 1.0, 2: 5.0}),
            tally(4000, "left").gives(Shares({1: 1.0, 2: 1.0})),
            tally(4000, "right").gives(Shares({1: 1.0, 2: 5.0})),
        ),
    ),
    Case(
        "each table has a limiter of its own for draws",
        "Tables define their own rate limiter.",
        TABLES,
        two({"limit": min_size(1)}, {"limit": min_size(3)}),
        (
            insert_all([1, 2]),
            can_sample(1, "left").gives(True),
            can_sample(1, "right").gives(False),
            insert(3),
            can_sample(1, "right").gives(True),
        ),
    ),
    Case(
        "draws from one table do not count in another",
        "Tables define their own rate limiter.",
        TABLES,
        two(),
        (insert(1), drain(5, "left").gives(5), counts("left").gives([1, 5]), counts("right").gives([1, 0])),
    ),
    Case(
        "an update in one table leaves the other's priority",
        "An update affects only the table that the call names.",
        CLIENT,
        two({"sampler": "prioritized"}, {"sampler": "prioritized"}),
        (
            insert_all({1: 1.0, 2: 1.0}),
            learn([1, 2], "left"),
            update({1: 3.0}, "left"),
            tally(4000, "left").gives(Shares({1: 3.0, 2: 1.0})),
            tally(4000, "right").gives(Shares({1: 1.0, 2: 1.0})),
        ),
    ),
    Case(
        "a full window in one of two tables",
        "An insert waits for the limiter of its table.",
        TABLE,
        two({}, {"limit": ratio(1.0, 1, 1.0)}),
        (
            fill(9).gives(2),
            can_insert(1, "left").gives(True, relive=False),
            can_insert(1, "right").gives(False),
            drain(1, "right").gives(1),
            fill(9).gives(1),
        ),
        differs="Reverb fills each table separately: the left table admits its item while the right table makes its"
        " item wait. " + VIEWS + "A step is admitted when the limiters of all indexes admit the step.",
    ),
    Case(
        "an insert into one of two tables",
        "An item is inserted into the tables that the call names.",
        CLIENT,
        two(),
        (
            insert(1, 1.0, ["left"]).gives("done", relive="no word"),
            size("left").gives(1, relive=0),
            size("right").gives(0),
        ),
        differs=VIEWS + "A step is an item of every index. The index's configuration, and not each write, says which"
        " items the index has.",
    ),
    Case(
        "a deletion from one of two tables",
        "Keys belong to the table that the call names. A data element lives while an item of any table references it.",
        TABLES,
        two(),
        (
            insert_all([1, 2]),
            learn([1, 2], "left"),
            delete([1], "left"),
            contents("left").gives([2]),
            contents("right").gives([1, 2], relive=[2]),
        ),
        differs=VIEWS + "delete removes the step, and with the step the items of every index.",
    ),
    Case(
        "tables of different sizes over the same data",
        "The size of a table, in items, is limited to its own max_size.",
        TABLE,
        two({"max_size": 2}, {"max_size": 4}),
        (insert_all(range(6)), contents("left").gives([4, 5]), contents("right").gives([2, 3, 4, 5])),
    ),
    Case(
        "tables with different removers over the same data",
        "Two tables with different removers come to contain different data.",
        TABLE,
        two({"max_size": 2}, {"max_size": 2, "remover": "lifo"}),
        (insert_all(range(4)), contents("left").gives([2, 3]), contents("right").gives([0, 1])),
    ),
    Case(
        "a table without a name is refused",
        "name must be nonempty.",
        TABLE,
        Setup((TableSetup(name=""),)),
        (opens().gives("refused"),),
    ),
    Case(
        "no table at all is refused",
        "At least one table must be provided.",
        TABLE,
        Setup(()),
        (opens().gives("refused"),),
    ),
    Case(
        "data outlives its item in one table while another still has it",
        "A data element is only removed when no item references it.",
        TABLES,
        two({"max_times_sampled": 1}, {}),
        (
            insert_all([1, 2]),
            drain(9, "left").gives(2),
            size("left").gives(0),
            contents("right").gives([1, 2]),
            sample(0, "right").gives([]),
        ),
    ),
)
