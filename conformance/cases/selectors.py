"""Deterministic selectors: which item is drawn."""

from __future__ import annotations

from conformance.calls import (
    contents,
    delete,
    fields,
    insert,
    insert_all,
    learn,
    mutate,
    one,
    sample,
    update,
)
from conformance.sources import FIFO, HEAP, LIFO, SAMPLE_INFO, SELECTORS
from conformance.words import Case, Near

NO_PRIORITIES = (
    "In relive, an index whose sampler ignores priorities stores no priorities and refuses their update, because a"
    " learner that sends priorities expects them to count. The item's place is the same in both systems."
)

CASES = (
    # ---- Fifo ------------------------------------------------------------------------------------------------------
    Case(
        "fifo draws the oldest item again and again",
        "Fifo returns the item that was inserted first until that item is deleted.",
        FIFO,
        one(sampler="fifo"),
        (insert_all([1, 2, 3]), sample(3).gives([1, 1, 1])),
    ),
    Case(
        "fifo goes on to the next item when the oldest is deleted",
        "Fifo returns the item that was inserted first until that item is deleted.",
        FIFO,
        one(sampler="fifo"),
        (insert_all([1, 2, 3]), sample(1).gives([1]), delete([1]), sample(2).gives([2, 2])),
    ),
    Case(
        "fifo goes on to the next item when the oldest is evicted",
        "An item that the remover removes also leaves the sampler.",
        FIFO,
        one(sampler="fifo", max_size=2),
        (insert_all([1, 2]), sample(1).gives([1]), insert(3), sample(1).gives([2])),
    ),
    Case(
        "fifo does not look at priorities",
        "The priority is ignored by a Fifo selector.",
        FIFO,
        one(sampler="fifo"),
        (insert_all({1: 0.5, 2: 9.0, 3: 0.1}), sample(2).gives([1, 1])),
    ),
    Case(
        "fifo keeps an item's place when its priority is updated",
        "An update is a no-op for a Fifo selector.",
        FIFO,
        one(sampler="fifo"),
        (
            insert_all([1, 2]),
            sample(1).gives([1]),
            update({1: 50.0}).gives("done", relive="refused"),
            sample(1).gives([1]),
        ),
        differs=NO_PRIORITIES,
    ),
    Case(
        "fifo with one use each hands items out in the order of their insertion",
        "The oldest item is selected and removed in the same operation.",
        SELECTORS,
        one(sampler="fifo", max_times_sampled=1),
        (insert_all([3, 1, 2]), sample(3).gives([3, 1, 2])),
    ),
    Case(
        "a fifo draw reports probability 1",
        "A sample reports the probability of its item at the time of sampling. A deterministic selector has one"
        " choice, so the probability is 1.",
        SAMPLE_INFO,
        one(sampler="fifo"),
        (insert_all([1, 2]), fields(["label", "probability"]).gives(Near([[1, 1.0]]))),
    ),
    # ---- Lifo ------------------------------------------------------------------------------------------------------
    Case(
        "lifo draws the newest item again and again",
        "Lifo returns the item that was inserted last until that item is deleted.",
        LIFO,
        one(sampler="lifo"),
        (insert_all([1, 2, 3]), sample(3).gives([3, 3, 3])),
    ),
    Case(
        "lifo goes over to each newer item",
        "Lifo selects the newest data.",
        SELECTORS,
        one(sampler="lifo"),
        (insert(1), sample(1).gives([1]), insert(2), sample(1).gives([2]), insert(3), sample(1).gives([3])),
    ),
    Case(
        "lifo goes back to the item before when the newest is deleted",
        "Lifo returns the item that was inserted last until that item is deleted.",
        LIFO,
        one(sampler="lifo"),
        (insert_all([1, 2]), sample(1).gives([2]), delete([2]), sample(1).gives([1])),
    ),
    Case(
        "lifo skips a deleted item in the middle",
        "A deleted item leaves the selector, whatever its place was.",
        LIFO,
        one(sampler="lifo"),
        (
            insert(1),
            insert(2),
            sample(1).gives([2]),
            insert(3),
            delete([2]),
            sample(1).gives([3]),
            delete([3]),
            sample(1).gives([1]),
        ),
    ),
    Case(
        "lifo keeps an item's place when its priority is updated",
        "An update is a no-op for a Lifo selector.",
        LIFO,
        one(sampler="lifo"),
        (
            insert(1),
            sample(1).gives([1]),
            insert(2),
            update({1: 50.0}).gives("done", relive="refused"),
            sample(1).gives([2]),
        ),
        differs=NO_PRIORITIES,
    ),
    Case(
        "lifo with one use each hands items out in reverse",
        "A Lifo selector with one use per item makes a stack.",
        SELECTORS,
        one(sampler="lifo", max_times_sampled=1),
        (insert_all([3, 1, 2]), sample(3).gives([2, 1, 3])),
    ),
    # ---- MaxHeap ---------------------------------------------------------------------------------------------------
    Case(
        "max heap draws the highest priority again and again",
        "MaxHeap selects the data with the highest priority.",
        SELECTORS,
        one(sampler="max_heap"),
        (insert_all({1: 1.0, 2: 5.0, 3: 3.0}), sample(3).gives([2, 2, 2])),
    ),
    Case(
        "max heap follows a new highest item",
        "MaxHeap selects the data with the highest priority.",
        SELECTORS,
        one(sampler="max_heap"),
        (insert_all({1: 2.0, 2: 1.0}), sample(1).gives([1]), insert(3, 2.5), sample(1).gives([3])),
    ),
    Case(
        "max heap lets go of an item whose priority was lowered",
        "An update moves the item to where its new priority belongs.",
        HEAP,
        one(sampler="max_heap"),
        (insert_all({1: 5.0, 2: 4.0, 3: 3.0}), sample(1).gives([1]), update({1: 3.5}), sample(1).gives([2])),
    ),
    Case(
        "max heap takes up an item whose priority was raised",
        "An update moves the item to where its new priority belongs.",
        HEAP,
        one(sampler="max_heap"),
        (insert(1, 1.0), learn([1]), insert(2, 2.0), sample(1).gives([2]), update({1: 3.0}), sample(1).gives([1])),
    ),
    Case(
        "max heap breaks a tie for the item inserted longest ago",
        "Among items that share a priority, the selector takes the item that was inserted or updated least recently.",
        HEAP,
        one(sampler="max_heap"),
        (insert_all({1: 1.0, 2: 7.0, 3: 7.0}), sample(2).gives([2, 2])),
    ),
    Case(
        "max heap counts an update as recent when it breaks a tie",
        "Among items that share a priority, the selector takes the item that was inserted or updated least recently.",
        HEAP,
        one(sampler="max_heap"),
        (insert_all({1: 7.0, 2: 7.0}), sample(1).gives([1]), update({1: 7.0}), sample(1).gives([2])),
    ),
    Case(
        "max heap goes on to the second highest when the highest is deleted",
        "A deleted item leaves the selector.",
        HEAP,
        one(sampler="max_heap"),
        (insert_all({1: 1.0, 2: 3.0, 3: 2.0}), sample(1).gives([2]), delete([2]), sample(1).gives([3])),
    ),
    Case(
        "max heap with one use each hands items out by falling priority",
        "A MaxHeap selector with one use per item makes a priority queue.",
        SELECTORS,
        one(sampler="max_heap", max_times_sampled=1),
        (insert_all({1: 2.0, 2: 9.0, 3: 4.0, 4: 3.0}), sample(4).gives([2, 3, 4, 1])),
    ),
    Case(
        "max heap orders negative priorities, too",
        "A heap compares priorities. The documentation does not restrict their sign.",
        HEAP,
        one(sampler="max_heap"),
        (
            insert_all({1: -3.0, 2: -1.0, 3: -2.0}).gives("done", relive="refused"),
            sample(1).gives([2], relive=["waits"]),
        ),
        differs="In Reverb, the selector decides which priorities are allowed. In relive, a priority is a finite"
        " number >= 0 in every index.",
    ),
    # ---- MinHeap ---------------------------------------------------------------------------------------------------
    Case(
        "min heap draws the lowest priority again and again",
        "MinHeap selects the data with the lowest priority.",
        SELECTORS,
        one(sampler="min_heap"),
        (insert_all({1: 2.0, 2: 0.5, 3: 3.0}), sample(3).gives([2, 2, 2])),
    ),
    Case(
        "min heap follows updates in both directions",
        "An update moves the item to where its new priority belongs.",
        HEAP,
        one(sampler="min_heap"),
        (
            insert_all({1: 1.0, 2: 2.0}),
            sample(1).gives([1]),
            update({1: 3.0}),
            sample(1).gives([2]),
            update({1: 0.5}),
            sample(1).gives([1]),
        ),
    ),
    Case(
        "min heap breaks a tie for the item inserted longest ago",
        "Among items that share a priority, the selector takes the item that was inserted or updated least recently.",
        HEAP,
        one(sampler="min_heap"),
        (insert_all({1: 3.0, 2: 1.0, 3: 1.0}), sample(1).gives([2]), delete([2]), sample(1).gives([3])),
    ),
    Case(
        "min heap with one use each hands items out by rising priority",
        "A MinHeap selector with one use per item makes a priority queue.",
        SELECTORS,
        one(sampler="min_heap", max_times_sampled=1),
        (insert_all({1: 2.0, 2: 9.0, 3: 4.0, 4: 3.0}), sample(4).gives([1, 4, 3, 2])),
    ),
    Case(
        "a zero priority is the lowest for a min heap, and is drawn",
        'Priority zero means "never" to a Prioritized selector only. A heap compares priorities.',
        HEAP,
        one(sampler="min_heap"),
        (insert_all({1: 1.0, 2: 0.0}), sample(1).gives([2])),
    ),
    # ---- one selector draws, another removes -----------------------------------------------------------------------
    Case(
        "the sampler and the remover each keep an order of their own",
        "Any strategy can be used for sampling and any for removing.",
        SELECTORS,
        one(sampler="max_heap", remover="fifo", max_size=3),
        (insert_all({1: 9.0, 2: 1.0, 3: 5.0}), sample(1).gives([1]), insert(4, 2.0), sample(1).gives([3])),
    ),
    Case(
        "a deleted item has left the remover, too",
        "Insertions, updates and deletions reach both the sampler and the remover.",
        SELECTORS,
        one(max_size=2),
        (
            insert_all([1, 2]),
            learn([1, 2]),
            mutate({}, [1]),
            insert(3),
            contents().gives([2, 3]),
            insert(4),
            contents().gives([3, 4]),
        ),
    ),
)
