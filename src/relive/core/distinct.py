"""distinct(): the distinct numbers of an array, for threads that may outlive the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["distinct"]


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """The distinct numbers of an array, ascending. Cost: a sorted copy.

    np.unique takes the GIL again inside C++ code that no thread may leave. Before Python 3.14, a daemon thread that
    does so while the interpreter ends is made to leave, and the process dies of SIGABRT.
    """
    ordered = np.sort(numbers, axis=None)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
