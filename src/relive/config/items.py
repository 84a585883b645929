"""What one item is: which windows over the lanes are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args

import numpy as np

from relive.checks.names import names_arguments
from relive.checks.values import finite, flag, integer
from relive.config.kinds import ItemsKind, OneTableOnly, WindowShape
from relive.config.spec import DERIVED_NAMES, ArraySpec, StepSpec
from relive.errors import InvalidConfig, SpecError, UnknownColumn

__all__ = ["ITEMS", "AtEnd", "Episodes", "Items", "Layout", "Pad", "Sequences", "StackPad", "TooLong", "Transitions"]

StackPad = Literal["repeat", "zeros"]
AtEnd = Literal["pad", "shift", "drop", "cross"]
Pad = Literal["right", "left"]
Layout = Literal["padded", "ragged"]
TooLong = Literal["refuse", "head", "tail", "random"]
MAX_STACK = 4096  # of a window, in the core
MAX_ROWS = 4096  # of a window, in the core
MAX_GROUP_SIZE = 64  # in the core
MAX_GROUPS = 4096  # in the core


def _check_window(items: Any) -> None:
    """gamma, stack and stack_pad, which all items over lanes have, checked and put in their usual types."""
    object.__setattr__(items, "gamma", finite("gamma", items.gamma, 0.0, 1.0))
    if not isinstance(items.stack, Mapping):
        raise InvalidConfig("stack", "a dict {state column: frames}", items.stack)
    for name in items.stack:
        if not isinstance(name, str):
            raise InvalidConfig("stack", "a dict {state column: frames}", items.stack)
    stack = {name: integer(f"stack of {name!r}", frames, 1, MAX_STACK) for name, frames in items.stack.items()}
    object.__setattr__(items, "stack", stack)
    _check_choice("stack_pad", items.stack_pad, StackPad)


def _check_choice(what: str, value: object, choices: Any) -> None:
    names = get_args(choices)
    if not isinstance(value, str) or value not in names:
        raise InvalidConfig(what, " or ".join(map(repr, names)), value)


def _check_whole(items: Any, name: str, least: int, most: int) -> None:
    object.__setattr__(items, name, integer(name, getattr(items, name), least, most))


def _check_timed(items: Any, spec: StepSpec) -> None:
    spec.expand_stack(items.stack)
    tops = {name.partition("/")[0] for name in spec.columns}
    for name in ("mask", "loss_mask"):
        if name in tops:
            raise SpecError(
                f"column {name!r}", f"another name: items with a time axis have a {name} of their own", name
            )
    if "offsets" in tops and items.is_ragged:
        raise SpecError("column 'offsets'", "another name: ragged items have offsets of their own", "offsets")


class _OverLanes(ItemsKind):
    """Items that follow from the steps of a lane: their columns are those of the steps."""

    def batch_names(self, spec: StepSpec, asked: tuple[str, ...] | None, more: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that are named, groups expanded, and those without which a batch could not be read."""
        if asked is None:
            return (*self._usual_names(spec), *more)
        states = () if self.is_grouped else tuple(f"next_{name}" for name in spec.state_columns)
        known = (*spec.columns, *states, "discount", *self._masks, "terminated", "truncated", *DERIVED_NAMES, *more)
        flat: dict[str, None] = {}
        for name in asked:
            matches = [one for one in known if one == name or one.startswith(f"{name}/")]
            if not matches:
                raise UnknownColumn(str(name), known)
            flat.update(dict.fromkeys(matches))
        if self.is_trimmed:
            flat["mask"] = None  # says how long the longest is
        if self.is_ragged:
            flat["offsets"] = None  # says whose the rows are
        return tuple(flat)

    def _usual_names(self, spec: StepSpec) -> tuple[str, ...]:
        if self.has_time:
            return (*spec.columns, "discount", "mask", *self._offsets)
        return (*spec.columns, *(f"next_{name}" for name in spec.state_columns), "discount")

    @property
    def _masks(self) -> tuple[str, ...]:
        if self.is_grouped:  # what records know of their rows
            return ("mask",)
        return ("mask", "loss_mask", *self._offsets) if self.has_time else ()

    @property
    def _offsets(self) -> tuple[str, ...]:
        return ("offsets",) if self.is_ragged else ()


def _window_config(items: Any, spec: StepSpec) -> dict[str, Any]:
    return {"gamma": items.gamma, "stack": spec.expand_stack(items.stack), "stack_pad": items.stack_pad}


@names_arguments
@final
@dataclass(frozen=True)
class Transitions(_OverLanes):
    """Items are transitions: a step, its n-step return and the state after it.

    n_step: steps a return spans at most; m = min(n_step, steps to the end of the episode or lane), never across an end.
    gamma in [0, 1]: reward out = sum over k < m of (product over j < k of gamma d_j) r_k, discount out = product over
    k < m of gamma d_k, with d the stored discounts (default 1 - terminated): target = reward + discount * value(next).
    stack: {state column or group: k}: the column and its next_ come as the last k values, [B, k, ...], newest last.
    stack_pad: what stands before the episode's first value: 'repeat' it, or 'zeros'.
    Raises InvalidConfig; the table checks the columns it names.
    """

    n_step: int = 1
    gamma: float = 1.0
    stack: Mapping[str, int] = field(default_factory=dict, hash=False)
    stack_pad: StackPad = "repeat"

    def __post_init__(self) -> None:
        _check_whole(self, "n_step", 1, 1024)
        _check_window(self)

    @property
    def kept_back(self) -> int:
        """Steps of one lane in a long episode that no item begins at: its oldest, whose stacks reach further back, and
        its newest, whose windows are not complete.
        """
        return max(self.stack.values(), default=1) - 1 + self.n_step - 1

    @property
    def shape(self) -> WindowShape:
        """n_step steps."""
        return WindowShape(0, self.n_step, self.n_step)

    @property
    def sums_rewards(self) -> bool:
        """Over n_step steps."""
        return self.n_step > 1

    def check_against(self, spec: StepSpec) -> None:
        """Raises SpecError or UnknownColumn where the spec lacks what these items need."""
        spec.expand_stack(self.stack)
        reward = spec.columns.get("reward")
        if self.n_step > 1 and reward is not None and (reward.kind != "step" or reward.dtype.kind != "f"):
            raise SpecError("column 'reward'", f"a float step column, as n_step={self.n_step} sums it", repr(reward))

    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them."""
        return {"items": "transitions", "n_step": self.n_step, **_window_config(self, spec)}


@names_arguments
@final
@dataclass(frozen=True)
class Sequences(_OverLanes):
    """Items are windows of one episode with a time axis, T = burn_in + length + bootstrap rows (as in R2D2, IMPALA).

    length: steps that carry loss. Loss begins at episode_step = k * period, period None: length, so that windows do not
    overlap. burn_in: rows before those, to warm up a recurrent state. bootstrap: rows behind them, to bootstrap from.
    Columns come as [B, T, ...], gamma * discount among them; kind="start" columns and lane as [B, ...], the start value
    of the window's first row; kind="episode" columns as [B, ...], with at_end 'cross' as [B, T, ...]; policy_version as
    [B, 2], the lowest and the highest of the window. mask bool[B, T] says which rows are steps; loss_mask, where it is
    asked for, which of these carry loss: neither burn-in nor bootstrap, whichever pad and at_end. Where bootstrap
    leaves a row for it, the row behind an episode's last step has the state after it (all else zero, not in the mask).
    next_<state> may be asked for.
    at_end: what becomes of windows whose length an episode's end cuts short: 'pad' them; 'shift': one more window ends
    with the episode instead; 'drop'. Episodes shorter than length are padded, but for 'drop'. 'cross': windows run on
    into the lane's next episodes. Loss then begins at every period-th step of the lane, counted on over its episodes;
    the column first says where episodes begin, all rows are steps (the state behind an episode's last is its
    next_<state>), and only what the lane's end cuts short, or its beginning leaves of burn_in, is padded. T is then at
    most 2,048.
    Burn-in that the episode's start leaves out is padded in front, always: state columns with the first state there,
    all else with zeros. pad: where else padding stands, 'right' behind the rows or 'left' of them.
    gamma, stack, stack_pad: as of Transitions; a stacked column comes as [B, T, k, ...].
    time_major: whatever has a time axis comes as [T, B, ...], mask and stacked columns too; all else stays [B, ...].
    The key of an item is that of its first step that carries loss. Raises InvalidConfig.
    """

    has_time: ClassVar[bool] = True

    length: int
    burn_in: int = 0
    bootstrap: int = 0
    period: int | None = None
    at_end: AtEnd = "pad"
    pad: Pad = "right"
    gamma: float = 1.0
    stack: Mapping[str, int] = field(default_factory=dict, hash=False)
    stack_pad: StackPad = "repeat"
    time_major: bool = False

    def __post_init__(self) -> None:
        _check_whole(self, "length", 1, MAX_ROWS)
        _check_whole(self, "burn_in", 0, MAX_ROWS)
        _check_whole(self, "bootstrap", 0, MAX_ROWS)
        if self.period is not None:
            _check_whole(self, "period", 1, MAX_ROWS)
        if self.num_rows > MAX_ROWS:
            raise InvalidConfig("burn_in + length + bootstrap", f"at most {MAX_ROWS} rows", self.num_rows)
        _check_choice("at_end", self.at_end, AtEnd)
        if self.at_end == "cross" and self.num_rows > MAX_ROWS // 2:  # each step may have a tail behind it
            most = f"at most {MAX_ROWS // 2} rows where windows cross ends of episodes"
            raise InvalidConfig("burn_in + length + bootstrap", most, self.num_rows)
        _check_choice("pad", self.pad, Pad)
        object.__setattr__(self, "time_major", flag("time_major", self.time_major))
        _check_window(self)

    @property
    def crosses(self) -> bool:
        """Whether a window may be of several episodes."""
        return self.at_end == "cross"

    @property
    def num_rows(self) -> int:
        """T."""
        return self.burn_in + self.length + self.bootstrap

    @property
    def pads_left(self) -> bool:
        """By the option `pad`."""
        return self.pad == "left"

    @property
    def shape(self) -> WindowShape:
        """burn_in + length + bootstrap steps."""
        return WindowShape(self.burn_in, self.length, self.length + self.bootstrap)

    @property
    def kept_back(self) -> int:
        """Steps that no item begins at whatever the episodes are: none, as each may be an episode."""
        return 0 if self.at_end != "drop" else self.length - 1

    @property
    def steps_apart(self) -> int:
        """Steps from one item to the next at the least, whatever the episodes are: of whole windows in one episode a
        period, in episodes of their own their length.
        """
        return 1 if self.at_end != "drop" else min(self.length, self.period or self.length)

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn where the spec lacks what these items need, SpecError for a column named as a mask."""
        _check_timed(self, spec)

    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them."""
        return {
            "items": "sequences",
            "length": self.length,
            "burn_in": self.burn_in,
            "bootstrap": self.bootstrap,
            "period": self.length if self.period is None else self.period,
            "at_end": self.at_end,
            "pad": self.pad,
            "time_major": self.time_major,
            "only_ended": False,
            "only_the_last": False,
            "longest": 0,
            **_window_config(self, spec),
        }


@names_arguments
@final
@dataclass(frozen=True)
class Episodes(_OverLanes):
    """Items are whole episodes, T = max_length + bootstrap rows (as for PPO, decision transformers, rollouts).

    An episode is an item when it has ended. One that its lane's end cuts off (the writer closes, or dies) is dropped.
    too_long: of an episode of more than max_length steps, 'refuse' the step that would make it longer (EpisodeTooLong),
    or keep its 'head' (then the item is there as soon as max_length steps are, also if the lane is cut), its 'tail', or
    max_length steps from a 'random' one on: each start is as likely, and the same for the same seed and calls.
    layout: 'padded': columns come as of Sequences, [B, T, ...] with a mask, T trimmed to the longest episode of the
    batch. 'ragged': the rows of the episodes lie end to end, [rows, ...], and nothing is padded; batch.offsets int64
    [B + 1] says where each begins, and behind them all how many rows there are. No pad, no time_major there.
    bootstrap=1: one row more, which has the state after the last step. pad, gamma, stack, stack_pad, time_major: as of
    Sequences.
    The key of an item is that of its first step.
    group_by, group_size, max_groups: an item is a group of group_size (1 to 64) episodes with the same value of the
    column group_by (one int64 of kind 'episode'), from any lanes of any writer, in the order in which they ended; the
    next episodes of that value open the next group. Columns come as [B, G, T, ...], those of kind 'episode' and 'start'
    as [B, G, ...], mask bool[B, G, T], batch.lengths [B, G]; lane, num_steps and staleness [B, G], policy_version
    [B, G, 2]. There are at most max_groups (1 to 4,096) groups at a time, those that wait for members among them: where
    one more opens the oldest goes, or the one that the index's remover chooses. A group goes, too, with the first step
    of it that makes room for newer ones; what went before it was complete is stats().dropped_groups. An episode is in
    one group at most; whose first step is gone when it ends is in none. The key of a group is its own: none of a step.
    too_long says which steps of a longer episode its member has, once it has ended. Such items have no bootstrap,
    stack, pad, time_major or ragged layout.
    Raises InvalidConfig.
    """

    has_time: ClassVar[bool] = True
    most_name: ClassVar[str] = "max_groups"

    max_length: int
    bootstrap: int = 0
    too_long: TooLong = "refuse"
    pad: Pad = "right"
    gamma: float = 1.0
    stack: Mapping[str, int] = field(default_factory=dict, hash=False)
    stack_pad: StackPad = "repeat"
    time_major: bool = False
    layout: Layout = "padded"
    group_by: str | None = None
    group_size: int | None = None
    max_groups: int | None = None

    def __post_init__(self) -> None:
        _check_whole(self, "max_length", 1, MAX_ROWS)
        _check_whole(self, "bootstrap", 0, 1)
        if self.num_rows > MAX_ROWS:
            raise InvalidConfig("max_length + bootstrap", f"at most {MAX_ROWS} rows", self.num_rows)
        _check_choice("too_long", self.too_long, TooLong)
        _check_choice("pad", self.pad, Pad)
        object.__setattr__(self, "time_major", flag("time_major", self.time_major))
        _check_choice("layout", self.layout, Layout)
        if self.is_ragged and self.time_major:
            raise InvalidConfig(
                "time_major of ragged episodes", "False: there is no axis of items to stand first", True
            )
        if self.is_ragged and self.pad != "right":
            raise InvalidConfig("pad of ragged episodes", "the default: nothing is padded", self.pad)
        _check_window(self)
        self._check_groups()

    def _check_groups(self) -> None:
        if self.group_by is None:
            for name in ("group_size", "max_groups"):
                if getattr(self, name) is not None:
                    raise InvalidConfig(name, "None where group_by names no column", getattr(self, name))
            return
        if not isinstance(self.group_by, str):
            raise InvalidConfig("group_by", "the name of a column of kind 'episode', or None", self.group_by)
        _check_whole(self, "group_size", 1, MAX_GROUP_SIZE)
        _check_whole(self, "max_groups", 1, MAX_GROUPS)
        plain = {"bootstrap": 0, "pad": "right", "stack": {}, "time_major": False}
        for name, value in {**plain, "layout": "padded"}.items():
            if getattr(self, name) != value:
                raise InvalidConfig(f"{name} of groups of episodes", f"the default, {value!r}", getattr(self, name))

    @property
    def is_grouped(self) -> bool:
        """Whether an item is several episodes of one value of a column."""
        return self.group_by is not None

    @property
    def steps_apart(self) -> int:
        """Steps from one item to the next at the least: one, or as many as a group has episodes."""
        return self.group_size or 1

    @property
    def is_ragged(self) -> bool:
        """Whether the rows of the items of a batch lie end to end."""
        return self.layout == "ragged"

    @property
    def is_trimmed(self) -> bool:
        """Whether the time axis ends with the longest item of a batch."""
        return not self.is_ragged

    @property
    def rows_behind(self) -> int:
        """Rows behind an episode's last step that its item shows."""
        return self.bootstrap

    @property
    def num_rows(self) -> int:
        """T, before it is trimmed; where episodes are ragged the most rows that one has."""
        return self.max_length + self.bootstrap

    @property
    def pads_left(self) -> bool:
        """By the option `pad`."""
        return self.pad == "left"

    @property
    def shape(self) -> WindowShape:
        """max_length + bootstrap steps."""
        return WindowShape(0, self.max_length, self.num_rows)

    @property
    def one_table_only(self) -> OneTableOnly | None:
        """Of groups."""
        if not self.is_grouped:
            return None
        return OneTableOnly(
            "groups of episodes", "members in different shards would not meet", "write all groups to one table"
        )

    @property
    def keys_are_steps(self) -> bool:
        """Not of groups."""
        return not self.is_grouped

    @property
    def most(self) -> int | None:
        """The option `max_groups`."""
        return self.max_groups

    @property
    def in_words(self) -> str:
        """The items in words, for messages."""
        return "groups of episodes"

    @property
    def index_condition(self) -> str | None:
        """None for groups."""
        return "None for groups of episodes" if self.is_grouped else None

    def condition_columns(self, spec: StepSpec) -> Mapping[str, ArraySpec] | None:
        """Of groups the column that they form by."""
        return None if self.group_by is None else {self.group_by: spec.columns[self.group_by]}

    @property
    def kept_back(self) -> int:
        """Steps that no item begins at whatever the episodes are: as each may be one, those of a group but one."""
        return self.steps_apart - 1

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn where the spec lacks what these items need, SpecError for a column that is not what it
        must be, or that is named as a mask.
        """
        _check_timed(self, spec)
        if self.group_by is None:
            return
        column = spec.columns.get(self.group_by)
        if column is None:
            raise UnknownColumn(self.group_by, tuple(spec.columns))
        if column.kind != "episode" or column.dtype != np.dtype(np.int64) or column.shape:
            raise SpecError(
                f"column {self.group_by!r}", "one int64 of kind 'episode', as groups form by it", repr(column)
            )

    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them: a sequence that begins with each episode, or groups of whole ones."""
        if self.is_grouped:
            return {
                "items": "groups",
                "length": self.max_length,
                "group_by": self.group_by,
                "group_size": self.group_size,
                "max_groups": self.max_groups,
                "too_long": self.too_long,
                "gamma": self.gamma,
            }
        return {
            "items": "sequences",
            "length": self.max_length,
            "burn_in": 0,
            "bootstrap": self.bootstrap,
            "period": 0,
            "at_end": "shift" if self.too_long == "tail" else "pad",
            "pad": self.pad,
            "time_major": self.time_major,
            "only_ended": True,
            "only_the_last": self.too_long == "tail",
            "one_at_random": self.too_long == "random",
            "longest": self.max_length if self.too_long == "refuse" else 0,
            **_window_config(self, spec),
        }


# What an Index takes; a class further is one name more here.
Items: TypeAlias = Transitions | Sequences | Episodes
ITEMS = (Transitions, Sequences, Episodes)
