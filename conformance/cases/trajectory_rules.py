"""The writer of trajectories: its buffer, its end, its refusals and its waits."""

from __future__ import annotations

from conformance.calls import (
    contents,
    counted,
    drain,
    end_episode,
    episode_steps,
    flush,
    item,
    one,
    ratio,
    size,
    step,
    write,
)
from conformance.sources import CLIENT, TRAJECTORY_WRITER
from conformance.words import Case, Column

a, b = Column("a"), Column("b")
NO_BUFFER = (
    "Reverb makes items from a buffer in the writer. relive's rows are in the table. Any process can make an item of"
    " any rows that are still in the table, by their keys. relive has no buffer, and no option for the length of a"
    " buffer."
)
LANES_GO_ON = (
    "Reverb's history ends with the episode, unless the steps are kept. In relive, the call that makes an item names"
    " its rows. A lane continues over the end of an episode, and `first` of a window's rows marks where an episode"
    " begins."
)
WHOLE_ROWS = (
    "A row of relive has every column of its spec, and the spec gives the place of each column. relive refuses a step"
    " without one of the columns. To mark a value as missing, use another column."
)
WAITS_ITSELF = (
    "Reverb's create_item queues the item, and flush reports the result. relive's create_items itself waits for the"
    " limiter. A call that reached its deadline has made no item, and no item appears later."
)
NO_COUNT = (
    "A writer of relive has no such count. Each row stores its episode_step, and a batch contains this column under"
    " that name."
)
BY_KEYS = (
    "In relive, later values of a step are late columns of the spec. table.complete() takes them by the step's key,"
    " in any order. A second value of any other column belongs to the next step."
)

CASES = (
    # ---- how far back ----------------------------------------------------------------------------------------------
    Case(
        "an item reaches back over the steps that the writer keeps",
        "num_keep_alive_refs is the largest number of steps that a trajectory can span.",
        CLIENT,
        one(),
        (write(3), *counted(8), item({"x": a[-3:]}), contents().gives([{"x": [5, 6, 7]}])),
    ),
    Case(
        "an item that reaches further back than the writer keeps is refused",
        "A reference that was popped from the buffer can no longer be referenced by new items.",
        CLIENT,
        one(),
        (write(3), *counted(8), item({"x": a[-4:]}).gives("refused", relive="done"), size().gives(0, relive=1)),
        differs=NO_BUFFER,
    ),
    Case(
        "one column that reaches too far refuses the whole item",
        "All data references of a trajectory must be alive.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(3),
            *counted(8),
            item({"x": a[-1], "y": b[-6]}).gives("refused", relive="done"),
            size().gives(0, relive=1),
        ),
        differs=NO_BUFFER,
    ),
    Case(
        "a writer that keeps nothing is refused",
        "num_keep_alive_refs must be a positive integer.",
        CLIENT,
        one(),
        (write(0).gives("refused", relive="no word"),),
        differs=NO_BUFFER,
    ),
    Case(
        "a writer goes on after an item that was refused",
        "An invalid trajectory is refused when the trajectory is made. No part of the trajectory is sent.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(3),
            *counted(5),
            item({"x": a[-9]}).gives("refused"),
            item({"x": a[-2:]}),
            contents().gives([{"x": [3, 4]}]),
        ),
    ),
    # ---- episodes --------------------------------------------------------------------------------------------------
    Case(
        "history begins again with an episode",
        "end_episode clears the buffers, so that history is empty again.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(3),
            end_episode(),
            *counted(2, 10),
            item({"x": a[:]}),
            contents().gives([{"x": [10, 11]}], relive=[{"x": [0, 1, 2, 10, 11]}]),
        ),
        differs=LANES_GO_ON,
    ),
    Case(
        "an item over the end of an episode is refused",
        "end_episode clears the buffers. Earlier steps cannot be referenced.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(3),
            end_episode(),
            *counted(1, 10),
            item({"x": a[-2:]}).gives("refused", relive="done"),
            size().gives(0, relive=1),
        ),
        differs=LANES_GO_ON,
    ),
    Case(
        "an item over the end of an episode whose steps were kept",
        "Buffers should only be kept when trajectories spanning multiple episodes are used.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(3),
            end_episode(keep_steps=True),
            *counted(1, 10),
            item({"x": a[-2:]}),
            contents().gives([{"x": [2, 10]}]),
        ),
    ),
    Case(
        "an item made before the end of its episode is stored",
        "end_episode blocks until all pending items are in their tables.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            *counted(3),
            item({"x": a[-3:]}, stored=False),
            end_episode(),
            contents().gives([{"x": [0, 1, 2]}]),
        ),
    ),
    Case(
        "the writer counts the steps of the episode",
        "episode_steps: number of append calls since end_episode.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(2),
            *counted(4),
            episode_steps().gives(4, relive="no word"),
            end_episode(),
            episode_steps().gives(0, relive="no word"),
            *counted(1),
            episode_steps().gives(1, relive="no word"),
        ),
        differs=NO_COUNT,
    ),
    # ---- steps by parts --------------------------------------------------------------------------------------------
    Case(
        "a step in two parts",
        "With partial_step, the call does not complete the step. The next call fills in the remaining fields.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            step(a=0, b=0),
            step(partial=True, a=1),
            step(b=10),
            item({"x": a[-2:], "y": b[-2:]}),
            contents().gives([{"x": [0, 1], "y": [0, 10]}]),
        ),
    ),
    Case(
        "an item may use a step of which a part is still to come",
        "Trajectories may include the fields available first, e.g. to select the next action.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            step(a=0, b=0),
            step(partial=True, a=1),
            item({"x": a[-2:]}),
            step(b=10),
            contents().gives([{"x": [0, 1]}]),
        ),
    ),
    Case(
        "a field given twice in one step is refused",
        "The same field must not be provided more than once in the same step.",
        TRAJECTORY_WRITER,
        one(),
        (write(), step(a=0, b=0), step(partial=True, a=1), step(a=2).gives("refused", relive="done")),
        differs=BY_KEYS,
    ),
    Case(
        "a part of a step is not counted as a step",
        "episode_steps does not count partial calls.",
        TRAJECTORY_WRITER,
        one(),
        (write(), step(partial=True, a=0), step(b=0), episode_steps().gives(1, relive="no word")),
        differs=NO_COUNT,
    ),
    # ---- columns that come and go ----------------------------------------------------------------------------------
    Case(
        "a column that begins later keeps its steps aligned with the others",
        "New fields are padded in all preceding steps, so that equal positions are equal steps.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            step(a=0).gives("done", relive="refused"),
            step(a=1, b=10),
            step(a=2, b=20),
            item({"x": a[1:], "y": b[1:]}),
            contents().gives([{"x": [1, 2], "y": [10, 20]}], relive=[{"x": [2], "y": [20]}]),
        ),
        differs=WHOLE_ROWS,
    ),
    Case(
        "an item of steps that a column does not have is refused",
        "A trajectory cannot contain references to data that was not given.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            step(a=0).gives("done", relive="refused"),
            step(a=1, b=10),
            item({"x": a[-2:], "y": b[-2:]}).gives("refused", relive="done"),
            size().gives(0, relive=1),
        ),
        differs=WHOLE_ROWS,
    ),
    Case(
        "a step may leave a column out",
        "Fields that are missing in a step are None in history.",
        TRAJECTORY_WRITER,
        one(),
        (
            write(),
            step(a=0, b=0),
            step(a=1).gives("done", relive="refused"),
            step(a=2, b=20),
            item({"x": a[-3:], "y": b[-1]}),
            contents().gives([{"x": [0, 1, 2], "y": 20}], relive=[{"x": [0, 2], "y": 20}]),
        ),
        differs=WHOLE_ROWS,
    ),
    # ---- what is refused -------------------------------------------------------------------------------------------
    Case(
        "a step of another type than those before is refused",
        "Types of fields are extracted from the first step and used to validate later ones.",
        TRAJECTORY_WRITER,
        one(),
        (write(), step(a=0), step(a=0.5).gives("refused")),
    ),
    Case(
        "a step of another shape than those before is refused",
        "Shapes of fields are extracted from the first step and used to validate later ones.",
        TRAJECTORY_WRITER,
        one(),
        (write(), step(a=[0, 0]), step(a=[[1, 1], [1, 1]]).gives("refused")),
    ),
    Case(
        "an item that does not fit the signature of its table is refused",
        "Items are validated against the table's signature before they are sent.",
        CLIENT,
        one(signature={"x": ("int64", (2,))}),
        (write(), *counted(4), item({"x": a[-3:]}).gives("refused"), size().gives(0)),
    ),
    Case(
        "an item that fits the signature of its table is stored",
        "Items are validated against the table's signature before they are sent.",
        CLIENT,
        one(signature={"x": ("int64", (2,))}),
        (write(), *counted(4), item({"x": a[-2:]}), contents().gives([{"x": [2, 3]}])),
    ),
    Case(
        "an item for a table that is not there is refused",
        "table: name of the table to insert the item into.",
        TRAJECTORY_WRITER,
        one(),
        (write(), *counted(2), item({"x": a[-1]}, table="another").gives("refused"), size().gives(0)),
    ),
    # ---- waiting ---------------------------------------------------------------------------------------------------
    Case(
        "making an item does not wait for the limiter, flushing does",
        "create_item does not block and does not wait for the rate limiter. flush waits until items are confirmed.",
        TRAJECTORY_WRITER,
        one(limit=ratio(1.0, 1, 1.0)),
        (
            write(),
            *counted(1),
            item({"x": a[-1]}),
            item({"x": a[-1]}),
            item({"x": a[-1]}, stored=False).gives("done", relive="waits"),
            flush().gives("waits", relive="done"),
            size().gives(2),
        ),
        differs=WAITS_ITSELF,
    ),
    Case(
        "an item whose flush timed out is stored when the limiter lets it in",
        "Although flush stops waiting, the insertion of the items continues in the background.",
        TRAJECTORY_WRITER,
        one(limit=ratio(1.0, 1, 1.0)),
        (
            write(),
            *counted(1),
            item({"x": a[-1]}),
            item({"x": a[-1]}),
            item({"x": a[-1]}, stored=False).gives("done", relive="waits"),
            flush().gives("waits", relive="done"),
            drain(1).gives(1),
            flush(),
            size().gives(3, relive=2),
        ),
        differs=WAITS_ITSELF,
    ),
)
