"""The kinds of items: the windows over lanes that are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args

import numpy as np

from relive.checks.names import names_arguments
from relive.checks.values import finite, flag, integer
from relive.config.kinds import ItemsKind, WindowShape
from relive.config.spec import DERIVED_NAMES, ArraySpec, StepSpec, next_step_names
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
    """Checks gamma, stack and stack_pad, which all items over lanes have, and converts them to their usual types."""
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
    """Items that follow from the steps of a lane. Their columns are those of the steps."""

    def batch_names(
        self, spec: StepSpec, asked: tuple[str, ...] | None, more: tuple[str, ...], others: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The named columns with groups expanded, and the columns without which a batch could not be read."""
        if asked is None:
            return (*self._usual_names(spec), *more)
        states = () if self.is_grouped else tuple(f"next_{name}" for name in spec.state_columns)
        ends = ("terminated", "truncated")
        known = (
            *(*spec.columns, *states, *self._next_steps(spec), "discount", *self._masks, *ends, *DERIVED_NAMES),
            *(*more, *others),
        )
        flat: dict[str, None] = {}
        for name in asked:
            matches = [one for one in known if one == name or one.startswith(f"{name}/")]
            if not matches:
                raise UnknownColumn(str(name), known)
            flat.update(dict.fromkeys(matches))
        if self.is_trimmed:
            flat["mask"] = None  # the trimming reads it
        if self.is_ragged:
            flat["offsets"] = None  # without them the rows of an item are not known
        return tuple(flat)

    def _next_steps(self, spec: StepSpec) -> tuple[str, ...]:
        """The columns of the step after a transition, and whether there is one."""
        return () if self.has_time else next_step_names(spec)

    def _usual_names(self, spec: StepSpec) -> tuple[str, ...]:
        if self.has_time:
            return (*spec.columns, "discount", "mask", *self._offsets)
        return (*spec.columns, *(f"next_{name}" for name in spec.state_columns), "discount")

    @property
    def _masks(self) -> tuple[str, ...]:
        if self.is_grouped:  # records know no loss_mask
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
    """An item is a transition: a step, the n-step return from it, and the state after the last step of that return.

    With m = min(n_step, steps to the end of the episode or of the lane), d the stored discounts (default 1 -
    terminated) and r the rewards:

        reward   = sum over k < m of (product over j < k of gamma d_j) r_k
        discount = product over k < m of gamma d_k
        target   = reward + discount * value(next)

    An item never crosses the end of an episode. Items near an end are shorter.

    Args:
        n_step: steps of a return at most, 1 to 1,024.
        gamma: discount factor in [0, 1].
        stack: {state column or group: k}. The column and its next_ column have the last k values, [B, k, ...], the
            newest last.
        stack_pad: value before the first one of an episode: 'repeat' repeats the first, 'zeros' gives zeros.

    Raises:
        InvalidConfig: an argument has another type or value. The table checks the columns that are named.
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
        """The most steps of one lane in a long episode that no item begins at.

        These are the oldest ones, whose stacks reach further back, and the newest ones, whose windows are not complete.
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
        """Raises SpecError or UnknownColumn if the spec lacks a column that these items need."""
        spec.expand_stack(self.stack)
        reward = spec.columns.get("reward")
        if self.n_step > 1 and reward is not None and not _is_summed(reward):
            expected = f"a float32 or float64 step column of shape (), as n_step={self.n_step} sums it"
            raise SpecError("column 'reward'", expected, repr(reward))

    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them."""
        return {"items": "transitions", "n_step": self.n_step, **_window_config(self, spec)}


def _is_summed(reward: ArraySpec) -> bool:
    """Whether an n-step return can be the sum of this column."""
    return reward.kind == "step" and reward.shape == () and reward.dtype in (np.dtype(np.float32), np.dtype(np.float64))


@names_arguments
@final
@dataclass(frozen=True)
class Sequences(_OverLanes):
    """An item is a window of T = burn_in + length + bootstrap rows, with a time axis (R2D2, IMPALA).

    The rows belong to one episode, except with at_end='cross'.

    | column | shape in a batch |
    |---|---|
    | step and state columns | [B, T, ...]; a stacked column [B, T, k, ...] |
    | discount | [B, T]: gamma * discount of each step |
    | kind 'start' | [B, ...]: the value at the first row of the window |
    | kind 'episode' | [B, ...]; with at_end='cross' [B, T, ...] |
    | lane | [B] |
    | policy_version | [B, 2]: the lowest and the highest of the window |
    | mask | bool[B, T]: which rows are steps |
    | loss_mask, if named | bool[B, T]: true for the steps that carry loss, false for burn-in and bootstrap rows |
    | next_<state>, if named | [B, T, ...] |

    If the episode ends within the window and a bootstrap row is free, the state columns of that row contain the last
    state. Its other columns are zero, and its mask is False: it is no step. The key of an
    item is the key of its first step that carries loss.

    Args:
        length: number of steps on which the loss is computed.
        burn_in: rows before the steps with loss, to warm up a recurrent state. If burn-in would begin before the
            episode, it is padded in front: state columns repeat the first state, all other columns are zeros.
        bootstrap: rows after the steps with loss, to bootstrap from.
        period: the distance between windows. The steps with loss begin at episode_step 0, period, 2 * period, and so
            on. None: `length`, so that no step carries loss in two windows (except with at_end='shift').
        at_end: how to treat a window that the end of its episode cuts short. 'pad': the window is padded. 'shift': one
            window replaces all windows that are cut short. It begins earlier, so that it ends with the episode. 'drop':
            the window is dropped. 'cross': the window continues into the next episodes of the lane, as described below.
            With 'pad' and 'shift', episodes that are shorter than `length` are padded.
        pad: where padding goes: 'right', after the rows, or 'left', before them. Padding of burn-in is always in front.
        gamma: discount factor in [0, 1].
        stack: as for Transitions.
        stack_pad: as for Transitions.
        time_major: arrays with a time axis are [T, B, ...], also mask and stacked columns; all others stay [B, ...].

    With at_end='cross', the steps with loss begin at every period-th step of the lane, counted over all its episodes.
    The column `first` marks the first step of each episode. The last state of an episode has no row: it is the
    next_<state> of the last step. Padding appears only if the lane ends within the window, or if
    burn-in begins before the lane. With 'cross', T is at most 2,048.

    Raises:
        InvalidConfig: an argument has another type or value. The table checks the columns that are named.
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
        """Whether a window may cross the ends of episodes."""
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
        """length - 1 with 'drop'. Else 0, because each step may be an episode."""
        return 0 if self.at_end != "drop" else self.length - 1

    @property
    def steps_between(self) -> int:
        """The period, at most the rows of a window."""
        return min(self.period or self.length, self.num_rows)

    @property
    def steps_apart(self) -> int:
        """The fewest steps between items, whatever the episodes are; more than 1 only with 'drop'.

        Whole windows in one episode are a period apart, and windows in episodes of their own are `length` apart.
        """
        return 1 if self.at_end != "drop" else min(self.length, self.period or self.length)

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn if the spec lacks a column of these items, SpecError for a column named as a mask."""
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
    """Items are whole episodes, T = max_length + bootstrap rows (for PPO, decision transformers, rollouts).

    An episode becomes an item when it ends. If its lane ends first (the writer closes or dies), the episode is dropped.
    The key of an item is the key of its first step.

    Args:
        max_length: the most steps of an item.
        bootstrap: 1: one more row, which has the state after the last step; 0: none.
        too_long: how to treat an episode with more steps. 'refuse': step max_length + 1 raises EpisodeTooLong. 'head':
            the item is the first max_length steps; the item exists as soon as these steps are written, also if the lane
            ends before the episode does. 'tail': the item is the last max_length steps. 'random': the item is
            max_length steps from a random start; each start has the same probability, and the same seed and calls give
            the same start.
        pad: as for Sequences.
        gamma: discount factor in [0, 1].
        stack: as for Transitions.
        stack_pad: as for Transitions.
        time_major: as for Sequences.
        layout: 'padded': columns are [B, T, ...] with a mask, and T is trimmed to the longest episode of the batch.
            'ragged': the rows of the episodes lie end to end, [rows, ...], without padding. batch.offsets is int64[B +
            1]: the first row of each episode, then the number of all rows. A ragged layout takes no pad and no
            time_major.
        group_by: an int64 column of kind 'episode', shape (): an item is a group of episodes, as described below.
        group_size: episodes of a group, 1 to 64.
        max_groups: the most groups at a time, 1 to 4,096; groups that wait for members count. Over several shards it is
            a number for each shard.

    Groups: an item is group_size episodes with the same value of group_by, from any lanes of any writer, in the order
    in which they ended. The next episodes with that value open the next group.

    - Columns are [B, G, T, ...], those of kind 'episode' and 'start' [B, G, ...]; mask bool[B, G, T]; batch.lengths,
      lane, num_steps and staleness [B, G]; policy_version [B, G, 2].
    - When there are more than max_groups groups, the oldest group leaves, or the group that the index's remover
      chooses.
    - When any step of a group leaves the table, the group leaves, too. stats().dropped_groups counts the groups that
      left before they were complete.
    - An episode is in at most one group. If the first step of an episode has left the table before the episode ends,
      the episode is in no group.
    - A group has a key of its own, which is not the key of a step.
    - too_long chooses the steps of a longer episode after the episode has ended.
    - Groups have no bootstrap, stack, pad, time_major or ragged layout.

    Raises:
        InvalidConfig: an argument has another type or value. The table checks the columns that are named.
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
        """Whether an item is several episodes with one value of a column."""
        return self.group_by is not None

    @property
    def end_with_episodes(self) -> bool:
        """Always: an item is one episode, or a group of episodes."""
        return True

    @property
    def steps_apart(self) -> int:
        """1, or the number of episodes of a group."""
        return self.group_size or 1

    @property
    def steps_between(self) -> int:
        """The rows of one episode."""
        return self.num_rows

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
        """The option `bootstrap`."""
        return self.bootstrap

    @property
    def num_rows(self) -> int:
        """T before it is trimmed; for ragged episodes the most rows of one."""
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
    def keys_are_steps(self) -> bool:
        """Whether items are no groups."""
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
        """'None', for groups."""
        return "None for groups of episodes" if self.is_grouped else None

    def condition_columns(self, spec: StepSpec) -> Mapping[str, ArraySpec] | None:
        """The column that groups form by, for groups."""
        return None if self.group_by is None else {self.group_by: spec.columns[self.group_by]}

    @property
    def kept_back(self) -> int:
        """The episodes of a group but one: each may have one step. Else 0."""
        return self.steps_apart - 1

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn if the spec lacks a column of these items.

        Raises SpecError if a column has the wrong kind, dtype or shape, or is named as a mask.
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
        """The items as the core reads them: a sequence that begins with each episode, or groups of whole episodes."""
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


# The kinds that an Index takes. A new class adds its name here.
Items: TypeAlias = Transitions | Sequences | Episodes
ITEMS = (Transitions, Sequences, Episodes)
