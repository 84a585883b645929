"""Trajectories in tables: sizes, limiters, priorities, uses and removal are of items, not of steps."""

from __future__ import annotations

from conformance.calls import (
    contents,
    counted,
    delete,
    item,
    item_of_last,
    learn,
    min_size,
    one,
    sample,
    size,
    step,
    two,
    update,
    walk,
    write,
)
from conformance.sources import CLIENT, TABLE, TABLES, TRAJECTORY_WRITER
from conformance.words import Case, Column, Limit

a, b = Column("a"), Column("b")

CASES = (
    # ---- what a table does with them -------------------------------------------------------------------------------
    Case(
        "a table counts items, not steps",
        "The size of a table counts items, whatever data the items reference.",
        TABLE,
        one(),
        (write(), *counted(9), item({"x": a[-9:]}), item({"x": a[-2:]}), size().gives(2)),
    ),
    Case(
        "max_size counts items, not steps",
        "The size of a table counts items, whatever data the items reference.",
        TABLE,
        one(max_size=2),
        (
            write(),
            *counted(4),
            item({"x": a[0:2]}),
            item({"x": a[1:3]}),
            item({"x": a[-2:]}),
            contents().gives([{"x": [1, 2]}, {"x": [2, 3]}]),
        ),
    ),
    Case(
        "min size counts items, not steps",
        "min_size_to_sample is a number of items.",
        TABLE,
        one(limit=min_size(2)),
        (
            write(),
            *counted(6),
            item({"x": a[-3:]}),
            sample(1).gives(["waits"]),
            item({"x": a[-3:]}),
            sample(1).gives([{"x": [3, 4, 5]}]),
        ),
    ),
    Case(
        "an item is whole although its neighbour over the same steps was evicted",
        "A data element is only removed when there is no item that references it.",
        TABLES,
        one(max_size=1),
        (write(), *counted(3), item({"x": a[0:2]}), item({"x": a[-2:]}), contents().gives([{"x": [1, 2]}])),
    ),
    Case(
        "an item of old steps is kept whole next to many newer items",
        "An item's data stays as long as the item is in the table.",
        TABLES,
        one(sampler="max_heap", remover="min_heap", max_size=2),
        (
            write(2),
            *counted(2),
            item({"x": a[-2:]}, priority=9.0),
            *[call for t in range(2, 30) for call in (step(a=t, b=0), item({"x": a[-2:]}, priority=1.0))],
            sample(1).gives([{"x": [0, 1]}]),
        ),
    ),
    Case(
        "an item of steps that very many newer ones followed",
        "An item's data stays as long as the item is in the table.",
        TABLES,
        one(),
        (
            write(2),
            *counted(2),
            item({"x": a[-2:]}),
            walk(1200),
            contents().gives([{"x": [0, 1]}], relive=[]),
        ),
        differs="Reverb keeps the data of items, however old the data is. relive's capacity counts steps. The oldest"
        " steps go, and an item ends when the first row that the item needs has gone. The capacity alone therefore"
        " bounds the memory.",
    ),
    Case(
        "trajectories have priorities of their own",
        "priority: determines the sample probability of the new item.",
        TRAJECTORY_WRITER,
        one(sampler="prioritized"),
        (
            write(),
            *counted(3),
            item({"x": a[-1:]}, priority=0.0),
            item({"x": a[-2:]}, priority=1.0),
            sample(3).gives([{"x": [1, 2]}] * 3),
        ),
    ),
    Case(
        "a trajectory's priority is updated by its key",
        "updates maps keys of items to new priorities.",
        CLIENT,
        one(sampler="prioritized"),
        (
            write(),
            *counted(3),
            item({"x": a[0:2]}),
            item({"x": a[1:]}),
            learn([0, 1]),
            update({0: 0.0}),
            sample(3).gives([{"x": [1, 2]}] * 3),
        ),
    ),
    Case(
        "a trajectory is deleted by its key, and those over the same steps stay whole",
        "A data element is only removed when there is no item that references it.",
        TABLES,
        one(),
        (
            write(),
            *counted(4),
            item({"x": a[0:3]}),
            item({"x": a[1:]}),
            learn([0, 1]),
            delete([0]),
            contents().gives([{"x": [1, 2, 3]}]),
        ),
    ),
    Case(
        "a trajectory of one table is deleted there alone",
        "Keys belong to the items of the table that the call names.",
        CLIENT,
        two(),
        (
            write(),
            *counted(3),
            item({"x": a[-2:]}, table="left"),
            item({"x": a[-3:]}, table="right"),
            learn([1], "left"),
            delete([1], "left"),
            size("left").gives(0),
            contents("right").gives([{"x": [0, 1, 2]}]),
        ),
    ),
    Case(
        "trajectories have use counts of their own",
        "max_times_sampled counts the uses of an item, and not of its steps.",
        TABLE,
        one(max_times_sampled=1),
        (
            write(),
            *counted(3),
            item({"x": a[-2:]}),
            item({"x": a[-2:]}),
            sample(3).gives([{"x": [1, 2]}, {"x": [1, 2]}, "waits"]),
        ),
    ),
    Case(
        "a queue of trajectories",
        "A queue of whole sequences, as in IMPALA and PPO.",
        TABLES,
        one(sampler="fifo", max_size=2, max_times_sampled=1, limit=Limit("queue", 2)),
        (
            write(),
            *counted(2),
            item({"x": a[-2:]}),
            *counted(2, 2),
            item({"x": a[-2:]}),
            *counted(2, 4),
            sample(1).gives([{"x": [0, 1]}]),
            item({"x": a[-2:]}),
            sample(2).gives([{"x": [2, 3]}, {"x": [4, 5]}]),
        ),
    ),
    Case(
        "the older writer makes items of whole steps",
        "num_timesteps: the number of most recently added steps that the item references.",
        CLIENT,
        one(),
        (item_of_last(2), contents().gives([{"a": [1, 2]}])),
    ),
    Case(
        "the older writer refuses items of no steps",
        "num_timesteps must be a positive integer.",
        CLIENT,
        one(),
        (item_of_last(0).gives("refused"), size().gives(0)),
    ),
)
