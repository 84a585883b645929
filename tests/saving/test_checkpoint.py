"""relive.checkpoint: learner, table and cursor as of one moment; and trees as bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
import relive.checkpoint
from relive import errors
from relive.saving.trees import tree_from_bytes, tree_to_bytes
from saving.test_save import made, same_rows

TREE = {
    "model": {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros((0, 2)), "scalar": np.float64(2.5)},
    "steps": [1, -(2**80), True, None, 1.5, float("inf"), "text", b"\0\1"],
    "pair": (1, (2, [3])),
    7: {("a", 1): "a key that JSON has not"},
}


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other


def test_a_tree_comes_back_as_it_was() -> None:
    assert alike(tree_from_bytes(tree_to_bytes(TREE)), TREE)


def test_the_state_of_an_optimizer_comes_back() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = tree_from_bytes(tree_to_bytes({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    other = torch.nn.Linear(3, 2).to(torch.bfloat16)
    other.load_state_dict(state["model"])
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(state["optimizer"])
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert state["model"]["weight"].dtype == torch.bfloat16


FIELDS = np.zeros(2, [("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize(
    "value", [object(), np.array([object()]), {1, 2}, lambda: 0, FIELDS, FIELDS[0], np.ma.masked_array([1], [True])]
)
def test_other_values_are_refused_with_their_place(value: Any) -> None:
    with pytest.raises(errors.InvalidConfig, match="/deep/1"):
        tree_to_bytes({"deep": [0, value]})


def test_views_of_tensors_come_back_and_tensors_without_plain_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    conjugate = torch.tensor([1 + 2j]).conj()
    for view in (conjugate, conjugate.imag, torch.ones(1).expand(3), torch.arange(6).reshape(2, 3).T):
        assert torch.equal(tree_from_bytes(tree_to_bytes(view)), view)
    for value in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(errors.InvalidConfig, match="/deep/0"):
            tree_to_bytes({"deep": [value]})


def test_damaged_trees_are_one_error() -> None:
    whole = tree_to_bytes(TREE)
    rng = random.Random(1)
    for _ in range(2_000):
        data = bytearray(whole)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        for _ in range(rng.randint(1, 3)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            tree_from_bytes(bytes(data), "x")
        except errors.DamagedSave as error:
            assert error.path == "x"


def test_learner_table_and_cursor_are_of_one_moment(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    table, keys = made()
    loader = relive.loader(table, 16)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    relive.checkpoint.save(tmp_path, table=table, learner=TREE, cursor=loader)
    expected = [next(batches)["item_keys"].tolist() for _ in range(3)]
    found = relive.checkpoint.load(tmp_path)
    assert alike(found.learner, TREE) and same_rows(table, found.table, keys)
    again = relive.loader(found.table, 16)
    again.load_state_dict(found.cursor)
    batches = iter(again)
    assert [next(batches)["item_keys"].tolist() for _ in range(3)] == expected


def test_parts_that_were_not_saved_are_none(tmp_path: Path) -> None:
    table, _ = made()
    saving = relive.checkpoint.save(tmp_path, table=table, wait=False)
    saving.wait()
    found = relive.checkpoint.load(tmp_path, capacity=2_000)
    assert found.learner is None and found.cursor is None and found.table.capacity == 2_000
    with pytest.raises(errors.InvalidConfig):
        relive.checkpoint.save(tmp_path, table="table")
    with pytest.raises(errors.InvalidConfig):
        relive.checkpoint.save(tmp_path, table=table, learner={"f": open})
    with pytest.raises(errors.InvalidConfig, match="cursor"):
        relive.checkpoint.save(tmp_path, table=table, cursor=5)  # type: ignore[arg-type]
    assert relive.saved(tmp_path).beside == ()
