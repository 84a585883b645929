"""Random selectors: how often each item is drawn. A chi-square tests each tally."""

from __future__ import annotations

from conformance.calls import (
    delete,
    fields,
    insert,
    insert_all,
    learn,
    one,
    opens,
    sample,
    tally,
    update,
)
from conformance.sources import PRIORITIZED, SAMPLE_INFO, SELECTORS, UNIFORM
from conformance.words import Case, Near, Other, Shares

DRAWS = 4000
EACH_100_TIMES = {str(label): 100 for label in range(10)}

CASES = (
    # ---- Uniform ---------------------------------------------------------------------------------------------------
    Case(
        "uniform draws every item equally often",
        "Uniform samples uniformly among all items.",
        SELECTORS,
        one(),
        (insert_all(range(10)), tally(DRAWS).gives(Shares({label: 1.0 for label in range(10)}))),
    ),
    Case(
        "uniform does not look at priorities",
        "Priority values have no effect on a Uniform selector.",
        UNIFORM,
        one(),
        (insert_all({1: 0.0, 2: 1.0, 3: 100.0}), tally(DRAWS).gives(Shares({1: 1.0, 2: 1.0, 3: 1.0}))),
    ),
    Case(
        "a uniform draw reports one over the number of items",
        "A sample reports the probability of its item, and the number of items, at the time of sampling.",
        SAMPLE_INFO,
        one(),
        (
            insert_all([1]),
            fields(["probability", "table_size"]).gives(Near([[1.0, 1]])),
            insert_all([2, 3, 4]),
            fields(["probability", "table_size"], 2).gives(Near([[0.25, 4], [0.25, 4]])),
        ),
    ),
    Case(
        "uniform shares a deleted item's draws out among the rest",
        "Uniform samples uniformly among all items. A deleted item is not among them.",
        SELECTORS,
        one(),
        (
            insert_all([1, 2, 3, 4]),
            learn([1, 2, 3, 4]),
            delete([2]),
            tally(DRAWS).gives(Shares({1: 1.0, 3: 1.0, 4: 1.0})),
        ),
    ),
    Case(
        "uniform draws the items that the remover left",
        "The table keeps the most recent max_size items, and draws from them with equal probabilities.",
        SELECTORS,
        one(max_size=4),
        (insert_all(range(10)), tally(DRAWS).gives(Shares({label: 1.0 for label in (6, 7, 8, 9)}))),
    ),
    Case(
        "items are drawn with replacement",
        "A drawn item stays in the table unless a use count removes it.",
        SELECTORS,
        one(),
        (insert(7), sample(20).gives([7] * 20)),
    ),
    Case(
        "how often equal items come in one batch",
        "Every draw selects among all items, independently of the earlier draws.",
        UNIFORM,
        one(),
        (
            insert_all(range(10)),
            tally(1000).gives(Other(EACH_100_TIMES), relive=EACH_100_TIMES),  # by chance: once in 10 ** 12
        ),
        differs="Reverb's draws are independent of each other. relive draws a batch of n from n equal parts of the"
        " total mass, one item from each part, at permuted positions. Every item has the same expectation as with"
        " independent draws, with less variance. A batch of n from n items with equal probabilities contains each"
        " item once.",
    ),
    # ---- Prioritized -----------------------------------------------------------------------------------------------
    Case(
        "prioritized draws in proportion to priority at exponent 1",
        "The probability of an item is proportional to its priority raised to the exponent.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert_all({1: 1.0, 2: 2.0, 3: 5.0}), tally(DRAWS).gives(Shares({1: 1.0, 2: 2.0, 3: 5.0}))),
    ),
    Case(
        "prioritized flattens priorities at exponent one half",
        "The probability of an item is proportional to its priority raised to the exponent.",
        PRIORITIZED,
        one(sampler="prioritized", exponent=0.5),
        (insert_all({1: 1.0, 2: 4.0, 3: 16.0}), tally(DRAWS).gives(Shares({1: 1.0, 2: 2.0, 3: 4.0}))),
    ),
    Case(
        "prioritized sharpens priorities at exponent 2",
        "The probability of an item is proportional to its priority raised to the exponent.",
        PRIORITIZED,
        one(sampler="prioritized", exponent=2.0),
        (insert_all({1: 1.0, 2: 2.0, 3: 3.0}), tally(DRAWS).gives(Shares({1: 1.0, 2: 4.0, 3: 9.0}))),
    ),
    Case(
        "prioritized is uniform at exponent 0",
        "An exponent of zero gives each key the same probability.",
        PRIORITIZED,
        one(sampler="prioritized", exponent=0.0),
        (insert_all({1: 0.1, 2: 1.0, 3: 50.0}), tally(DRAWS).gives(Shares({1: 1.0, 2: 1.0, 3: 1.0}))),
    ),
    Case(
        "an item of priority zero at exponent 0",
        "An exponent of zero gives each key the same probability, except for keys with zero priority.",
        PRIORITIZED,
        one(sampler="prioritized", exponent=0.0),
        (
            insert_all({1: 0.0, 2: 1.0, 3: 9.0}),
            tally(DRAWS).gives(Shares({1: 0.0, 2: 1.0, 3: 1.0}), relive=Shares({1: 1.0, 2: 1.0, 3: 1.0})),
        ),
        differs="Reverb makes an exception for priority zero. In relive, the mass of an item is priority ** exponent,"
        " as numpy and Python compute it. 0 ** 0 is 1, so exponent 0 is uniform over all live items.",
    ),
    Case(
        "an item of priority zero is never drawn if others have more",
        "Samples are proportional to stored priorities. An item of priority zero has no share.",
        SELECTORS,
        one(sampler="prioritized"),
        (insert_all({1: 0.0, 2: 1.0, 3: 3.0}), tally(DRAWS).gives(Shares({1: 0.0, 2: 1.0, 3: 3.0}))),
    ),
    Case(
        "a table whose priorities are all zero",
        "If all keys have priority zero, the draw is uniform.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (
            insert_all({1: 0.0, 2: 0.0}),
            tally(DRAWS).gives(Shares({1: 1.0, 2: 1.0}), relive="waits"),
        ),
        differs="A priority of zero means that an item must not be drawn. Reverb draws such items uniformly if the"
        " table has no other items. relive waits, as for an empty table, until an item has a priority above zero.",
    ),
    Case(
        "a prioritized draw reports its mass over the total",
        "A sample reports the probability of its item at the time of sampling.",
        SAMPLE_INFO,
        one(sampler="prioritized", exponent=0.5, max_times_sampled=1),
        (insert_all({1: 4.0}), fields(["label", "probability", "table_size"]).gives(Near([[1, 1.0, 1]]))),
    ),
    Case(
        "probabilities follow the exponent and the items that are there",
        "A sample reports the probability of its item at the time of sampling.",
        SAMPLE_INFO,
        one(sampler="prioritized", exponent=0.5),
        (insert_all({1: 0.0, 2: 9.0}), fields(["label", "probability", "table_size"]).gives(Near([[2, 1.0, 2]]))),
    ),
    Case(
        "an updated priority changes the shares at once",
        "The priority of an item is the last priority that was given.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (
            insert_all({1: 1.0, 2: 1.0, 3: 2.0}),
            learn([1, 2, 3]),
            update({1: 6.0, 3: 1.0}),
            tally(DRAWS).gives(Shares({1: 6.0, 2: 1.0, 3: 1.0})),
        ),
    ),
    Case(
        "prioritized shares a deleted item's draws out in proportion",
        "Probabilities are shares of the priorities of the items in the table.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (
            insert_all({1: 1.0, 2: 3.0, 3: 6.0}),
            learn([1, 2, 3]),
            delete([3]),
            tally(DRAWS).gives(Shares({1: 1.0, 2: 3.0})),
        ),
    ),
    Case(
        "prioritized shares an evicted item's draws out in proportion",
        "An item that the remover removes also leaves the sampler.",
        PRIORITIZED,
        one(sampler="prioritized", max_size=3),
        (
            insert_all({1: 100.0, 2: 1.0, 3: 2.0, 4: 4.0}),
            tally(DRAWS).gives(Shares({2: 1.0, 3: 2.0, 4: 4.0})),
        ),
    ),
    Case(
        "prioritized keeps small shares next to large shares",
        "Priorities are numbers. A share may be as small as a thousandth.",
        PRIORITIZED,
        one(sampler="prioritized"),
        (insert_all({1: 0.01, 2: 1.0, 3: 2.0}), tally(20000).gives(Shares({1: 0.01, 2: 1.0, 3: 2.0}))),
    ),
    Case(
        "a negative exponent",
        "The exponent is a non-negative number.",
        PRIORITIZED,
        one(sampler="prioritized", exponent=-1.0),
        (
            opens().gives("done", relive="refused"),
            insert_all({1: 2.0, 2: 4.0}),
            tally(DRAWS).gives(Shares({1: 2.0, 2: 1.0})),
        ),
        differs="The documentation gives a negative exponent no meaning. Reverb accepts a negative exponent silently."
        " relive refuses the exponent when the index is made.",
    ),
)
