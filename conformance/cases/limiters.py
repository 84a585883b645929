"""MinSize, queues and stacks: when draws and inserts are allowed."""

from __future__ import annotations

from conformance.calls import (
    batch,
    begin_insert,
    begin_sample,
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
    one,
    opens,
    queue,
    sample,
    settle,
    size,
    stack,
    update,
)
from conformance.sources import LIMITER, LIMITERS, TABLE, TABLE_STATE, TABLES
from conformance.words import Case, Limit

CASES = (
    # ---- MinSize ---------------------------------------------------------------------------------------------------
    Case(
        "min size lets no draw through below its size",
        "MinSize blocks all sample calls when the table contains less than min_size_to_sample items.",
        LIMITER,
        one(limit=min_size(3)),
        (
            can_sample(1).gives(False),
            insert_all([1, 2]),
            can_sample(1).gives(False),
            insert(3),
            can_sample(1).gives(True),
        ),
    ),
    Case(
        "min size lets any number of draws through from its size on",
        "MinSize accepts all sample calls once the table contains min_size_to_sample items.",
        LIMITER,
        one(limit=min_size(2)),
        (insert_all([1, 2]), can_sample(10_000).gives(True), drain(200).gives(200), can_sample(10_000).gives(True)),
    ),
    Case(
        "min size never makes an insert wait",
        "MinSize blocks sample calls. Inserts are never blocked.",
        LIMITER,
        one(limit=min_size(2), max_size=500),
        (fill(200).gives(200), can_insert(100).gives(True)),
    ),
    Case(
        "a draw that waits for min size is released by the insert that reaches it",
        "Sampling requests block until enough items have been inserted.",
        TABLES,
        one(limit=min_size(2)),
        (insert(5), begin_sample().gives("waits"), insert(5), settle().gives([5])),
    ),
    Case(
        "a draw from an empty table waits for the first insert",
        "A generator of samples blocks until a client writes to the table.",
        LIMITERS,
        one(),
        (begin_sample().gives("waits"), insert(4), settle().gives([4])),
    ),
    Case(
        "deletion below min size stops draws again",
        "MinSize counts the items that the table contains now.",
        LIMITER,
        one(limit=min_size(2)),
        (
            insert_all([1, 2]),
            learn([1, 2]),
            delete([1]),
            can_sample(1).gives(False),
            insert(3),
            can_sample(1).gives(True),
        ),
    ),
    Case(
        "eviction does not bring a table below min size",
        "An eviction makes room for an insert, so the number of items stays the same.",
        LIMITER,
        one(limit=min_size(3), max_size=3),
        (insert_all([1, 2, 3, 4, 5]), size().gives(3), can_sample(1).gives(True)),
    ),
    Case(
        "use counts bring a table below min size",
        "An item that was sampled often enough is deleted, and the limiter counts deletions.",
        TABLE_STATE,
        one(limit=min_size(2), max_times_sampled=1),
        (insert_all([1, 2, 3]), drain(5).gives(2), size().gives(1), can_sample(1).gives(False)),
    ),
    Case(
        "an update is neither an insert nor a draw",
        "Only inserts and deletions change the size. Only draws change the number of samples.",
        LIMITER,
        one(sampler="prioritized", limit=min_size(1)),
        (insert(1, 1.0), sample(1).gives([1]), update({1: 3.0}), size().gives(1), counts().gives([1, 1])),
    ),
    Case(
        "a min size of zero is refused",
        "min_size_to_sample must be a positive integer.",
        LIMITER,
        one(limit=min_size(0)),
        (opens().gives("refused"),),
    ),
    Case(
        "a min size larger than the table",
        "Draws wait until the table has min_size_to_sample items. The table has at most max_size items.",
        LIMITER,
        one(limit=min_size(10), max_size=5),
        (opens().gives("done", relive="refused"), fill(20).gives(20), can_sample(1).gives(False)),
        differs="No draw can ever pass. Reverb makes the table, and its sample calls then block forever. relive"
        " refuses the table and shows the arithmetic.",
    ),
    Case(
        "inserts and draws are counted one by one",
        "The limiter's numbers are completed inserts and completed samples.",
        TABLE_STATE,
        one(max_size=3),
        (insert_all([1, 2, 3, 4, 5]), drain(7).gives(7), counts().gives([5, 7])),
    ),
    Case(
        "a draw that waited counts once",
        "A sample counts when the sample is completed.",
        TABLE_STATE,
        one(limit=min_size(1)),
        (begin_sample(2).gives("waits"), insert(1), settle().gives([1, 1]), counts().gives([1, 2])),
    ),
    # ---- Queue -----------------------------------------------------------------------------------------------------
    Case(
        "a queue hands every item out once, in order",
        "In a queue the oldest item is selected and removed in the same operation.",
        TABLES,
        queue(5),
        (insert_all([4, 2, 9]), sample(5).gives([4, 2, 9, "waits"]), size().gives(0)),
    ),
    Case(
        "a full queue makes inserts wait",
        "If the queue is full, insert calls block until the queue is no longer full.",
        TABLES,
        queue(2),
        (fill(5).gives(2), can_insert(1).gives(False)),
    ),
    Case(
        "a draw from a full queue releases the insert that waits",
        "If the queue is full, insert calls block until the queue is no longer full.",
        TABLES,
        queue(2),
        (
            insert_all([1, 2]),
            begin_insert(3).gives("waits"),
            sample(1).gives([1]),
            settle().gives("done"),
            sample(2).gives([2, 3]),
        ),
    ),
    Case(
        "a draw from an empty queue waits for an insert",
        "If the queue is empty, sample calls block until the queue has at least one item.",
        TABLES,
        queue(2),
        (begin_sample().gives("waits"), insert(8), settle().gives([8]), size().gives(0)),
    ),
    Case(
        "an insert that waits does not push an item out of a full queue",
        "A full queue blocks inserts. Only a draw removes an item.",
        TABLES,
        queue(2),
        (insert_all([1, 2]), insert(3).gives("waits"), sample(2).gives([1, 2])),
    ),
    Case(
        "a queue can be filled again after it was emptied",
        "The window of a queue limits inserts minus samples, and neither of the two alone.",
        LIMITER,
        queue(3),
        (fill(9).gives(3), drain(9).gives(3), fill(9).gives(3), drain(9).gives(3), counts().gives([6, 6])),
    ),
    Case(
        "a queue takes as many as its size at once, and no more",
        "Inserts minus samples stays between min_diff (0) and max_diff (the size).",
        LIMITER,
        queue(3),
        (
            can_insert(3).gives(True),
            can_insert(4).gives(False),
            insert_all([1, 2]),
            can_sample(2).gives(True),
            can_sample(3).gives(False),
        ),
    ),
    Case(
        "a deletion makes no room in the window of a queue",
        "The limiter of a queue counts inserts and samples. A deletion is neither.",
        LIMITER,
        one(sampler="fifo", limit=Limit("queue", 2)),
        (
            opens().gives("done", relive="refused"),
            insert_all([1, 2]),
            sample(1).gives([1]),
            delete([1]),
            fill(5).gives(1),
            size().gives(2),
        ),
        differs="Reverb's limiter counts inserts minus samples. relive's queue counts the items in the queue, so"
        " every item that leaves makes room. relive's queue also requires max_times_sampled, because without a use"
        " count a draw removes no item.",
    ),
    # ---- Stack -----------------------------------------------------------------------------------------------------
    Case(
        "a stack hands every item out once, newest first",
        "Table.stack is a Lifo sampler and remover with one use per item.",
        TABLE,
        stack(5),
        (insert_all([4, 2, 9]), sample(5).gives([9, 2, 4, "waits"])),
    ),
    Case(
        "a stack continues with an item that is pushed between two draws",
        "Lifo selects the newest data.",
        TABLE,
        stack(5),
        (insert_all([1, 2]), sample(1).gives([2]), insert(3), sample(2).gives([3, 1])),
    ),
    Case(
        "a full stack makes inserts wait",
        "The limiter of a stack of n keeps inserts minus samples at n or below.",
        LIMITER,
        stack(2),
        (fill(5).gives(2), drain(1).gives(1), fill(5).gives(1)),
    ),
    # ---- requests of several ---------------------------------------------------------------------------------------
    Case(
        "a request for more than the limiter lets through now",
        "A generator of samples blocks when the client requests an item past the sampling limit. The earlier items"
        " were already returned.",
        TABLE_STATE,
        one(limit=min_size(1), max_times_sampled=1),
        (insert_all([1]), batch(3).gives([1, "waits"], relive="waits"), contents().gives([], relive=[1])),
        differs="relive returns a complete batch or no batch, because a learner's step needs a complete batch. A"
        " waiting draw takes no item before the limiter allows all items. Reverb returns single samples as the"
        " limiter allows them.",
    ),
)
