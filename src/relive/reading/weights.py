"""Importance weights, of a batch and of a draw."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.checks.values import finite
from relive.errors import InvalidConfig

__all__ = ["USUAL", "Normalize", "importance_weights"]

Normalize = Literal["batch"] | None

USUAL: Literal["batch"] = "batch"


def importance_weights(
    probabilities: npt.NDArray[np.float64], num_live_items: int, beta: Any, normalize: Any
) -> npt.NDArray[np.float32]:
    """(N p) ** -beta of each item, divided by the largest one if normalize is 'batch'.

    Args:
        probabilities: float64[B].
        num_live_items: N.
        beta: exponent, >= 0.
        normalize: 'batch' or None.

    Raises:
        InvalidConfig: beta or normalize has another type or value.

    Source: Schaul et al. 2016, section 3.4.
    """
    if normalize is not USUAL and normalize is not None and (type(normalize) is not str or normalize != USUAL):
        raise InvalidConfig("normalize", "'batch' or None", normalize)
    if type(beta) is not float or not 0.0 <= beta < math.inf:
        beta = finite("beta", beta, 0.0)
    return _core.importance_weights(probabilities, num_live_items, beta, normalize is not None)
