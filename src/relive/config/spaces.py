"""Reads Gymnasium spaces by their names and attributes, so that neither gymnasium nor its forks are imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relive.errors import SpecError

__all__ = ["translate"]

_ARRAYS = ("Box", "MultiDiscrete", "MultiBinary")


def translate(space: object, path: str, convert: Callable[[str, Any, Any], Any]) -> Any:
    """Rebuilds the nesting of a space (Dict -> dict, Tuple -> tuple), with convert(path, shape, dtype) for its leaves.

    Raises SpecError for a space without a fixed shape (Text, Sequence, Graph, OneOf), and for anything else.
    """
    space_any: Any = space
    kinds = {kind.__name__ for kind in type(space).__mro__}
    if "Dict" in kinds and hasattr(space, "spaces"):
        return {key: translate(part, f"{path}/{key}", convert) for key, part in space_any.spaces.items()}
    if "Tuple" in kinds and hasattr(space, "spaces"):
        return tuple(translate(part, f"{path}/{at}", convert) for at, part in enumerate(space_any.spaces))
    if "Discrete" in kinds:
        return convert(path, (), getattr(space, "dtype", None) or np.int64)
    if any(kind in kinds for kind in _ARRAYS) and getattr(space, "shape", None) is not None:
        return convert(path, space_any.shape, space_any.dtype)
    raise SpecError(
        f"space of {path!r}",
        "a Gymnasium Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple",
        type(space).__name__ + (", whose spaces are wanted" if hasattr(space, "observation_space") else ""),
    )
