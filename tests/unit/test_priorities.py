"""sequence_priority against its formula, in numpy and in torch."""

from __future__ import annotations

import threading

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


@pytest.mark.parametrize("as_tensors", [False, True])
def test_items_that_lie_end_to_end(as_tensors: bool) -> None:
    """As if each were padded; one without rows, or without a row that counts, has 0."""
    rng = np.random.default_rng(2)
    lengths = [3, 0, 1, 5, 2, 0]
    offsets = np.cumsum([0, *lengths])
    td_errors, mask = rng.normal(size=11).astype(np.float32), rng.random(11) < 0.7
    mask[9:], td_errors[10] = False, np.nan
    padded, padded_mask = np.zeros((6, 5), np.float32), np.zeros((6, 5), bool)
    for item, (begin, length) in enumerate(zip(offsets[:-1], lengths, strict=True)):
        padded[item, :length], padded_mask[item, :length] = td_errors[begin:][:length], mask[begin:][:length]
    expected = relive.sequence_priority(padded, padded_mask)
    given = [td_errors, mask, offsets]
    if as_tensors:
        torch = pytest.importorskip("torch", reason="torch is not installed here")
        given = [torch.from_numpy(one) for one in given]
    got = relive.sequence_priority(given[0], given[1], offsets=given[2])
    assert type(got) is type(given[0])
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)
    for wrong in (offsets[1:], offsets[:-2], offsets[::-1].copy(), offsets[:, None]):
        with pytest.raises(errors.InvalidConfig, match="offsets"):
            relive.sequence_priority(td_errors, mask, offsets=wrong)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_many_items_end_to_end_in_half_precision(half: str) -> None:
    """Numbers of items, and of rows, that half precision has no digits for."""
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    td_errors, mask = torch.ones(3000, dtype=getattr(torch, half)), torch.ones(3000, dtype=torch.bool)
    td_errors[1::2] = 0.0
    offsets = np.arange(3001)
    got = relive.sequence_priority(td_errors, mask, offsets=offsets)
    assert got.dtype == td_errors.dtype and got.tolist() == td_errors.tolist()
    one = relive.sequence_priority(td_errors, mask, 0.0, offsets=offsets[[0, 3000]])
    assert one.tolist() == [0.5]
    wide = relive.sequence_priority(td_errors.double() / 3, mask, 0.0, offsets=offsets[[0, 3000]])
    assert wide.dtype == torch.float64 and abs(wide.item() - 1 / 6) < 1e-12


@pytest.mark.parametrize("half", ["numpy", "float16", "bfloat16"])
@pytest.mark.parametrize("end_to_end", [False, True])
def test_errors_whose_sum_half_precision_does_not_have(half: str, end_to_end: bool) -> None:
    values, mask = np.full((2, 80), 1000.0), np.ones((2, 80), bool)
    offsets = np.array([0, 80, 160]) if end_to_end else None
    if end_to_end:
        values, mask = values.reshape(-1), mask.reshape(-1)
    td_errors, named = values.astype(np.float16), mask
    if half != "numpy":
        torch = pytest.importorskip("torch", reason="torch is not installed here")
        td_errors, named = torch.tensor(values, dtype=getattr(torch, half)), torch.from_numpy(mask)
    got = relive.sequence_priority(td_errors, named, offsets=offsets)
    assert got.dtype == td_errors.dtype and got.tolist() == [1000.0, 1000.0]


def test_what_it_refuses() -> None:
    with pytest.raises(errors.ShapeMismatch):
        relive.sequence_priority(np.zeros((2, 3)), np.ones((2, 4), bool))
    with pytest.raises(errors.InvalidConfig):
        relive.sequence_priority(np.zeros((2, 3)), np.ones((2, 3), bool), eta=2.0)
    with pytest.raises(errors.InvalidConfig, match="time_major"):
        relive.sequence_priority(np.zeros(3), np.ones(3, bool), time_major=True, offsets=[0, 3])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_group_is_one_sequence_of_all_its_episodes(kind: str) -> None:
    rng = np.random.default_rng(4)
    td_errors, mask = rng.normal(size=(5, 3, 7)), rng.random((5, 3, 7)) < 0.6
    expected = relive.sequence_priority(td_errors.reshape(5, 21), mask.reshape(5, 21))
    given: tuple = (td_errors, mask)
    if kind == "torch":
        given = tuple(map(pytest.importorskip("torch", reason="torch is not installed here").from_numpy, given))
    np.testing.assert_allclose(np.asarray(relive.sequence_priority(*given)), expected)
    none = relive.sequence_priority(given[0][:0], given[1][:0])
    assert tuple(none.shape) == (0,)


@pytest.mark.parametrize(
    "shape, options, expected",
    [
        ((3,), {}, ("B", "T")),
        ((2, 3, 4, 5), {}, ("B", "T")),
        ((2, 3, 4), {"time_major": True}, ("T", "B")),
        ((2, 3), {"offsets": [0, 3]}, ("rows",)),
    ],
)
def test_errors_of_another_number_of_axes_are_refused(shape: tuple[int, ...], options: dict, expected: tuple) -> None:
    with pytest.raises(errors.ShapeMismatch) as caught:
        relive.sequence_priority(np.zeros(shape), np.ones(shape, bool), **options)
    assert caught.value.expected == expected and caught.value.got == shape


def test_priorities_are_exact_while_the_exponent_changes() -> None:
    """A leaf has the old or the new exponent while a change is under way; a reader knows which."""
    spec = relive.StepSpec({"x": relive.ArraySpec((), "int64")})
    index = relive.Index(sampler=relive.Prioritized(0.6))
    with relive.Table(spec, 5000, index) as table, table.writer() as writer:
        keys = writer.extend(x=np.arange(4000))
        given = np.random.default_rng(0).random(4000).astype(np.float32) + 0.1
        table.update_priorities(keys, given)
        stop = threading.Event()

        def change() -> None:
            exponents = (0.3, 1.0, 0.6, 0.25)
            number = 0
            while not stop.is_set():
                table.set_priority_exponent(exponents[number % 4])
                number += 1

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(200):
                read = table.gather(keys, columns=["priority"])["priority"]
                assert read.tobytes() == given.tobytes()
        finally:
            stop.set()
            thread.join()
