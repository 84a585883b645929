"""Registers classes of the library as inner nodes of trees (pytrees) with torch and jax, if a program has loaded them.

Neither is imported here. Code that makes an object of such a class calls register_loaded if modules have been loaded
since the last call. That registers the classes with the frameworks that have been imported by then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Tree", "register_loaded", "seen", "trees"]


class Tree(NamedTuple):
    """How objects of a class come apart, and how they are put together again."""

    names: Callable[[Any], Iterable[str]]  # the names of an object's leaves, in order
    leaves: Callable[[Any], list[Any]]
    context: Callable[[Any], Any]  # the part that is no leaf; compares and hashes
    build: Callable[[Any, Iterable[Any], bool], Any]  # from a context and leaves; True: the leaves are traced


trees: dict[type[Any], Tree] = {}

_registered: set[str] = set()
seen = [0]  # loaded modules at the last call of register_loaded: with as many there is nothing to do


def register_loaded() -> None:
    """Registers `trees` with torch and jax, if they are loaded. Any thread may call it."""
    seen[0] = len(sys.modules)
    for name, register in _FRAMEWORKS.items():
        module = sys.modules.get(name)
        # A module that is being imported at this moment does not have its functions yet.
        if name not in _registered and hasattr(module, "register_pytree_node"):
            _registered.add(name)
            for kind, tree in trees.items():
                # ValueError: another thread was faster (a lock would outlive a fork). The others: a version that
                # registers in another way; then a batch is a leaf, and the program goes on.
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
