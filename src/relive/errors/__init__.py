"""Structured errors: their types, fields and sentences; no check and no decision.

Every error of the library is a ReliveError. Its fields are attributes, so programs decide by type and field and never
by text; the sentence says what happened, what was expected, what came, and the way out. All errors pickle.
The core knows codes and numbers only: it calls from_core, which chooses the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from relive.errors.base import ReliveError, way_to_shape
from relive.errors.base import plain as _plain
from relive.errors.base import shown as _shown
from relive.errors.items import EpisodeMismatch, EpisodeTooLong, RareItems, RowGone, RowsApart
from relive.errors.late import AlreadyCompleted, LateColumn
from relive.errors.names import MissingColumn, UnknownArgument, UnknownAttribute, UnknownColumn, UnnamedColumns
from relive.errors.storage import (
    FormatMismatch,
    InUse,
    NameTaken,
    NoSuchTable,
    NotARegion,
    StorageFull,
    SystemFailure,
)

__all__ = [
    "AlreadyCompleted",
    "AlreadyPublished",
    "BadMessage",
    "CapacityTooSmall",
    "CheckFailed",
    "DeadlineExceeded",
    "DtypeMismatch",
    "EpisodeMismatch",
    "EpisodeTooLong",
    "ForeignKey",
    "ForkedHandle",
    "FormatMismatch",
    "InUse",
    "InvalidConfig",
    "InvalidPriority",
    "LaneError",
    "LateColumn",
    "MissingColumn",
    "MissingNext",
    "MissingPackage",
    "NameTaken",
    "NoPriorities",
    "NoProbabilities",
    "NoSuchTable",
    "NotARegion",
    "NotShareable",
    "RareItems",
    "ReadOnly",
    "ReliveError",
    "RequestTooLarge",
    "RowGone",
    "RowsApart",
    "SeamMismatch",
    "ServiceUnavailable",
    "ShapeMismatch",
    "SpecError",
    "StaleVersion",
    "StorageFull",
    "SystemFailure",
    "TableClosed",
    "TooManyLanes",
    "TooManyParticipants",
    "Unacknowledged",
    "UnknownArgument",
    "UnknownAttribute",
    "UnknownColumn",
    "UnnamedColumns",
    "WaitsForItself",
    "WriterClosed",
    "from_core",
]


# ---- waiting -------------------------------------------------------------------------------------------------------


class DeadlineExceeded(ReliveError, TimeoutError):
    """A call waited until its deadline. needs and has say what it waited for and what was there: numbers or texts."""

    def __init__(
        self, needs: object = "", has: object = "", waited_s: float = 0.0, holder_pid: int | None = None
    ) -> None:
        self.needs = _plain(needs)
        self.has = _plain(has)
        self.waited_s = waited_s
        self.holder_pid = holder_pid or None
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        if self.holder_pid is not None:
            return (
                f"deadline exceeded after {self.waited_s:.3g} s: the table is locked by process {self.holder_pid},"
                " which is alive but does not go on; continue or end that process, or give a larger timeout_s"
            )
        return (
            f"deadline exceeded after {self.waited_s:.3g} s: {self._balance()}; see that the other side (writers or"
            " samplers) is running, loosen the limiter, or give a larger timeout_s"
        )

    def _balance(self) -> str:
        what = f"needs {self.needs}" + ("" if self.has == "" else f", has {self.has}")
        if str(self.needs).endswith("live items"):
            what += " (a step is one once next_<state> was given, or the step after it appended)"
        return what


@final
class WaitsForItself(DeadlineExceeded):
    """The only participant of a table waits for something that only it could do; told at once, not at the deadline."""

    def _sentence(self) -> str:
        return (
            f"this would wait for ever: {self._balance()}, and nobody but the caller could change that (no"
            " other participant is attached); write or sample first, loosen the limiter, or run the other side in"
            " another process or thread"
        )


@final
class RequestTooLarge(ReliveError, ValueError):
    """A draw or an insert that would come to wait for ever: it does not fit the limiter's window.

    A draw shares the window with at least one row: where draw and row together are larger, both could come to wait for
    each other.
    none_twice: of a draw without replacement that asks for more items than it is sure to find, what bounds them; window
    is how many that are. Else "".
    """

    def __init__(self, requested: float, window: float, arithmetic: str = "", none_twice: str = "") -> None:
        self.requested = requested
        self.window = window
        self.arithmetic = arithmetic
        self.none_twice = none_twice
        if none_twice:
            super().__init__(
                f"a request for {requested:g} items could wait for ever: without replacement none comes twice in a"
                f" batch, and so many are never sure to be there, but {window:g} are ({none_twice}); ask for less at a"
                " time, raise that bound, or draw with replacement"
            )
            return
        super().__init__(
            f"a request for {requested:g} items could wait for ever: it does not fit the limiter's window of"
            f" {window:g}, which a draw has to share with at least one row"
            + (f" ({arithmetic})" if arithmetic else "")
            + "; ask for less at a time, or give SamplesPerInsert a larger tolerance, Queue a larger max_size"
        )


# ---- what a caller gave --------------------------------------------------------------------------------------------


@final
class SpecError(ReliveError, ValueError):
    """A StepSpec or ArraySpec that cannot be. what names the part, e.g. a column."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = _plain(got)
        super().__init__(f"{what}: expected {expected}, got {_shown(self.got)}")


@final
class InvalidConfig(ReliveError, ValueError):
    """A configuration value (or a call's argument) out of its range."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = _plain(got)
        super().__init__(f"{what}: expected {expected}, got {_shown(self.got)}")


@final
class ShapeMismatch(ReliveError, ValueError):
    """An array of another shape than its column, or argument, asks for."""

    def __init__(self, column: str, expected: object, got: object) -> None:
        self.column = column
        self.expected = _plain(expected)
        self.got = _plain(got)
        way_out = way_to_shape(self.expected, self.got, _is_argument(column))
        if column.startswith("out["):  # of gather; a batch of Episodes shows fewer rows than its memory has
            way_out = "; of Episodes with every row: give a dict of arrays, not a batch, whose time axis is cut"
        super().__init__(f"{_what(column)}: expected shape {self.expected}, got {self.got}" + way_out)


@final
class DtypeMismatch(ReliveError, TypeError):
    """Values that the dtype of their column, or argument, cannot hold without loss."""

    def __init__(self, column: str, expected: str, got: object) -> None:
        self.column = column
        self.expected = expected
        self.got = _plain(got)
        is_image = expected.startswith("uint8") and str(self.got).startswith("float")
        way_out = (
            "store images as they are and scale them after sampling"
            if is_image
            else "convert it before the call or declare another dtype"
        )
        super().__init__(
            f"{_what(column)}: expected {expected}, got {self.got}; only lossless casts and numpy's same_kind casts"
            f" (float64 to float32) are made, so {way_out}"
        )


def _is_argument(column: str) -> bool:
    return column in ("priorities", "item_keys") or column.startswith("out[")


def _what(column: str) -> str:
    return column if _is_argument(column) else f"column {column!r}"


@final
class LaneError(ReliveError, ValueError):
    """lanes= that does not fit the writer: shape, range, or a lane named twice."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = _plain(got)
        super().__init__(f"{what}: expected {expected}, got {_shown(self.got)}")


@final
class InvalidPriority(ReliveError, ValueError):
    """A priority that is NaN, infinite or negative; nothing of the call was applied."""

    def __init__(self, position: int, value: float) -> None:
        self.position = position
        self.value = value
        super().__init__(
            f"priority {value!r} at position {position}: expected a finite number >= 0; take abs() of an error and see"
            " why it is not finite"
        )


@final
class ForeignKey(ReliveError, ValueError):
    """A key that this table never gave out; nothing of the call was applied."""

    def __init__(self, position: int, key: int) -> None:
        self.position = position
        self.key = key
        super().__init__(
            f"key {key} at position {position} is not of this table; pass the item_keys of its own batches and draws"
        )


@final
class NoPriorities(ReliveError, ValueError):
    """Priorities for an index of which neither the sampler nor the remover looks at any."""

    def __init__(self, index: object = None) -> None:
        self.index = index
        super().__init__(
            f"nothing of index {index!r} looks at priorities, so it has none; build it with Prioritized(),"
            " RankBased(), TopK(k), MaxPriority() or MinPriority(), or name another one"
        )


@final
class NoProbabilities(ReliveError, ValueError):
    """weights or probabilities of a batch that was gathered by keys, not drawn."""

    def __init__(self) -> None:
        super().__init__(
            "this batch was gathered by keys, so it was drawn with no probability; gather a Draw, or use sample()"
        )


# ---- lanes and episodes --------------------------------------------------------------------------------------------


@final
class CapacityTooSmall(ReliveError, ValueError):
    """The lanes that are open, or an index's min_size, need more steps than the table holds.

    arithmetic: how needed came about, where it is a min_size's.
    """

    def __init__(self, capacity: int, needed: int, lanes: int | None = None, arithmetic: str = "") -> None:
        self.capacity = capacity
        self.needed = needed
        self.lanes = lanes
        self.arithmetic = arithmetic
        if arithmetic:
            super().__init__(
                f"capacity {capacity} is too small: at least {needed} steps are needed ({arithmetic}), or sampling"
                " would never begin; give a larger capacity, or a smaller min_size"
            )
            return
        super().__init__(
            f"capacity {capacity} is too small: at least {needed} steps are needed"
            + (f" with {lanes} open lane{'s' if lanes != 1 else ''}" if lanes else "")
            + "; every open lane must hold one whole window (stack - 1 + n_step, or burn_in + length + bootstrap, or"
            " max_length + bootstrap; one more where next is not given): give a larger capacity, or fewer lanes"
        )


@final
class SeamMismatch(ReliveError, ValueError):
    """An append whose state differs from the next_<state> that the append before it gave."""

    def __init__(self, lane: int, column: str) -> None:
        self.lane = lane
        self.column = column
        super().__init__(
            f"lane {lane}: column {column!r} differs from the next_{column} of the append before, which is already"
            " stored and may have been sampled; after an environment was reset say terminated or truncated, or call"
            " end_episode"
        )


@final
class MissingNext(ReliveError, ValueError):
    """A truncated step without its next state."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(
            f"lane {lane}: a truncated step needs its next_<state> columns to bootstrap from; give the final"
            " observation (Gymnasium has it in info['final_obs'] where it resets in the same step)"
        )


@final
class AlreadyPublished(ReliveError, ValueError):
    """end_episode on a lane whose last step is already an item, so that its end cannot be changed."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(
            f"lane {lane}: its last step is already published, so its end can no longer be set; say terminated or"
            " truncated in the append itself, or leave next_<state> out of it"
        )


# ---- packages ------------------------------------------------------------------------------------------------------


@final
class MissingPackage(ReliveError, ModuleNotFoundError):
    """A part of the library needs a package that is not installed; command installs it."""

    def __init__(self, what: str, package: str, command: str) -> None:
        self.what = what
        self.package = package
        self.command = command
        super().__init__(f"{what} needs {package}: {command}")
        self.name = package


# ---- handles -------------------------------------------------------------------------------------------------------


@final
class TooManyLanes(ReliveError, ValueError):
    """More lanes than the table has free."""

    def __init__(self, asked: int, free: int) -> None:
        self.asked = asked
        self.free = free
        super().__init__(
            f"asked for {asked} lane{'s' if asked != 1 else ''}, {free} are free; close writers that are done, or make"
            " the table with a larger max_lanes"
        )


@final
class TooManyParticipants(ReliveError, ValueError):
    """More attached handles than the table has slots."""

    def __init__(self, max: int) -> None:
        self.max = max
        super().__init__(
            f"all {max} participant slots are taken; one handle serves any number of threads, so attach once a process,"
            " and read_only=True takes no slot"
        )


@final
class TableClosed(ReliveError, ValueError):
    """A call on a closed table."""

    def __init__(self) -> None:
        super().__init__("this table handle is closed; attach again by name, or make a new table")


@final
class WriterClosed(ReliveError, ValueError):
    """A call on a closed writer."""

    def __init__(self) -> None:
        super().__init__("this writer is closed; open another with table.writer()")


@final
class ForkedHandle(ReliveError, RuntimeError):
    """A handle that cannot be used in a forked child."""

    def __init__(self, what: str = "this handle") -> None:
        self.what = what
        super().__init__(
            f"{what} came over a fork: a writer's lanes, prefetched batches and LocalMemory tables belong to the"
            " process that opened them; open a writer in the child, and use SharedMemory(name) for a table of several"
            " processes"
        )


@final
class NotShareable(ReliveError, TypeError):
    """A table of one process, LocalMemory or Tiered, that was to be pickled."""

    def __init__(self) -> None:
        super().__init__(
            "a table in LocalMemory or Tiered lives in one process and cannot be pickled; make it with"
            " storage=SharedMemory(name), whose handle pickles as an address"
        )


@final
class ReadOnly(ReliveError, PermissionError):
    """A changing call on a table that was attached with read_only=True."""

    def __init__(self) -> None:
        super().__init__("this table was attached with read_only=True; attach without it to write")


@final
class CheckFailed(ReliveError, AssertionError):
    """check() found a broken invariant: a defect of the library or damaged memory."""

    def __init__(self, invariant: str = "", detail: object = "") -> None:
        self.invariant = invariant
        self.detail = _plain(detail)
        super().__init__(
            f"invariant broken: {invariant}"
            + (f" ({self.detail})" if self.detail != "" else "")
            + "; please report it with the output of table.stats()"
        )


# ---- the service ---------------------------------------------------------------------------------------------------


@final
class ServiceUnavailable(ReliveError, ConnectionError):
    """A server that is gone, hangs or cannot be reached. Whether it did what this call asked for is unknown."""

    def __init__(self, address: str, waited_s: float, reason: str = "") -> None:
        self.address = address
        self.waited_s = waited_s
        self.reason = reason
        super().__init__(
            f"{address} gave no answer in {waited_s:.3g} s"
            + (f" ({reason})" if reason else "")
            + "; see that it is served there; this handle works again once it is"
        )


@final
class Unacknowledged(ReliveError, RuntimeError):
    """Streamed steps that the server did not confirm; __cause__ is the error, reason its sentence."""

    def __init__(self, num_calls: int, num_steps: int, reason: str) -> None:
        self.num_calls = num_calls
        self.num_steps = num_steps
        self.reason = reason
        super().__init__(
            f"{num_steps} steps of the last {num_calls} calls are not acknowledged and not sent again: {reason}"
        )


@final
class StaleVersion(ReliveError, ValueError):
    """Parameters of a version that is not above the newest one published: versions never go back."""

    def __init__(self, version: int, newest: int) -> None:
        self.version = version
        self.newest = newest
        super().__init__(
            f"parameters of version {version}: expected a version above {newest}, the newest that is published; two"
            " publishers share one count, and one that starts anew goes on from the count it left"
        )


@final
class BadMessage(ReliveError, ValueError):
    """What came over the wire is no message of this version."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = _plain(got)
        super().__init__(f"{what}: expected {expected}, got {_shown(self.got)}; see that both sides run one version")


# ---- from the core -------------------------------------------------------------------------------------------------

_CLASS_OF_CODE: dict[str, type[ReliveError]] = {
    name: globals()[name] for name in __all__ if name not in ("ReliveError", "from_core")
}
_CLASS_OF_CODE["SystemError"] = SystemFailure
for _kind in _CLASS_OF_CODE.values():
    _kind.__module__ = __name__  # a traceback names the place where programs find them, wherever they are written


def from_core(code: str, fields: Mapping[str, Any]) -> ReliveError:
    """Returns (does not raise) the error of a core status: code as in status.hpp without its k, fields by name.

    Never fails itself: a code or a set of fields that this version does not know gives a plain ReliveError with them
    in its sentence and its attributes.
    """
    kind = _CLASS_OF_CODE.get(code)
    if kind is not None:
        named = kind.__init__.__code__.co_varnames[1 : kind.__init__.__code__.co_argcount]
        try:
            error = kind(**{name: value for name, value in fields.items() if name in named})
        except (TypeError, ValueError):
            pass  # a core of another version left fields out; below says all that came
        else:
            for name in fields.keys() - set(named):
                setattr(error, name, fields[name])
            if error.stored:
                error.args = (f"{error}; {_what_is_stored(error.stored, fields)}", *error.args[1:])
            return error
    shown = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    plain = ReliveError(f"{code}({shown})")
    plain.__dict__.update(fields)
    return plain


def _what_is_stored(stored: int, fields: Mapping[str, Any]) -> str:
    if "num_items" in fields:
        return f"the first {stored} of {fields['num_items']} items are made, under the error's keys: go on after them"
    return (
        f"the first {stored} of {fields.get('num_rows', 'the')} rows are stored, step by step, under the error's keys:"
        " go on with the rows after them, not with the whole block again"
    )
