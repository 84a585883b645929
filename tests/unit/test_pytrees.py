"""A Batch is a tree of torch and of jax: its columns are the leaves, and it is told apart whose rows they are."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.reading import pytrees

SPEC = relive.StepSpec(
    {
        "observation": {
            "camera": relive.ArraySpec((2, 2), "uint8", kind="state"),
            "speed": relive.ArraySpec((), "float32", kind="state"),
        },
        "reward": relive.ArraySpec((), "float32"),
    }
)
NAMES = [
    "observation/camera",
    "observation/speed",
    "reward",
    "next_observation/camera",
    "next_observation/speed",
    "discount",
]


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(SPEC, 100, relive.Index(sampler=relive.Prioritized())) as made, made.writer() as writer:
        for number in range(20):
            writer.append(observation={"camera": np.full((2, 2), number, np.uint8), "speed": number}, reward=number)
        yield made


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MAKE_A_BATCH = """
import relive, numpy, sys
spec = relive.StepSpec({"x": relive.ArraySpec((), "float32", kind="state")})
table = relive.Table(spec, 10)
with table.writer() as writer:
    writer.extend(x=numpy.arange(5, dtype=numpy.float32), terminated=True)
"""


class TestTorch:
    @pytest.fixture
    def pytree(self) -> Any:
        pytest.importorskip("torch", reason="torch is not installed here")
        import torch.utils._pytree

        return torch.utils._pytree

    def test_the_columns_are_the_leaves(self, table: relive.Table, pytree: Any) -> None:
        batch = table.sample(8)
        leaves, structure = pytree.tree_flatten(batch)
        assert [leaf is array for leaf, array in zip(leaves, batch.flat().values(), strict=True)] == [True] * 6
        again = pytree.tree_unflatten(leaves, structure)
        assert type(again) is relive.Batch and list(again.flat()) == NAMES
        assert type(again["observation"]) is dict and again["observation/camera"] is batch["observation/camera"]

    def test_a_map_gives_a_batch_of_the_same_items(self, table: relive.Table, pytree: Any) -> None:
        import torch

        batch = table.sample(8)
        tensors = pytree.tree_map(torch.as_tensor, batch)
        assert type(tensors) is relive.Batch and isinstance(tensors["reward"], torch.Tensor)
        assert tensors.item_keys is batch.item_keys and tensors.num_items == 8
        assert np.array_equal(tensors.probabilities, batch.probabilities)
        assert isinstance(tensors.weights(0.5), torch.Tensor) and isinstance(batch.weights(0.5), np.ndarray)
        floats = pytree.tree_map(lambda tensor: tensor.double(), batch.to_torch())
        assert floats["observation/camera"].dtype == torch.float64
        assert table.update_priorities(floats.item_keys, np.ones(8)) == 8
        back = pytree.tree_map(lambda tensor: tensor.numpy(), floats)
        assert isinstance(back.weights(0.5), np.ndarray)

    def test_after_a_gather_too(self, table: relive.Table, pytree: Any) -> None:
        batch = table.gather(table.sample(4).item_keys)
        mapped = pytree.tree_map(lambda array: array + 1, batch)
        assert mapped.present is batch.present
        with pytest.raises(errors.NoProbabilities):
            mapped.weights(0.5)

    @pytest.mark.parametrize("change", [lambda x: x[:3], lambda x: x.sum(), lambda x: np.concatenate([x, x])])
    def test_other_rows_are_nobodys(self, table: relive.Table, pytree: Any, change: Any) -> None:
        """Priorities for the rows of a changed batch would go to other items: it does not say which they are."""
        batch = table.sample(8)
        mapped = pytree.tree_map(change, batch)
        assert np.array_equal(mapped["reward"], change(batch["reward"]))
        for name in ("item_keys", "num_items", "probabilities", "num_live_items", "present"):
            with pytest.raises(errors.UnknownAttribute, match="the batch that was drawn"):
                getattr(mapped, name)
        with pytest.raises(errors.UnknownAttribute):
            mapped.weights(0.5)
        assert "no items" in repr(mapped)
        assert batch.num_items == 8
        twice = pytree.tree_map(lambda x: x, mapped)
        assert not hasattr(twice, "item_keys")

    def test_leaves_that_are_no_arrays(self, table: relive.Table, pytree: Any) -> None:
        batch = table.sample(8)
        shapes = pytree.tree_map(lambda array: None, batch)
        assert shapes["reward"] is None and shapes.item_keys is batch.item_keys and "Batch(8 items" in repr(shapes)

    def test_two_batches_together(self, table: relive.Table, pytree: Any) -> None:
        """Batches of the same columns have the same structure, whatever they hold."""
        one, two = table.sample(8), table.sample(8)
        assert pytree.tree_structure(one) == pytree.tree_structure(two)
        assert pytree.tree_structure(one) != pytree.tree_structure(table.sample(8, columns=["reward"]))
        names = list(one.flat())
        assert pytree.tree_structure(one) == pytree.tree_structure(table.sample(2, columns=names))  # resolved again
        both = pytree.tree_map(lambda *arrays: np.concatenate(arrays), one, two)
        assert both["reward"].shape == (16,) and not hasattr(both, "item_keys")

    def test_the_structure_holds_no_array(self, table: relive.Table, pytree: Any) -> None:
        import gc
        import weakref

        batch = table.sample(8)
        array = weakref.ref(batch["reward"])
        structure = pytree.tree_structure(batch)
        del batch
        gc.collect()
        assert array() is None and structure.num_leaves == 6

    @pytest.mark.parametrize("order", ["import torch\n" + MAKE_A_BATCH, MAKE_A_BATCH + "import torch\n"])
    def test_whichever_is_imported_first(self, pytree: Any, order: str) -> None:
        program = order + "import torch.utils._pytree as t; print(type(t.tree_map(abs, table.sample(2))).__name__)"
        assert run(program) == "Batch"


def test_torch_is_not_imported_for_it() -> None:
    assert run(MAKE_A_BATCH + "table.sample(2); print([n for n in ('torch', 'jax') if n in sys.modules])") == "[]"


class TestJax:
    @pytest.fixture
    def jax(self) -> Any:
        return pytest.importorskip("jax", reason="jax is not installed here")

    def test_a_map_gives_a_batch_of_the_same_items(self, table: relive.Table, jax: Any) -> None:
        """Keys have 64 bits, which an array of jax would cut: they stay beside the leaves."""
        batch = table.sample(8)
        mapped = jax.tree_util.tree_map(jax.numpy.asarray, batch)
        assert type(mapped) is relive.Batch and isinstance(mapped["reward"], jax.Array)
        assert mapped.item_keys is batch.item_keys and isinstance(mapped.weights(0.5), np.ndarray)

    def test_some_rows_of_a_batch(self, table: relive.Table, jax: Any) -> None:
        batch = table.sample(8)
        mapped = jax.tree_util.tree_map(jax.numpy.asarray, batch)
        for which in ([5, 0], np.arange(8) > 5, slice(None, None, -1), slice(2, 4)):
            some, expected = mapped.rows(which), batch.rows(which)
            assert isinstance(some["reward"], jax.Array) and np.allclose(some["reward"], expected["reward"])
            assert some.item_keys.tolist() == expected.item_keys.tolist()

    def test_a_function_is_compiled_once(self, table: relive.Table, jax: Any) -> None:
        traced = []

        @jax.jit
        def error(batch: relive.Batch) -> Any:
            traced.append(hasattr(batch, "item_keys"))
            return batch["reward"] + batch["discount"] * batch["next_observation/speed"]

        for _ in range(3):
            batch = table.sample(8)
            expected = batch["reward"] + batch["discount"] * batch["next_observation/speed"]
            assert np.allclose(error(batch), expected)
        assert traced == [False]  # there its keys would be those of the first batch, for ever

    def test_what_a_compiled_function_returns_says_not_whose_rows_they_are(self, table: relive.Table, jax: Any) -> None:
        double = jax.jit(lambda batch: jax.tree_util.tree_map(lambda x: x * 2, batch))
        for _ in range(2):
            batch = table.sample(8)
            doubled = double(batch)
            assert np.array_equal(doubled["reward"], batch["reward"] * 2)
            with pytest.raises(errors.UnknownAttribute, match="the batch that was drawn"):
                _ = doubled.item_keys

    def test_paths_name_the_columns(self, table: relive.Table, jax: Any) -> None:
        paths = jax.tree_util.tree_flatten_with_path(table.sample(2))[0]
        assert [path[0].key for path, _ in paths] == NAMES


def test_jax_is_registered_where_it_is_loaded(table: relive.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in, so that it is tried where jax is not installed, too."""
    registered: dict[type, tuple[Any, Any, Any]] = {}

    def register(kind: type, with_keys: Any, build: Any, flatten: Any) -> None:
        registered[kind] = (with_keys, build, flatten)

    class Tracer:
        shape = (8,)

    tree_util = types.SimpleNamespace(
        register_pytree_node=None, register_pytree_with_keys=register, DictKey=lambda name: f"[{name}]"
    )
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(core=types.SimpleNamespace(Tracer=Tracer)))
    monkeypatch.setitem(sys.modules, "jax.tree_util", tree_util)
    monkeypatch.setattr(pytrees, "_registered", {"torch.utils._pytree"})
    pytrees.seen[0] = 0
    batch = table.sample(8)
    with_keys, build, flatten = registered[relive.Batch]
    leaves, rest = flatten(batch)
    assert [key for key, _ in with_keys(batch)[0]] == [f"[{name}]" for name in NAMES]
    assert build(rest, leaves).item_keys is batch.item_keys
    assert not hasattr(build(rest, [Tracer()] * 6), "item_keys")
