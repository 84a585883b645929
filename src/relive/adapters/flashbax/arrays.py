"""Trees of arrays, as jax sees them if jax is installed; and arrays for the caller, by DLPack. Nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from relive.adapters.errors import NotOffered
from relive.adapters.trees import paths, rebuilt
from relive.config.casting import unmasked

try:
    import jax
except ImportError:
    jax = None

__all__ = ["canonical", "concrete", "handed_over", "taken_apart"]

_PARTS = ("key", "idx", "name")  # the attribute that names a step of one of jax's paths


def taken_apart(tree: Any) -> tuple[dict[str, Any], Callable[[list[Any]], Any]]:
    """The leaves of a tree by name, and the function that builds such a tree from as many leaves."""
    if jax is None:
        named = list(paths(tree))
    else:
        found, form = jax.tree_util.tree_flatten_with_path(tree)
        named = [(tuple(_part(one) for one in path), leaf) for path, leaf in found]
    names = [".".join(map(str, path)).replace("/", "|") or "step" for path, _ in named]
    if len(set(names)) < len(names):
        names = [f"{number}.{name}" for number, name in enumerate(names)]
    leaves = {name: leaf for name, (_, leaf) in zip(names, named, strict=True)}
    return leaves, (lambda values: rebuilt(tree, iter(values))) if jax is None else form.unflatten


def _part(step: Any) -> Any:
    return next((getattr(step, name) for name in _PARTS if hasattr(step, name)), step)


def concrete(value: Any, call: str) -> Any:
    """The value. Raises NotOffered if jax is tracing it."""
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise NotOffered("the adapter of Flashbax", f"{call}() inside jit, vmap, scan or pmap", "call it outside")
    return value


def canonical(value: Any, call: str) -> NDArray[Any]:
    """The value as an array with the dtype that jax gives it: float32 for float64, unless jax has 64 bits on."""
    array = unmasked(call, concrete(value, call))
    return array if jax is None else array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def handed_over(array: NDArray[Any]) -> Any:
    """The array as one of jax, by DLPack where the memory can be shared. Without jax the array itself."""
    if jax is None:
        return array
    if array.ndim == 0 or jax.default_backend() != "cpu":
        return jax.numpy.asarray(array)
    return jax.numpy.from_dlpack(array)
