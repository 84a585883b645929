"""sequence_priority against its formula, in numpy and in torch."""

from __future__ import annotations

import numpy as np
import pytest

import relive
from relive import errors


def test_it_is_the_formula() -> None:
    td_errors = np.asarray([[1.0, -3.0, 2.0], [0.5, 9.0, 9.0], [7.0, 7.0, 7.0]])
    mask = np.asarray([[True, True, True], [True, False, False], [False, False, False]])
    got = relive.sequence_priority(td_errors, mask, eta=0.75)
    np.testing.assert_allclose(got, [0.75 * 3 + 0.25 * 2, 0.5, 0.0])


def test_torch_tensors_give_a_tensor_of_the_same_numbers() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    rng = np.random.default_rng(1)
    td_errors, mask = rng.normal(size=(8, 5)).astype(np.float32), rng.random((8, 5)) < 0.6
    got = relive.sequence_priority(torch.from_numpy(td_errors), torch.from_numpy(mask))
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got.numpy(), relive.sequence_priority(td_errors, mask), rtol=1e-6)


def test_what_it_refuses() -> None:
    with pytest.raises(errors.ShapeMismatch):
        relive.sequence_priority(np.zeros((2, 3)), np.ones((2, 4), bool))
    with pytest.raises(errors.InvalidConfig):
        relive.sequence_priority(np.zeros((2, 3)), np.ones((2, 3), bool), eta=2.0)
