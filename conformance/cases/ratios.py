"""SampleToInsertRatio: can_sample(n) while inserts - deletes >= min_size and inserts x ratio - samples - n >= min_diff;
can_insert(n) while inserts + n - deletes <= min_size or (inserts + n) x ratio - samples <= max_diff.
"""

from __future__ import annotations

from conformance.calls import (
    batch,
    begin_insert,
    begin_sample,
    can_insert,
    can_sample,
    counts,
    delete,
    drain,
    fill,
    insert,
    insert_all,
    learn,
    one,
    opens,
    ratio,
    sample,
    settle,
    size,
    update,
)
from conformance.sources import LIMITER, LIMITER_STATE, TABLE_STATE
from conformance.words import Case

SMALLEST_WINDOW = (
    "relive's smallest window is samples_per_insert + 1. A draw of one item and an insert of one item fit into this"
    " window together, so the two sides can never wait for each other."
)
WINDOW_AROUND = (
    "relive's window always lies around samples_per_insert x min_size, where the first fill ends. The caller sets the"
    " width of the window and not its place, so no window can block forever."
)

CASES = (
    # ---- the window ------------------------------------------------------------------------------------------------
    Case(
        "a ratio lets the first fill in whatever its window",
        "In stage 1, below min_size_to_sample, all insert calls are allowed.",
        LIMITER,
        one(limit=ratio(4.0, 10, 4.0)),
        (can_insert(10).gives(True), can_sample(1).gives(False), fill(10).gives(10)),
    ),
    Case(
        "a ratio lets no draw through before min size, whatever its window",
        "In stage 1 all sample calls are blocked.",
        LIMITER,
        one(limit=ratio(1.0, 4, 100.0)),
        (insert_all([1, 2, 3]), can_sample(1).gives(False), insert(4), can_sample(1).gives(True)),
    ),
    Case(
        "inserts end at the upper edge of the window",
        "An operation that would move inserts x ratio - samples out of the range is blocked. The edges belong to the"
        " range.",
        LIMITER,
        one(limit=ratio(1.0, 5, 3.0)),
        (fill(20).gives(8), can_insert(1).gives(False)),
    ),
    Case(
        "draws end at the lower edge of the window",
        "An operation that would move inserts x ratio - samples out of the range is blocked. The edges belong to the"
        " range.",
        LIMITER,
        one(limit=ratio(1.0, 5, 3.0)),
        (insert_all(range(5)), drain(20).gives(3), can_sample(1).gives(False)),
    ),
    Case(
        "from the upper edge draws have the whole window",
        "allowed_range is (min_size x ratio - buffer, min_size x ratio + buffer).",
        LIMITER,
        one(limit=ratio(1.0, 5, 3.0)),
        (fill(20).gives(8), drain(20).gives(6), fill(20).gives(6)),
    ),
    Case(
        "an insert moves the window by the ratio",
        "error = inserts x samples_per_insert - samples.",
        LIMITER,
        one(limit=ratio(4.0, 3, 8.0)),
        (insert_all([1, 2, 3]), drain(50).gives(8), insert(4), drain(50).gives(4), insert(5), drain(50).gives(4)),
    ),
    Case(
        "a ratio below one lets a draw through for every few inserts",
        "error = inserts x samples_per_insert - samples.",
        LIMITER,
        one(limit=ratio(0.25, 8, 1.0)),
        (
            insert_all(range(8)),
            drain(9).gives(1),
            fill(3).gives(3),
            can_sample(1).gives(False),
            fill(1).gives(1),
            drain(9).gives(1),
        ),
    ),
    Case(
        "a fractional ratio counts its fractions",
        "samples_per_insert is the average number of times that an item should be sampled. This number may be"
        " fractional.",
        LIMITER,
        one(limit=ratio(1.5, 2, 3.0)),
        (insert_all([1, 2]), drain(9).gives(3), insert(3), drain(9).gives(1), insert(4), drain(9).gives(2)),
    ),
    Case(
        "a ratio is kept over many inserts and draws",
        "A target ratio between samples and inserts is kept over the life of the table.",
        LIMITER,
        one(limit=ratio(2.0, 1, 4.0), max_size=8),
        (
            *[call for _ in range(12) for call in (fill(1).gives(1), drain(2).gives(2))],
            counts().gives([12, 24]),
            drain(50).gives(2),
            counts().gives([12, 26]),
        ),
    ),
    # ---- several at once -------------------------------------------------------------------------------------------
    Case(
        "can_sample counts all that are asked for",
        "can_sample(n): inserts x ratio - samples - n >= min_diff.",
        LIMITER_STATE,
        one(limit=ratio(2.0, 4, 6.0)),
        (
            insert_all(range(4)),
            can_sample(6).gives(True),
            can_sample(7).gives(False),
            drain(2).gives(2),
            can_sample(4).gives(True),
            can_sample(5).gives(False),
        ),
    ),
    Case(
        "can_insert counts all that are asked for",
        "can_insert(n): (inserts + n) x ratio - samples <= max_diff, or all n inserts stay below min_size.",
        LIMITER_STATE,
        one(limit=ratio(2.0, 4, 6.0)),
        (
            can_insert(4).gives(True),
            can_insert(7).gives(True),
            can_insert(8).gives(False),
            insert_all(range(4)),
            can_insert(3).gives(True),
            can_insert(4).gives(False),
        ),
    ),
    Case(
        "a can_insert over the end of the first fill is one question",
        "can_insert(n): inserts + n - deletes <= min_size, or all n inserts stay inside the window.",
        LIMITER_STATE,
        one(limit=ratio(1.0, 10, 1.0)),
        (insert_all(range(8)), can_insert(2).gives(True), can_insert(3).gives(True), can_insert(4).gives(False)),
    ),
    Case(
        "asking changes nothing",
        "can_sample and can_insert report whether an operation is permitted in the current state.",
        LIMITER_STATE,
        one(limit=ratio(1.0, 2, 2.0)),
        (
            insert_all([1, 2]),
            can_sample(2).gives(True),
            can_sample(2).gives(True),
            can_insert(2).gives(True),
            can_insert(2).gives(True),
            counts().gives([2, 0]),
        ),
    ),
    # ---- waiting ---------------------------------------------------------------------------------------------------
    Case(
        "an insert that waits at the upper edge is released by a draw",
        "A call is blocked until the call can proceed without violating the constraints.",
        LIMITER_STATE,
        one(limit=ratio(1.0, 1, 1.0)),
        (
            insert_all([1, 1]),
            begin_insert(1).gives("waits"),
            sample(1).gives([1]),
            settle().gives("done"),
            counts().gives([3, 1]),
        ),
    ),
    Case(
        "a draw that waits at the lower edge is released by an insert",
        "A call is blocked until the call can proceed without violating the constraints.",
        LIMITER_STATE,
        one(limit=ratio(1.0, 2, 1.0)),
        (
            insert_all([1, 1]),
            drain(9).gives(1),
            begin_sample().gives("waits"),
            insert(1),
            settle().gives([1]),
            counts().gives([3, 2]),
        ),
    ),
    Case(
        "a draw that waits at the lower edge is not released by a deletion",
        "The error counts inserts and samples. Deletions count against min_size only.",
        LIMITER_STATE,
        one(limit=ratio(1.0, 1, 1.0)),
        (insert(1), drain(9).gives(1), delete([1]), can_sample(1).gives(False), size().gives(0)),
    ),
    Case(
        "a request for more than the window",
        "Inserts minus samples may move inside the window only. A waiting request continues as inserts arrive.",
        LIMITER,
        one(limit=ratio(1.0, 2, 2.0)),
        (insert_all([1, 1]), batch(9).gives([1, 1, "waits"], relive="refused")),
        differs="relive draws a complete batch. A batch larger than the window could never be drawn, so relive"
        " refuses the batch at once and shows the arithmetic. Reverb returns the samples that fit, and waits for"
        " inserts before it returns the others.",
    ),
    # ---- removal and the two stages --------------------------------------------------------------------------------
    Case(
        "deletion below min size stops draws inside the window",
        "It is possible to go back from stage 2 to stage 1 when items are removed from the table.",
        LIMITER,
        one(limit=ratio(1.0, 2, 500.0)),
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
        "deletion below min size lets inserts in although the window is full",
        "can_insert(n) passes if inserts + n - deletes <= min_size, whatever the error is.",
        LIMITER_STATE,
        one(sampler="prioritized", limit=ratio(3.0, 2, 3.0)),
        (
            insert_all({1: 1.0, 2: 0.0}),
            sample(1).gives([1]),
            update({1: 0.0}),
            insert(3, 1.0),
            sample(1).gives([3]),
            can_insert(1).gives(False),
            delete([1, 3]),
            can_insert(1).gives(True),
        ),
    ),
    Case(
        "several inserts at once over the end of a first fill whose window is full",
        "can_insert(n): inserts + n - deletes <= min_size, or all n inserts stay inside the window.",
        LIMITER_STATE,
        one(sampler="prioritized", limit=ratio(3.0, 2, 3.0)),
        (
            insert_all({1: 1.0, 2: 0.0}),
            sample(1).gives([1]),
            update({1: 0.0}),
            insert(3, 1.0),
            sample(1).gives([3]),
            delete([1, 3]),
            can_insert(2).gives(False, relive=True),
        ),
        differs="Reverb inserts one item at a time. A writer of relive inserts one step of many lanes at once. Below"
        " min_size no draw can pass, so a waiting block of steps could wait forever. relive therefore admits a block"
        " that is worth no more than the window. The block exceeds the edge once, by less than a window.",
    ),
    Case(
        "eviction is a deletion to min size and nothing to the error",
        "Inserts into a full table still count, and the deletions that make room for them count too.",
        LIMITER_STATE,
        one(limit=ratio(1.0, 3, 10.0), max_size=3),
        (fill(30).gives(13), size().gives(3), counts().gives([13, 0]), drain(50).gives(20), fill(50).gives(20)),
    ),
    Case(
        "use counts and a ratio stop draws on whichever comes first",
        "A used-up item counts as deleted. The table may therefore fall below min_size while the window still allows"
        " samples.",
        TABLE_STATE,
        one(limit=ratio(1.0, 2, 4.0), max_times_sampled=1),
        (insert_all([1, 2, 3]), drain(9).gives(2), can_sample(1).gives(False), size().gives(1)),
    ),
    # ---- what is refused -------------------------------------------------------------------------------------------
    Case(
        "a window too small for anything is refused",
        "Smaller values of error_buffer could completely block samples or inserts.",
        LIMITER,
        one(limit=ratio(1.0, 5, 0.5)),
        (opens().gives("refused"),),
    ),
    Case(
        "the smallest window at ratio 1 is a buffer of 1",
        "error_buffer must be at least max(1, samples_per_insert).",
        LIMITER,
        one(limit=ratio(1.0, 1, 1.0)),
        (fill(9).gives(2), drain(9).gives(2), fill(9).gives(2)),
    ),
    Case(
        "the smallest window at ratio 4",
        "error_buffer must be at least max(1, samples_per_insert).",
        LIMITER,
        one(limit=ratio(4.0, 2, 3.0)),
        (opens().gives("refused", relive="done"),),
        differs="Reverb requires a window of at least 2 x max(1, samples_per_insert). " + SMALLEST_WINDOW,
    ),
    Case(
        "a ratio of zero is refused",
        "samples_per_insert must be above zero.",
        LIMITER,
        one(limit=ratio(0.0, 5, 5.0)),
        (opens().gives("refused"),),
    ),
    Case(
        "a negative ratio is refused",
        "samples_per_insert must be above zero.",
        LIMITER,
        one(limit=ratio(-1.0, 5, 5.0)),
        (opens().gives("refused"),),
    ),
    Case(
        "a ratio with a min size of zero is refused",
        "min_size_to_sample must be a positive integer.",
        LIMITER,
        one(limit=ratio(1.0, 0, 5.0)),
        (opens().gives("refused"),),
    ),
    Case(
        "a range around the middle is the same as a buffer",
        "A pair is the allowed range itself, without an offset.",
        LIMITER,
        one(limit=ratio(2.0, 5, (6.0, 14.0))),
        (insert_all(range(5)), can_insert(2).gives(True), can_insert(3).gives(False), drain(9).gives(4)),
    ),
    Case(
        "a range that begins at zero",
        "A pair is the allowed range itself, without an offset.",
        LIMITER,
        one(limit=ratio(1.0, 2, (0.0, 5.0))),
        (opens().gives("done", relive="no word"), fill(9).gives(5), drain(9).gives(5), fill(9).gives(5)),
        differs="Reverb accepts any range. " + WINDOW_AROUND,
    ),
    Case(
        "a range above the first fill is refused",
        "A range above min_size x ratio would deadlock as soon as min_size items are inserted.",
        LIMITER,
        one(limit=ratio(1.0, 2, (3.0, 9.0))),
        (opens().gives("refused", relive="no word"),),
        differs="Neither system makes the table: Reverb refuses this range, and relive has no option for a range. "
        + WINDOW_AROUND,
    ),
    Case(
        "a range below the first fill",
        "A range below min_size x ratio is a deadlock if the sampler cannot sample concurrently. Reverb logs a"
        " warning.",
        LIMITER,
        one(limit=ratio(1.0, 5, (0.0, 3.0))),
        (opens().gives("done", relive="no word"), fill(9).gives(5), drain(9).gives(5), fill(9).gives(3)),
        differs="Reverb warns and makes the table. " + WINDOW_AROUND,
    ),
)
