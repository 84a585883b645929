"""Classes of the library as inner nodes of trees (pytrees) of torch and jax, registered with what a program loads.

Neither is imported here: register_loaded is called where an object of such a class is made and modules have been loaded
since the last one, and registers the classes with those of the two that have been imported by then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Tree", "register_loaded", "seen", "trees"]


class Tree(NamedTuple):
    """How objects of a class come apart and are put together again."""

    names: Callable[[Any], Iterable[str]]  # of the leaves of an object, in order
    leaves: Callable[[Any], list[Any]]
    context: Callable[[Any], Any]  # what is no leaf; compares and hashes
    build: Callable[[Any, Iterable[Any], bool], Any]  # from a context and leaves; whether they are traced, not values


trees: dict[type[Any], Tree] = {}

_registered: set[str] = set()
seen = [0]  # modules that were loaded when register_loaded was called last: as many now, and there is nothing to do


def register_loaded() -> None:
    """Registers `trees` with torch and jax as far as they are loaded. Any thread."""
    seen[0] = len(sys.modules)
    for name, register in _FRAMEWORKS.items():
        module = sys.modules.get(name)
        # One that is being imported at the moment has its functions later.
        if name not in _registered and hasattr(module, "register_pytree_node"):
            _registered.add(name)
            for kind, tree in trees.items():
                # ValueError where another thread was faster (a lock would outlive a fork); the others of a version that
                # registers in another way: a batch is then a leaf, and all else goes on.
                with contextlib.suppress(AttributeError, TypeError, ValueError):
                    register(module, kind, tree)


def _with_torch(pytree: Any, kind: type[Any], tree: Tree) -> None:
    pytree.register_pytree_node(
        kind,
        lambda one: (tree.leaves(one), tree.context(one)),
        lambda leaves, context: tree.build(context, leaves, False),
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
    )


def _with_jax(tree_util: Any, kind: type[Any], tree: Tree) -> None:
    def with_keys(one: Any) -> tuple[list[Any], Any]:
        keys = map(tree_util.DictKey, tree.names(one))
        return list(zip(keys, tree.leaves(one), strict=True)), tree.context(one)

    def build(context: Any, leaves: Iterable[Any]) -> Any:
        arrays = list(leaves)
        tracer = sys.modules["jax"].core.Tracer
        return tree.build(context, arrays, any(isinstance(array, tracer) for array in arrays))

    tree_util.register_pytree_with_keys(
        kind, with_keys, build, lambda one: (tuple(tree.leaves(one)), tree.context(one))
    )


_FRAMEWORKS: dict[str, Callable[[Any, type[Any], Tree], None]] = {
    "torch.utils._pytree": _with_torch,
    "jax.tree_util": _with_jax,
}
