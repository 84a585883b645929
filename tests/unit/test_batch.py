"""A Batch is a mapping of columns with the nesting that was declared; a Draw is its keys alone."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from relive import ArraySpec, Batch, Draw, StepSpec
from relive.core.protocol import ReplayBatch, ReplayDraw
from relive.errors import InvalidConfig, NoProbabilities, UnknownColumn
from relive.reading.columns import Columns

SPEC = StepSpec(
    {
        "observation": {
            "camera": ArraySpec((2, 2), "uint8", kind="state"),
            "arms": (ArraySpec((), "float32", kind="state"), ArraySpec((), "float32", kind="state")),
        },
        "action": (ArraySpec((), "int64"), ArraySpec((), "int64")),
        "reward": ArraySpec((), "float32"),
    }
)
NAMES = (*SPEC.columns, *(f"next_{name}" for name in SPEC.state_columns), "discount")


def make_batch(names: tuple[str, ...] = NAMES, num_items: int = 4, gathered_by_keys: bool = False) -> Batch:
    arrays = [np.arange(num_items) + 100 * position for position in range(len(names))]
    probabilities = None if gathered_by_keys else np.linspace(0.1, 0.4, num_items)
    present = np.arange(num_items) % 2 == 0 if gathered_by_keys else None
    return Batch(Columns(names, SPEC), list(arrays), np.arange(num_items) + 7, probabilities, 10, present)


def test_is_a_mapping_of_top_level_columns() -> None:
    batch = make_batch()
    assert isinstance(batch, Mapping)
    assert list(batch) == ["observation", "action", "reward", "next_observation", "discount"]
    assert len(batch) == batch.num_items == 4 and len(batch.keys()) == 5
    assert dict(batch.items())["reward"] is batch["reward"]
    assert batch.get("nobody") is None and batch.get("reward") is batch["reward"]


def test_nesting_comes_back_as_declared() -> None:
    batch = make_batch()
    observation = batch["observation"]
    assert type(observation) is dict and list(observation) == ["camera", "arms"]
    assert type(observation["arms"]) is tuple and len(observation["arms"]) == 2
    assert observation["arms"][1] is batch["observation/arms/1"]
    assert type(batch["action"]) is tuple and batch["action"][0] is batch["action/0"]
    following = batch["next_observation"]
    assert following["arms"][0] is batch["next_observation/arms/0"]
    assert following["camera"] is batch["next_observation/camera"] is not observation["camera"]
    assert type(batch["observation/arms"]) is tuple


def test_part_of_a_tuple_stays_a_dict_by_position() -> None:
    batch = make_batch(("action/1", "observation/arms/0"))
    assert list(batch["action"]) == ["1"] and batch["action"]["1"] is batch["action/1"]
    assert list(batch["observation"]["arms"]) == ["0"]


def test_names() -> None:
    batch = make_batch()
    for name in ("reward", "observation", "observation/arms", "observation/arms/0", "next_observation/camera"):
        assert name in batch
    for name in ("next_reward", "observation/nobody", "obs", "arms", 3):
        assert name not in batch
    with pytest.raises(UnknownColumn, match="did you mean 'reward'"):
        batch["rewards"]
    with pytest.raises(KeyError):
        batch["observation/nobody"]
    assert list(batch.flat()) == list(NAMES)


def test_rows_are_a_batch() -> None:
    batch = make_batch()
    some = batch.rows(slice(1, 3))
    assert some.num_items == 2 and some.item_keys.tolist() == [8, 9] and some.num_live_items == 10
    assert np.shares_memory(some["reward"], batch["reward"])
    assert some["observation"]["arms"][0].tolist() == [101, 102]
    assert batch.rows(np.array([3, 0])).probabilities.tolist() == pytest.approx([0.4, 0.1])
    assert make_batch(gathered_by_keys=True).rows(slice(0, 2)).present.tolist() == [True, False]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_rows_go_backwards_and_are_named_in_any_way(as_tensors: bool) -> None:
    batch = make_batch(("reward",))
    if as_tensors:
        pytest.importorskip("torch", reason="torch is not installed here")
        batch = batch.to_torch()
    backwards = batch.rows(slice(None, None, -1))
    assert backwards.item_keys.tolist() == batch.item_keys.tolist()[::-1]
    for some in (backwards, batch.rows(np.arange(4)[::-1]), batch.rows([3, -2, 1, 0])):
        assert some["reward"].tolist() == batch["reward"].tolist()[::-1]
    assert batch.rows([]).num_items == 0 and batch.rows([True, False, False, True]).num_items == 2


@pytest.mark.parametrize(
    "which", [1, "x", None, 1.5, [1.0], [4], [-5], [True], [[0, 1]], slice("a", 2), slice(0, 2, 0), ["a"]]
)
def test_rows_that_there_are_not(which: object) -> None:
    for some in (make_batch(), Draw(np.arange(4), np.ones(4), 4, "default")):
        with pytest.raises(InvalidConfig, match="rows"):
            some.rows(which)  # type: ignore[attr-defined]


def test_tensors_that_name_no_rows() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    for which in (torch.zeros(2, requires_grad=True), torch.zeros(2, dtype=torch.int64, device="meta")):
        with pytest.raises(InvalidConfig, match="rows"):
            make_batch().rows(which)


class OnDevice:
    """Row numbers as a tensor of another device has them: numpy gets them by cpu() only."""

    def __init__(self, numbers: list[Any]) -> None:
        self._numbers = np.array(numbers)

    def cpu(self) -> np.ndarray:
        return self._numbers

    def __array__(self, *arguments: object, **options: object) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("which", [[3, -3], [False, True, False, True]])
def test_rows_are_named_by_a_tensor_of_another_device(which: list[Any], as_tensors: bool) -> None:
    batch = make_batch(("reward",), gathered_by_keys=True)
    if as_tensors:
        pytest.importorskip("torch", reason="torch is not installed here")
        batch = batch.to_torch()
    some, same = batch.rows(OnDevice(which)), batch.rows(which)
    assert some.item_keys.tolist() == same.item_keys.tolist() == batch.item_keys[which].tolist()
    assert some.present.tolist() == same.present.tolist()
    assert some["reward"].tolist() == same["reward"].tolist()
    draw = Draw(batch.item_keys, np.ones(4), 4, "default")
    assert draw.rows(OnDevice(which)).item_keys.tolist() == same.item_keys.tolist()  # type: ignore[arg-type]


class OtherArray:
    """An array of a library that is neither numpy nor torch: it has a device, and takes row numbers of numpy."""

    device = "its own"

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __getitem__(self, which: Any) -> OtherArray:
        assert isinstance(which, (slice, np.ndarray))
        return OtherArray(self.values[which])


@pytest.mark.parametrize("which", [[3, -3], [False, True, False, True], slice(None, None, -1), slice(1, 3)])
def test_rows_of_arrays_of_another_library(which: Any) -> None:
    batch = make_batch(("reward",))
    some = batch._with([OtherArray(array) for array in batch._arrays], None).rows(which)
    assert some["reward"].values.tolist() == batch.rows(which)["reward"].tolist()


@pytest.mark.parametrize("kind", ["uint8", "uint64", "int16"])
def test_row_numbers_have_any_kind_of_integer_and_may_be_read_only(kind: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    which = np.array([2, 0], kind)
    which.flags.writeable = False
    batch = make_batch(("reward",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        some = batch.to_torch().rows(which)
    assert some["reward"].tolist() == batch["reward"][[2, 0]].tolist()


def test_weights() -> None:
    batch = make_batch()
    raw = (10 * batch.probabilities) ** -0.5
    weights = batch.weights(0.5)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-6)
    np.testing.assert_allclose(batch.weights(beta=0.5, normalize=None), raw, rtol=1e-6)
    some = batch.rows(slice(2, 4)).weights(0.5)
    assert some.max() == 1.0
    for beta in (-1.0, float("nan"), "x"):
        with pytest.raises(InvalidConfig):
            batch.weights(beta)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig):
        batch.weights(0.5, normalize="ranks")  # type: ignore[arg-type]


def test_a_batch_gathered_by_keys_has_no_probabilities() -> None:
    batch = make_batch(gathered_by_keys=True)
    assert batch.present.tolist() == [True, False, True, False]
    for read in (lambda: batch.probabilities, lambda: batch.num_live_items, lambda: batch.weights(0.4)):
        with pytest.raises(NoProbabilities):
            read()
    assert make_batch().present is None


def test_batches_compare_by_identity_pickle_and_print() -> None:
    batch = make_batch()
    assert batch == batch and batch != make_batch() and len({batch, batch}) == 1
    again = pickle.loads(pickle.dumps(batch))
    assert again.item_keys.tolist() == batch.item_keys.tolist()
    assert again["observation"]["arms"][1].tolist() == batch["observation"]["arms"][1].tolist()
    assert repr(batch).startswith("Batch(4 items, observation/camera: int64(4,)")


def test_draw() -> None:
    draw = Draw(np.arange(4), np.full(4, 0.25), 9, "main")
    assert draw.num_items == 4 and draw.num_live_items == 9
    assert draw.rows(slice(2)).item_keys.tolist() == [0, 1]
    assert pickle.loads(pickle.dumps(draw)).index == "main"
    assert repr(draw) == "Draw(4 of 9 live items of index 'main')"


def test_they_have_the_interface_of_all_tables() -> None:
    assert isinstance(make_batch(), ReplayBatch)
    assert isinstance(Draw(np.arange(4), np.full(4, 0.25), 9, "main"), ReplayDraw)


def test_to_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = make_batch()
    tensors = batch.to_torch()
    assert torch.is_tensor(tensors["reward"]) and type(tensors["observation"]["arms"]) is tuple
    batch["reward"][0] = 77
    assert tensors["reward"][0] == 77, "nothing is copied on the CPU"
    assert tensors.item_keys is batch.item_keys
    weights = tensors.weights(0.5)
    assert torch.is_tensor(weights) and weights.dtype == torch.float32
    assert tensors.rows(slice(1, 3))["discount"].shape == (2,)
    assert torch.is_tensor(tensors.to_torch("cpu")["reward"])
