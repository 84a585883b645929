"""The functions that make a buffer, with Flashbax's names, arguments and conditions."""

from __future__ import annotations

from dataclasses import replace

from relive.adapters.flashbax.buffers import PrioritisedTrajectoryBuffer, TrajectoryBuffer
from relive.adapters.flashbax.store import Plan
from relive.checks.names import names_arguments
from relive.checks.values import flag, integer
from relive.config.storage import Storage
from relive.errors import InvalidConfig

__all__ = [
    "make_flat_buffer",
    "make_item_buffer",
    "make_prioritised_flat_buffer",
    "make_prioritised_item_buffer",
    "make_prioritised_trajectory_buffer",
    "make_trajectory_buffer",
]


@names_arguments
def make_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
    *,
    storage: Storage | None = None,
    seed: int = 0,
) -> TrajectoryBuffer:
    """A buffer of rows of steps [B, T, ...], which samples windows [N, sample_sequence_length, ...].

    Args:
        add_batch_size: B, the rows.
        sample_batch_size: N, the windows of a sample.
        sample_sequence_length: the steps of a window, at most 4,096.
        period: the distance between windows in a row, counted from its first step ever, at most 4,096.
        min_length_time_axis: the steps of each row that can_sample asks for; at least sample_sequence_length in any
            case.
        max_size: the most steps of all rows together. Give this or the next.
        max_length_time_axis: the most steps of a row.
        storage: where the table lives: LocalMemory() (default), SharedMemory(name), File(path) or Tiered(...).
        seed: of the draws.

    Raises:
        InvalidConfig: an argument has another type or value.
    """
    rows = integer("add_batch_size", add_batch_size, 1)
    if (max_size is None) == (max_length_time_axis is None):
        raise InvalidConfig("max_size and max_length_time_axis", "one of the two", (max_size, max_length_time_axis))
    most = max_length_time_axis if max_size is None else integer("max_size", max_size, rows) // rows
    length = integer("sample_sequence_length", sample_sequence_length, 1)
    least = max(integer("min_length_time_axis", min_length_time_axis, 0), length)
    return TrajectoryBuffer(Plan(rows, sample_batch_size, length, period, least, most, storage=storage, seed=seed))


@names_arguments
def make_prioritised_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
    priority_exponent: float = 0.6,
    device: str = "cpu",
    *,
    storage: Storage | None = None,
    seed: int = 0,
) -> PrioritisedTrajectoryBuffer:
    """A buffer as make_trajectory_buffer makes it, with priorities.

    Args:
        priority_exponent: from 0 to 1.
        device: taken and without effect: the table draws on the processor.

    The other arguments are those of make_trajectory_buffer. The most steps of a row are rounded down to a multiple of
    the period.

    Raises:
        InvalidConfig: an argument has another type or value.
    """
    windows = sample_batch_size, sample_sequence_length, period, min_length_time_axis
    sizes = max_size, max_length_time_axis
    plan = make_trajectory_buffer(add_batch_size, *windows, *sizes, storage=storage, seed=seed).plan
    return _prioritised(replace(plan, most=plan.most - plan.most % plan.period), priority_exponent)


@names_arguments
def make_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
    *,
    storage: Storage | None = None,
    seed: int = 0,
) -> TrajectoryBuffer:
    """A buffer of steps, which samples pairs of steps that follow each other, `first` and `second` [N, ...].

    Args:
        max_length: the most steps of all rows together.
        min_length: can_sample asks for more than min_length // rows steps of each row.
        sample_batch_size: N.
        add_sequences: whether a batch has an axis of time.
        add_batch_size: the rows; a batch has an axis of rows then. None: one row, and no axis.
        storage, seed: as for make_trajectory_buffer.

    Raises:
        InvalidConfig: an argument has another type or value.
    """
    rows = 1 if add_batch_size is None else integer("add_batch_size", add_batch_size, 1)
    most = integer("max_length", max_length, 2 * rows)
    plan = Plan(
        rows,
        integer("sample_batch_size", sample_batch_size, 1, most),
        length=2,
        period=1,
        least=max(2, integer("min_length", min_length, 0) // rows + 1),
        most=most // rows,
        form="pairs",
        has_batches=add_batch_size is not None,
        has_sequences=flag("add_sequences", add_sequences),
        storage=storage,
        seed=seed,
    )
    return TrajectoryBuffer(plan)


@names_arguments
def make_prioritised_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
    priority_exponent: float = 0.6,
    device: str = "cpu",
    *,
    storage: Storage | None = None,
    seed: int = 0,
) -> PrioritisedTrajectoryBuffer:
    """A buffer as make_flat_buffer makes it, with priorities.

    The arguments are those of make_flat_buffer and of make_prioritised_trajectory_buffer.

    Raises:
        InvalidConfig: an argument has another type or value.
    """
    sizes = max_length, min_length, sample_batch_size
    plan = make_flat_buffer(*sizes, add_sequences, add_batch_size, storage=storage, seed=seed).plan
    return _prioritised(plan, priority_exponent)


@names_arguments
def make_item_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
    *,
    storage: Storage | None = None,
    seed: int = 0,
) -> TrajectoryBuffer:
    """A buffer of items that have nothing to do with each other, which samples items [N, ...].

    Args:
        max_length: the most items.
        min_length: the items that can_sample asks for.
        sample_batch_size: N.
        add_sequences: whether a batch has an axis of time.
        add_batches: whether a batch has an axis of items, before the axis of time. Its length may change.
        storage, seed: as for make_trajectory_buffer.

    Raises:
        InvalidConfig: an argument has another type or value.
    """
    most = integer("max_length", max_length, 1)
    plan = Plan(
        1,
        integer("sample_batch_size", sample_batch_size, 1, most),
        length=1,
        period=1,
        least=max(1, integer("min_length", min_length, 0)),
        most=most,
        form="items",
        has_batches=flag("add_batches", add_batches),
        has_sequences=flag("add_sequences", add_sequences),
        storage=storage,
        seed=seed,
    )
    return TrajectoryBuffer(plan)


@names_arguments
def make_prioritised_item_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
    priority_exponent: float = 0.6,
    device: str = "cpu",
    *,
    storage: Storage | None = None,
    seed: int = 0,
) -> PrioritisedTrajectoryBuffer:
    """A buffer as make_item_buffer makes it, with priorities.

    The arguments are those of make_item_buffer and of make_prioritised_trajectory_buffer.

    Raises:
        InvalidConfig: an argument has another type or value.
    """
    sizes = max_length, min_length, sample_batch_size
    plan = make_item_buffer(*sizes, add_sequences, add_batches, storage=storage, seed=seed).plan
    return _prioritised(plan, priority_exponent)


def _prioritised(plan: Plan, exponent: float) -> PrioritisedTrajectoryBuffer:
    return PrioritisedTrajectoryBuffer(replace(plan, exponent=exponent))
