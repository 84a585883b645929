"""Priorities of items that have more than one step."""

from __future__ import annotations

from typing import Any

import numpy as np

from relive.checks.names import names_arguments
from relive.checks.values import finite, flag
from relive.config.casting import refuse_hidden
from relive.errors import InvalidConfig, ShapeMismatch

__all__ = ["sequence_priority"]


@names_arguments
def sequence_priority(
    td_errors: Any, mask: Any, eta: float = 0.9, *, time_major: bool = False, offsets: Any = None
) -> Any:
    """The priority of a sequence: eta * max + (1 - eta) * mean of |td_errors|, over the rows that the mask names.

    Pass the mask of the rows that carry loss to leave out burn-in. A sequence without such a row has priority 0.

    Args:
        td_errors: [B, T]; [T, B] if time_major; [B, G, T] for groups of episodes, whose G episodes count together;
            [rows] with offsets. A numpy array or a torch tensor.
        mask: bool of the same shape and kind.
        eta: share of the maximum, in [0, 1].
        time_major: the time axis comes first.
        offsets: batch.offsets of ragged items.

    Returns:
        [B], of the kind of td_errors.

    Raises:
        InvalidConfig: an argument has another type or value.
        ShapeMismatch: the shapes do not fit together.
        DtypeMismatch: a masked array hides a value.

    Source: Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning, section 2.3.
    """
    eta = finite("eta", eta, 0.0, 1.0)
    axis = 0 if flag("time_major", time_major) or offsets is not None else 1
    if time_major and offsets is not None:
        raise InvalidConfig("time_major with offsets", "False: rows that lie end to end have one axis", time_major)
    for what, value in (("td_errors", td_errors), ("mask", mask)):
        if not hasattr(value, "shape"):
            raise InvalidConfig(what, "a numpy array or a torch tensor [B, T]", value)
        refuse_hidden(what, value)
    if tuple(td_errors.shape) != tuple(mask.shape):
        raise ShapeMismatch("mask of td_errors", tuple(td_errors.shape), tuple(mask.shape))
    axes = ("rows",) if offsets is not None else ("T", "B") if axis == 0 else ("B", "T")
    if len(td_errors.shape) != len(axes) and (axis == 0 or len(td_errors.shape) != 3):
        raise ShapeMismatch("td_errors", axes, tuple(td_errors.shape))
    if len(td_errors.shape) == 3:
        num_items, num_episodes, num_rows = td_errors.shape
        flat = (num_items, num_episodes * num_rows)
        td_errors, mask = td_errors.reshape(flat), mask.reshape(flat)
    errors, named = _wide(abs(td_errors)), mask != 0
    # Not a product: the error of a padded row may be nan or infinite.
    errors = np.where(named, errors, 0) if isinstance(errors, np.ndarray) else errors.masked_fill(~named, 0)
    if offsets is not None:
        found = _end_to_end(errors, named, offsets, eta)
    elif not errors.shape[axis]:
        found = errors.sum(axis)
    else:
        largest = errors.amax(axis) if hasattr(errors, "amax") else errors.max(axis)
        found = eta * largest + (1.0 - eta) * errors.sum(axis) / named.sum(axis).clip(1)
    return _of_kind(found, td_errors)


def _wide(errors: Any) -> Any:
    """Half precision as float32: a sum of errors may exceed its range although the priority does not."""
    if isinstance(errors, np.ndarray):
        return errors.astype(np.float32) if errors.dtype == np.float16 else errors
    return errors.float() if errors.is_floating_point() and errors.element_size() < 4 else errors


def _of_kind(found: Any, td_errors: Any) -> Any:
    """The result in half precision where the errors are: it is at most their maximum."""
    if isinstance(found, np.ndarray):
        return found.astype(np.float16) if td_errors.dtype == np.float16 else found
    return found.to(td_errors.dtype) if td_errors.is_floating_point() and td_errors.element_size() < 4 else found


def _end_to_end(errors: Any, named: Any, offsets: Any, eta: float) -> Any:
    """The same for errors [rows], which are 0 where the mask does not name them. offsets say how long items are."""
    starts = np.asarray(offsets.cpu() if hasattr(offsets, "cpu") else offsets)
    fits = starts.ndim == 1 and len(starts) > 0 and starts[0] == 0 and starts[-1] == len(errors)
    if not fits or (np.diff(starts) < 0).any():
        raise InvalidConfig("offsets", f"int64 [B + 1], ascending from 0 to {len(errors)}", offsets)
    num_items = len(starts) - 1
    whose = np.repeat(np.arange(num_items), np.diff(starts))
    if isinstance(errors, np.ndarray):
        largest = np.zeros(num_items, errors.dtype)
        np.maximum.at(largest, whose, errors)
        total = np.bincount(whose, errors, num_items)
        count = np.bincount(whose[named], minlength=num_items)
    else:
        item = errors.new_tensor(whose, dtype=named[:0].long().dtype)
        largest = errors.new_zeros(num_items).scatter_reduce(0, item, errors, "amax")
        total = errors.new_zeros(num_items).index_add(0, item, errors)
        count = item.new_zeros(num_items).index_add(0, item, named.long())
    return eta * largest + (1.0 - eta) * total / count.clip(1)
