"""The allowed values of a priority."""

from __future__ import annotations

from conformance.calls import fields, insert, insert_all, learn, one, sample, size, tally, update
from conformance.sources import CLIENT, PRIORITIZED, SAMPLE_INFO, TRAJECTORY_WRITER, UNIFORM
from conformance.words import Case, Near, Shares

CASES = (
    Case(
        "an item keeps the priority that it was inserted with",
        "priority: the priority of the item at the time of sampling.",
        SAMPLE_INFO,
        one(sampler="prioritized"),
        (insert(1, 2.5), fields(["label", "priority"]).gives([[1, 2.5]], relive="no word")),
        differs="Reverb sends the priority with every sample. A batch of relive contains the probability and the"
        " number of live items, which its weights need.",
    ),
    Case(
        "a priority is a double",
        "Priorities are stored as doubles.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert(1, 1e300).gives("done", relive="refused"), size().gives(1, relive=0)),
        differs="relive stores priorities as float32. relive refuses a priority beyond the range of float32, and"
        " stores nothing.",
    ),
    Case(
        "priorities far apart in size",
        "Rounding errors may appear if the relative size of probabilities is large. The larger probabilities dominate.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert_all({1: 1e-12, 2: 1e12}), tally(500).gives(Shares({1: 0.0, 2: 1.0}))),
    ),
    Case(
        "very small priorities are shares of each other",
        "Probabilities are priorities over their total, whatever the total.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert_all({1: 1e-20, 2: 3e-20}), tally(4000).gives(Shares({1: 1.0, 2: 3.0}))),
    ),
    Case(
        "very large priorities are shares of each other",
        "Probabilities are priorities over their total, whatever the total.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert_all({1: 1e20, 2: 3e20}), tally(4000).gives(Shares({1: 1.0, 2: 3.0}))),
    ),
    Case(
        "a whole number is a priority",
        "A priority is a number.",
        TRAJECTORY_WRITER,
        one(sampler="prioritized"),
        (insert(1, 3), fields(["label", "probability"]).gives(Near([[1, 1.0]]))),
    ),
    Case(
        "an insert without a priority",
        "priorities must contain at least one item.",
        CLIENT,
        one(sampler="prioritized"),
        (insert(1, None).gives("refused", relive="done"), size().gives(0, relive=1)),
        differs="In Reverb, data enters a table by its priority. In relive, the index may choose the first priority:"
        " the largest priority so far, a number, or no priority until update_priorities gives one.",
    ),
    Case(
        "a priority given to a uniform table",
        "Priority values have no effect on a Uniform selector.",
        UNIFORM,
        one(),
        (insert(1, 5.0), learn([1]), update({1: 2.0}).gives("done", relive="refused")),
        differs="A uniform table does not use priorities. Reverb still stores a priority with each item. relive"
        " refuses the update, because a learner that sends priorities expects them to count.",
    ),
    Case(
        "a negative priority of a new item",
        "The priority must be non-negative.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (
            insert(1, 1.0),
            insert(2, -1.0).gives("waits", relive="refused"),
            insert(3, 1.0).gives("waits", relive="done"),
        ),
        differs="Reverb's worker of the table ends with an error that no client sees. This insert and all later"
        " inserts wait forever. relive refuses the one row and continues.",
    ),
    Case(
        "a new item whose priority is no number",
        "The priority must not be NaN.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert(1, float("nan")).gives("refused"), size().gives(0)),
    ),
    Case(
        "a table goes on after an insert that was refused",
        "A refused insert does not count as an insert.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (
            insert(1, 1.0),
            insert(2, float("nan")).gives("refused"),
            insert(3, 0.0),
            size().gives(2),
            sample(1).gives([1]),
        ),
    ),
)
