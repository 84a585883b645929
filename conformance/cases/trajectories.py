"""Trajectories: items that are windows over steps, each column with a slice of its own."""

from __future__ import annotations

from conformance.calls import (
    contents,
    counted,
    item,
    one,
    size,
    two,
    write,
)
from conformance.sources import CLIENT, TABLE, TABLES, TRAJECTORY_WRITER
from conformance.words import Case, Column

a, b = Column("a"), Column("b")
IN_ORDER_OF_TIME = (
    "A window of relive consists of rows in the order of time, a stride apart, which are copied as runs of memory."
    " Index the batch to get another order or repeated rows."
)

CASES = (
    Case(
        "a trajectory of one value",
        "An index into the history of a column is one step, without a time axis.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(3), item({"x": a[-1]}), contents().gives([{"x": 2}])),
    ),
    Case(
        "a slice of one value has a time axis",
        "A slice of the history is stacked, whatever its length is.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(3), item({"x": a[-1:]}), contents().gives([{"x": [2]}])),
    ),
    Case(
        "a trajectory of the last steps",
        "History takes Python's slices: [-3:] are the last three steps.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(5), item({"x": a[-3:]}), contents().gives([{"x": [2, 3, 4]}])),
    ),
    Case(
        "a trajectory of everything so far",
        "History takes Python's slices: [:] is the whole history.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(4), item({"x": a[:]}), contents().gives([{"x": [0, 1, 2, 3]}])),
    ),
    Case(
        "a trajectory by positions from the front",
        "A position counts from the first step of the episode.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(4), item({"x": a[0], "y": a[1:3]}), contents().gives([{"x": 0, "y": [1, 2]}])),
    ),
    Case(
        "a slice from the front that takes in the newest step is refused",
        "History takes Python's slices. Version 0.14.0 treats a stop that equals the number of steps as no stop.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(4),
            item({"x": a[1:4]}).gives("refused", relive="done"),
            item({"x": a[1:]}),
            contents().gives([{"x": [1, 2, 3]}], relive=[{"x": [1, 2, 3]}] * 2),
        ),
        differs="In relive, the slice is Python's own slice of a list of keys.",
    ),
    Case(
        "a trajectory that ends before the newest step",
        "History takes Python's slices: [-4:-1] omits the last step.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(6), item({"x": a[-4:-1]}), contents().gives([{"x": [2, 3, 4]}])),
    ),
    Case(
        "a trajectory with a stride",
        "History takes Python's slices: [-5::2] is every second step.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(6), item({"x": a[-5::2]}), contents().gives([{"x": [1, 3, 5]}])),
    ),
    Case(
        "a stride over everything",
        "History takes Python's slices: [::3].",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(7), item({"x": a[::3]}), contents().gives([{"x": [0, 3, 6]}])),
    ),
    Case(
        "a trajectory backwards",
        "History takes Python's slices: a negative step reverses the order.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(4),
            item({"x": a[::-1]}).gives("done", relive="refused"),
            contents().gives([{"x": [3, 2, 1, 0]}], relive=[]),
        ),
        differs=IN_ORDER_OF_TIME,
    ),
    Case(
        "a trajectory of chosen steps",
        "A list of positions makes a column of these steps: [[0, -1]] are the first and the last.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(5), item({"x": a[[0, -1]]}), contents().gives([{"x": [0, 4]}])),
    ),
    Case(
        "a step may stand in a trajectory twice",
        "A column is a list of references to data, and may contain a reference twice.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(3),
            item({"x": a[[-1, -2, -1]]}).gives("done", relive="refused"),
            contents().gives([{"x": [2, 1, 2]}], relive=[]),
        ),
        differs=IN_ORDER_OF_TIME,
    ),
    Case(
        "columns of one trajectory have slices of their own",
        "A trajectory of five states and the four actions between them.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(6),
            item({"states": a[-5:], "actions": b[-5:-1]}),
            contents().gives([{"states": [1, 2, 3, 4, 5], "actions": [10, 20, 30, 40]}]),
        ),
    ),
    Case(
        "columns of one trajectory may have strides of their own",
        "The structure of a trajectory does not need to match that of the steps.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(8),
            item({"slow": a[-7::3], "quick": b[-2:], "now": a[-1]}),
            contents().gives([{"slow": [1, 4, 7], "quick": [60, 70], "now": 7}]),
        ),
    ),
    Case(
        "one column may stand in a trajectory under two names",
        "The structure of a trajectory does not need to match that of the steps.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(4),
            item({"state": a[-3:-1], "next_state": a[-2:]}),
            contents().gives([{"state": [1, 2], "next_state": [2, 3]}]),
        ),
    ),
    Case(
        "a trajectory may leave columns out",
        "Only the columns that a trajectory names are sent.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(3), item({"x": b[-2:]}), contents().gives([{"x": [10, 20]}])),
    ),
    Case(
        "a stack of frames and one action",
        "Frames -4 to -1 and the newest action make the input of a DQN.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(6),
            item({"frames": a[-4:], "action": b[-1]}),
            contents().gives([{"frames": [2, 3, 4, 5], "action": 50}]),
        ),
    ),
    # ---- several items ---------------------------------------------------------------------------------------------
    Case(
        "windows that overlap share their steps",
        "Multiple items can reference the same data element.",
        TABLES,
        one(),
        (
            write(),
            *counted(3),
            item({"x": a[-3:]}),
            *counted(1, 3),
            item({"x": a[-3:]}),
            *counted(1, 4),
            item({"x": a[-3:]}),
            contents().gives([{"x": [0, 1, 2]}, {"x": [1, 2, 3]}, {"x": [2, 3, 4]}]),
        ),
    ),
    Case(
        "several items of one step",
        "create_item may be called any number of times between two appends.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(4),
            item({"x": a[-1:]}),
            item({"x": a[-2:]}),
            item({"x": a[-4:]}),
            size().gives(3),
            contents().gives([{"x": [0, 1, 2, 3]}, {"x": [2, 3]}, {"x": [3]}]),
        ),
    ),
    Case(
        "items of different lengths in one table",
        "Each item has its own length, unless the signature sets one.",
        TABLE,
        one(),
        (
            write(),
            *counted(2),
            item({"x": a[:]}),
            *counted(3, 2),
            item({"x": a[:]}),
            contents().gives([{"x": [0, 1]}, {"x": [0, 1, 2, 3, 4]}]),
        ),
    ),
    Case(
        "transitions in one table and sequences in another, of the same steps",
        "One table is prioritized replay for transitions, and another table is a queue of sequences of length 3.",
        TABLES,
        two(),
        (
            write(),
            *counted(3),
            item({"x": a[-2:]}, table="left"),
            item({"x": a[-3:]}, table="right"),
            contents("left").gives([{"x": [1, 2]}]),
            contents("right").gives([{"x": [0, 1, 2]}]),
        ),
    ),
    Case(
        "windows of 20 steps, one every 5",
        "A trajectory may start at every step, or at some steps.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(20),
            *counted(20),
            item({"x": a[-20:]}),
            *counted(5, 20),
            item({"x": a[-20:]}),
            contents().gives([{"x": list(range(20))}, {"x": list(range(5, 25))}]),
        ),
    ),
    Case(
        "an item that is given no data after all",
        "Steps alone make no item. create_item puts data into a table.",
        CLIENT,
        one(),
        (write(), *counted(5), size().gives(0)),
    ),
)
