"""Structured writing: patterns and conditions that make items as steps arrive."""

from __future__ import annotations

from typing import Any

from conformance.calls import contents, counted, end_episode, fields, flush, one, patterns, size, step, two
from conformance.cases.trajectory_rules import WHOLE_ROWS
from conformance.sources import PATTERNS, STRUCTURED_WRITER
from conformance.words import Call, Case, Column, Condition, Pattern, TdError

a, b = Column("a"), Column("b")
NEWEST = {"x": a[-1]}
OF_AN_EPISODE = (
    "Reverb's patterns read the writer's buffer, which may be kept over the end of an episode. relive's patterns stay"
    " inside an episode. To make an item of the rows of two episodes, use the keys of the rows."
)
BEGINS = (
    "Reverb reads this slice as an index. relive reads it as Python does: the slice begins with the episode and grows"
    " with the episode. relive refuses the slice, because the windows of an item have a fixed length."
)


def when(name: str, says: str, condition: Condition, stored: list[int], source: str = STRUCTURED_WRITER) -> Case:
    """Ten steps under one condition: the steps at which an item was made."""
    given = contents().gives([{"x": t} for t in stored])
    return Case(
        name, says, source, one(), (patterns([Pattern(NEWEST, (condition,))]), *counted(10), end_episode(), given)
    )


def shaped(name: str, says: str, parts: dict[str, Any], num_steps: int, stored: list[dict[str, Any]]) -> Case:
    """Some steps under a pattern without conditions: the items that come of them."""
    calls: tuple[Call, ...] = (patterns([Pattern(parts)]), *counted(num_steps), end_episode())
    return Case(name, says, PATTERNS, one(), (*calls, contents().gives(stored)))


def refused(name: str, says: str, pattern: Pattern) -> Case:
    return Case(name, says, PATTERNS, one(), (patterns([pattern]).gives("refused"),))


CASES = (
    # ---- shapes ----------------------------------------------------------------------------------------------------
    shaped(
        "a pattern of one value makes an item at every step",
        "x[-1] is the most recent step, without a time axis.",
        NEWEST,
        3,
        [{"x": 0}, {"x": 1}, {"x": 2}],
    ),
    shaped(
        "a pattern of a slice makes an item once there are so many steps",
        "x[-3:] are the last three steps. The pattern does not apply before there are three steps.",
        {"x": a[-3:]},
        5,
        [{"x": [0, 1, 2]}, {"x": [1, 2, 3]}, {"x": [2, 3, 4]}],
    ),
    shaped(
        "a pattern that ends before the newest step",
        "x[-3:-1] are the two steps before the most recent step.",
        {"x": a[-3:-1]},
        4,
        [{"x": [0, 1]}, {"x": [1, 2]}],
    ),
    shaped(
        "a pattern with a stride",
        "x[-5::2] is every second step of the last five steps.",
        {"x": a[-5::2]},
        7,
        [{"x": [0, 2, 4]}, {"x": [1, 3, 5]}, {"x": [2, 4, 6]}],
    ),
    shaped(
        "a pattern with a slice for each column",
        "Every leaf of a pattern has a source column and a slice of its own.",
        {"older": a[-3], "two": b[-2:], "newest": a[-1]},
        4,
        [{"older": 0, "two": [10, 20], "newest": 2}, {"older": 1, "two": [20, 30], "newest": 3}],
    ),
    shaped(
        "a pattern waits for its longest column",
        "A pattern applies when all of its slices are in the buffer.",
        {"long": a[-4:], "short": b[-1]},
        4,
        [{"long": [0, 1, 2, 3], "short": 30}],
    ),
    # ---- conditions ------------------------------------------------------------------------------------------------
    when(
        "a condition on the step: at most",
        "step_index is the zero-based index of the most recent step in the episode.",
        Condition("step_index", "<=", 2),
        [0, 1, 2],
    ),
    when(
        "a condition on the step: at least",
        "step_index is the zero-based index of the most recent step in the episode.",
        Condition("step_index", ">=", 7),
        [7, 8, 9],
    ),
    when("a condition on the step: just one", "left == eq.", Condition("step_index", "==", 3), [3], PATTERNS),
    when(
        "a condition on the step: all but one",
        "inverse: whether the condition's result is negated.",
        Condition("step_index", "!=", 3),
        [0, 1, 2, 4, 5, 6, 7, 8, 9],
        PATTERNS,
    ),
    when(
        "a condition on the step: below, as a comparison that excludes",
        "Conditions compare whole numbers: < n is <= n - 1.",
        Condition("step_index", "<", 2),
        [0, 1],
    ),
    when(
        "a condition on the step: above, as a comparison that excludes",
        "Conditions compare whole numbers: > n is >= n + 1.",
        Condition("step_index", ">", 7),
        [8, 9],
    ),
    when(
        "a condition on the step: every third",
        "left % mod == eq.",
        Condition("step_index", "==", 0, modulo=3),
        [0, 3, 6, 9],
        PATTERNS,
    ),
    when(
        "a condition on the step: all but every third",
        "left % mod == eq, negated.",
        Condition("step_index", "!=", 0, modulo=3),
        [1, 2, 4, 5, 7, 8],
        PATTERNS,
    ),
    when(
        "a condition on the steps since the last item",
        "steps_since_applied: number of added steps since an item was created for this pattern.",
        Condition("steps_since_applied", ">=", 4),
        [3, 7],
    ),
    when(
        "a condition on the end of the episode",
        "is_end_episode: true only when end_episode is called.",
        Condition("end_episode"),
        [9],
    ),
    Case(
        "a condition on a column's value",
        "Value of a scalar integer or bool in the source data.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"x": a[-2:]}, (Condition("b", ">", 10, of_data=True),))]),
            *[step(a=t, b=value) for t, value in enumerate([11, 10, 11, 9, 12])],
            end_episode(),
            contents().gives([{"x": [1, 2]}, {"x": [3, 4]}]),
        ),
    ),
    Case(
        "a condition on a bool",
        "A true bool is 1, and a false bool is 0.",
        PATTERNS,
        one(),
        (
            patterns([Pattern(NEWEST, (Condition("b", "==", 1, of_data=True),))]),
            *[step(a=t, b=value) for t, value in enumerate([True, False, False, True])],
            end_episode(),
            contents().gives([{"x": 0}, {"x": 3}]),
        ),
    ),
    Case(
        "all of several conditions must be met",
        "conditions: which must be fulfilled for the configuration to be applied at the current step.",
        PATTERNS,
        one(),
        (
            patterns([Pattern(NEWEST, (Condition("step_index", ">=", 3), Condition("step_index", "==", 0, modulo=2)))]),
            *counted(9),
            end_episode(),
            contents().gives([{"x": 4}, {"x": 6}, {"x": 8}]),
        ),
    ),
    # ---- episodes --------------------------------------------------------------------------------------------------
    Case(
        "a pattern does not reach back over the end of an episode",
        "end_episode clears the buffers.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"x": a[-2:]})]),
            *counted(2),
            end_episode(),
            *counted(3, 10),
            end_episode(),
            contents().gives([{"x": [0, 1]}, {"x": [10, 11]}, {"x": [11, 12]}]),
        ),
    ),
    Case(
        "a pattern reaches back over an end whose steps were kept",
        "Buffers should only be kept when trajectories spanning multiple episodes are used.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"x": a[-2:]})]),
            *counted(2),
            end_episode(keep_steps=True),
            *counted(1, 10),
            end_episode(),
            contents().gives([{"x": [0, 1]}, {"x": [1, 10]}], relive=[{"x": [0, 1]}]),
        ),
        differs=OF_AN_EPISODE,
    ),
    Case(
        "the index of steps begins again with an episode",
        "step_index is the index within the episode.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern(NEWEST, (Condition("step_index", "==", 1),))]),
            *counted(3),
            end_episode(),
            *counted(3, 10),
            end_episode(),
            contents().gives([{"x": 1}, {"x": 11}]),
        ),
    ),
    Case(
        "an episode shorter than the pattern makes no item",
        "A pattern applies when all of its slices are in the buffer.",
        PATTERNS,
        one(),
        (patterns([Pattern({"x": a[-4:]})]), *counted(3), end_episode(), size().gives(0)),
    ),
    Case(
        "a pattern for the end that needs more steps than there are",
        "A pattern with a condition on the end is applied at the end, if all its other conditions are fulfilled.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"x": a[-3:]}, (Condition("end_episode"),))]),
            *counted(2),
            end_episode(),
            size().gives(0),
            *counted(4, 10),
            end_episode(),
            contents().gives([{"x": [11, 12, 13]}]),
        ),
    ),
    # ---- several ---------------------------------------------------------------------------------------------------
    Case(
        "patterns for two tables",
        "table: the table that the generated trajectories are inserted into.",
        PATTERNS,
        two(),
        (
            patterns(
                [
                    Pattern(NEWEST, (Condition("step_index", "==", 0, modulo=2),), "left"),
                    Pattern(NEWEST, (Condition("step_index", "==", 1, modulo=2),), "right"),
                ]
            ),
            *counted(5),
            end_episode(),
            contents("left").gives([{"x": 0}, {"x": 2}, {"x": 4}]),
            contents("right").gives([{"x": 1}, {"x": 3}]),
        ),
    ),
    Case(
        "two patterns for one table",
        "Any number of patterns may target the same table.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns(
                [
                    Pattern({"x": a[-2:]}, (Condition("step_index", "==", 1),)),
                    Pattern({"x": a[-3:]}, (Condition("end_episode"),)),
                ]
            ),
            *counted(4),
            end_episode(),
            contents().gives([{"x": [0, 1]}, {"x": [1, 2, 3]}]),
        ),
    ),
    # ---- priorities ------------------------------------------------------------------------------------------------
    Case(
        "a pattern with a constant priority",
        "The priority that is assigned to all trajectories of the pattern.",
        PATTERNS,
        one(sampler="fifo"),
        (
            patterns([Pattern(NEWEST, priority=2.5)]).gives("done", relive="refused"),
            *counted(1),
            end_episode(),
            fields(["priority"]).gives([[2.5]], relive="no word"),
        ),
        differs="A fifo selector ignores priorities, and Reverb keeps priorities for the samples. In relive, an index"
        " whose sampler ignores priorities stores no priorities. relive refuses a pattern with a priority for such an"
        " index.",
    ),
    Case(
        "a pattern whose priority is a mixture of errors",
        "max_priority_weight x max |td| + (1 - max_priority_weight) x mean |td|.",
        STRUCTURED_WRITER,
        one(sampler="fifo"),
        (
            patterns([Pattern({"x": a[-1], "td": b[-3:]}, priority=TdError(0.5, "b"))]).gives("done", relive="no word"),
            *[step(a=t, b=value) for t, value in enumerate([1.0, -6.0, 2.0])],
            end_episode(),
            fields(["priority"]).gives([[4.5]], relive="no word"),
        ),
        differs="In relive, a pattern's priority is a number. A learner updates the priority of an item later, and"
        " sequence_priority computes this mixture.",
    ),
    # ---- steps by parts --------------------------------------------------------------------------------------------
    Case(
        "a pattern of the columns that came first applies to a part of a step",
        "With partial steps, trajectories can be made of the fields that are available first.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"y": b[-1:]}, (Condition("step_index", "==", 99),)), Pattern({"x": a[-2:]})]),
            step(a=0, b=0),
            step(partial=True, a=1),
            step(b=10),
            end_episode(),
            contents().gives([{"x": [0, 1]}]),
        ),
    ),
    Case(
        "an item of a pattern can be drawn before the rest of its step comes",
        "With partial steps, trajectories can be made of the fields that are available first.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"y": b[-1:]}, (Condition("step_index", "==", 99),)), Pattern({"x": a[-2:]})]),
            step(a=0, b=0),
            step(partial=True, a=1),
            flush(),
            contents().gives([{"x": [0, 1]}], relive=[]),
        ),
        differs="In relive, a draw may ask for any column of an item's rows. An item is therefore made with its step,"
        " and can be drawn when all late columns of its rows have come.",
    ),
    Case(
        "a column that a step leaves out keeps its pattern from applying",
        "Leaves of a step may be None. A pattern that needs such a leaf makes no item.",
        STRUCTURED_WRITER,
        one(),
        (
            patterns([Pattern({"x": a[-1], "y": b[-1]})]),
            step(a=0, b=0),
            step(a=1).gives("done", relive="refused"),
            step(a=2, b=20),
            end_episode(),
            contents().gives([{"x": 0, "y": 0}, {"x": 2, "y": 20}]),
        ),
        differs=WHOLE_ROWS,
    ),
    # ---- what is refused -------------------------------------------------------------------------------------------
    refused("a pattern that begins at a step to come is refused", "start must be < 0.", Pattern({"x": a[0:2]})),
    refused("a pattern that ends after the newest step is refused", "stop must be <= 0.", Pattern({"x": a[-2:1]})),
    refused("a pattern of nothing is refused", "stop must be > start.", Pattern({"x": a[-2:-3]})),
    refused("a pattern backwards is refused", "step must be > 0.", Pattern({"x": a[-3::-1]})),
    Case(
        "a pattern's slice without a beginning is one step",
        "x[:-2] is stored in the same form as x[-2]: without a start, the stop is an index.",
        PATTERNS,
        one(),
        (
            patterns([Pattern({"x": a[:-2]})]).gives("done", relive="refused"),
            *counted(3),
            end_episode(),
            contents().gives([{"x": 0}, {"x": 1}], relive=[]),
        ),
        differs=BEGINS,
    ),
    Case(
        "a writer without a pattern is refused",
        "At least one configuration must be provided.",
        STRUCTURED_WRITER,
        one(),
        (patterns([]).gives("refused"),),
    ),
    Case(
        "a step of another type than those before is refused by a pattern's writer",
        "The type of a column is that of its first step.",
        STRUCTURED_WRITER,
        one(),
        (patterns([Pattern(NEWEST)]), step(a=1), step(a=0.5).gives("refused")),
    ),
)
