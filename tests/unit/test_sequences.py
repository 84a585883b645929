"""Items with a time axis where limits meet: names, memory used again, parts of a batch, what never could be sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((2,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "core": relive.ArraySpec((3,), "float32", kind="start"),
    }
)


# length, period, capacity, and the most items of whole windows that fit it
WHOLE = [(80, None, 100, 1), (4, None, 100, 25), (4, 3, 100, 33), (4, 20, 100, 25)]


def episodes_table(lengths: tuple[int, ...], **options: Any) -> tuple[relive.Table, np.ndarray]:
    """A table of Episodes(10) with episodes of these lengths, and the keys of their first steps."""
    table = relive.Table(SPEC, 1000, relive.Index(relive.Episodes(10, **options)), timeout_s=0.0)
    with table.writer() as writer:
        firsts = [write(writer, length)[0] for length in lengths]
    return table, np.asarray(firsts)


def write(writer: relive.Writer, length: int) -> np.ndarray:
    numbers = np.arange(length)
    states, cores = np.zeros((length + 1, 2)), np.zeros((length, 3))
    return writer.extend(observation=states, action=numbers, core=cores, truncated=True)


@pytest.mark.parametrize("items", [relive.Sequences(3), relive.Episodes(3), relive.Episodes(3, layout="ragged")])
@pytest.mark.parametrize("name", ["mask", "loss_mask"])
def test_columns_named_as_a_mask_of_the_items_are_refused(items: Any, name: str) -> None:
    """A group of columns, too; transitions have no mask."""
    legal = relive.ArraySpec((4,), "bool")
    for column in (legal, {"legal": legal}):
        spec = relive.StepSpec({name: column})
        for index in (relive.Index(items), {"steps": relive.Index(), "items": relive.Index(items)}):
            with pytest.raises(errors.SpecError, match=f"'{name}'") as refused:
                relive.Table(spec, 100, index)
            assert refused.value.got == name
        relive.Table(spec, 100).close()


def test_rows_of_a_batch_of_episodes_keep_its_time_axis() -> None:
    """Rows of numpy arrays and of tensors are the same, whichever items are among them."""
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    table, keys = episodes_table((3, 8), bootstrap=1)
    batch = table.gather(keys)
    assert batch["action"].shape == (2, 9)
    for short in (batch.rows(slice(0, 1)), batch.rows(np.asarray([0])), batch.to_torch().rows(slice(0, 1))):
        assert tuple(short["action"].shape) == (1, 9) and tuple(short["core"].shape) == (1, 3)
        assert short.lengths.tolist() == [3]
    assert isinstance(batch.rows(slice(0, 1)).to_torch()["action"], torch.Tensor)
    assert tuple(batch.rows(slice(0, 1)).to_torch()["action"].shape) == (1, 9)


@pytest.mark.parametrize("bootstrap", [0, 1])
def test_memory_for_a_batch_of_episodes_has_every_row(bootstrap: int) -> None:
    """out= wants max_length + bootstrap rows, whatever the batch shows of them; the error says that and no more."""
    table, keys = episodes_table((3, 8), bootstrap=bootstrap)
    rows = 10 + bootstrap
    memory = {
        "observation": np.ones((1, rows, 2), np.float32),
        "action": np.ones((1, rows), np.int64),
        "core": np.ones((1, 3), np.float32),
        "discount": np.ones((1, rows), np.float32),
        "mask": np.ones((1, rows), np.bool_),
    }
    for key, length in ((keys[1:], 8), (keys[:1], 3), (keys[1:], 8)):
        batch = table.gather(key, out=memory)
        assert batch["action"].shape == (1, length + bootstrap) and np.shares_memory(batch["action"], memory["action"])
    with pytest.raises(errors.ShapeMismatch) as caught:
        table.gather(keys[:1], out=batch)
    assert caught.value.expected == f"(1, {rows}, 2), C-contiguous and writable" and "append" not in str(caught.value)


def test_what_stands_in_padding_has_no_say_in_a_priority() -> None:
    """Networks make nan and infinities of padding; the mask leaves them out."""
    td_errors = np.asarray([[1.0, np.nan, np.inf], [2.0, -4.0, np.nan]])
    mask = np.asarray([[True, False, False], [True, True, False]])
    expected = [1.0, 0.9 * 4 + 0.1 * 3]
    np.testing.assert_allclose(relive.sequence_priority(td_errors, mask), expected)
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    tensors = torch.from_numpy(td_errors), torch.from_numpy(mask)
    np.testing.assert_allclose(relive.sequence_priority(*tensors).numpy(), expected)


def test_a_priority_of_what_is_no_array_is_refused() -> None:
    with pytest.raises(errors.InvalidConfig, match="td_errors"):
        relive.sequence_priority([[1.0]], np.ones((1, 1), bool))
    with pytest.raises(errors.InvalidConfig, match="mask"):
        relive.sequence_priority(np.ones((1, 1)), [[True]])


def test_a_priority_of_a_hidden_error_is_refused() -> None:
    td_errors, mask = np.ones((1, 3), np.float32), np.ones((1, 3), bool)
    hides = np.array([[False, True, False]])
    with pytest.raises(errors.DtypeMismatch, match="hides 1 of 3"):
        relive.sequence_priority(np.ma.array(td_errors, mask=hides), mask)
    with pytest.raises(errors.DtypeMismatch, match="hides 1 of 3"):
        relive.sequence_priority(td_errors, np.ma.array(mask, mask=hides))


def test_a_priority_of_no_rows_is_zero() -> None:
    assert relive.sequence_priority(np.zeros((2, 0)), np.zeros((2, 0), bool)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("length", "period", "capacity", "most"),
    WHOLE,
)
def test_a_min_size_that_whole_windows_never_reach_is_refused(
    length: int, period: int | None, capacity: int, most: int
) -> None:
    items = relive.Sequences(length, period=period, at_end="drop")
    relive.Table(SPEC, capacity, relive.Index(items, limiter=relive.MinSize(most)))
    with pytest.raises(errors.CapacityTooSmall) as caught:
        relive.Table(SPEC, capacity, relive.Index(items, limiter=relive.MinSize(most + 1)))
    relive.Table(SPEC, caught.value.needed, relive.Index(items, limiter=relive.MinSize(most + 1)))


def test_a_capacity_below_a_window_names_what_the_window_is_made_of() -> None:
    with pytest.raises(errors.CapacityTooSmall, match=r"burn_in \+ length \+ bootstrap") as caught:
        relive.Table(SPEC, 10, relive.Index(relive.Sequences(8, burn_in=4)))
    assert caught.value.needed == 12


def time_major_table() -> tuple[relive.Table, np.ndarray]:
    return episodes_table((3, 8), bootstrap=1, time_major=True)


def test_a_tensor_batch_with_time_first_has_the_same_shapes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    table, keys = time_major_table()
    batch = table.gather(keys)
    tensors = batch.to_torch()
    assert tuple(tensors["action"].shape) == (9, 2) == batch["action"].shape and tuple(tensors["core"].shape) == (2, 3)
    assert tensors.lengths.tolist() == [3, 8] and tensors.lengths.dtype == torch.int64
    part = tensors.rows(np.asarray([1]))
    assert tuple(part["action"].shape) == (9, 1) and part.lengths.tolist() == [8] and part.num_items == 1


def test_a_tree_with_time_first_knows_its_items_by_their_own_axis() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    from torch.utils import _pytree as pytree

    table, keys = time_major_table()
    batch = table.gather(keys)
    doubled = pytree.tree_map(lambda array: array * 1, batch)
    assert doubled.item_keys.tolist() == keys.tolist() and doubled.lengths.tolist() == [3, 8]
    fewer = pytree.tree_map(lambda array: array[:, :1] if array.ndim > 1 else array, batch)
    with pytest.raises(errors.UnknownAttribute):
        _ = fewer.item_keys
    items_first, _ = episodes_table((3, 8), bootstrap=1)
    one, other = (pytree.tree_flatten(each.sample(2))[1] for each in (table, items_first))
    assert one != other


def test_priorities_with_time_first() -> None:
    td_errors = np.asarray([[1.0, -2.0, 5.0], [3.0, 0.0, 1.0]])
    mask = np.asarray([[True, True, False], [True, False, False]])
    expected = relive.sequence_priority(td_errors.T, mask.T)
    np.testing.assert_array_equal(relive.sequence_priority(td_errors, mask, time_major=True), expected)
    np.testing.assert_allclose(expected, [2.9, 2.0, 0.0])
    with pytest.raises(errors.InvalidConfig, match="time_major"):
        relive.sequence_priority(td_errors, mask, time_major=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, None, "yes", np.ones(1, bool)])
@pytest.mark.parametrize("items", [relive.Sequences, relive.Episodes])
def test_time_major_is_a_flag(items: Any, value: Any) -> None:
    with pytest.raises(errors.InvalidConfig, match="time_major"):
        items(4, time_major=value)


def test_time_major_is_of_items_with_a_time_axis() -> None:
    with pytest.raises(errors.UnknownArgument):
        relive.Transitions(time_major=True)  # type: ignore[call-arg]
    config = {"version": 2, "spec": SPEC.to_dict(), "capacity": 100}
    index = {"items": {"type": "Episodes", "max_length": 4, "time_major": True}}
    made = relive.TableConfig.from_dict({**config, "index": {"whole": index}})
    assert made.index["whole"].items == relive.Episodes(4, time_major=True)
    assert relive.TableConfig.from_metadata(made.to_metadata()) == made


def test_windows_that_cross_ends_have_at_most_half_the_rows() -> None:
    relive.Sequences(2000, burn_in=48, at_end="cross")
    with pytest.raises(errors.InvalidConfig, match="2048"):
        relive.Sequences(2000, burn_in=49, at_end="cross")
    with pytest.raises(errors.CapacityTooSmall) as caught:
        relive.Table(SPEC, 20, relive.Index(relive.Sequences(8, burn_in=4, at_end="cross")))
    assert caught.value.needed == 23
    with relive.Table(SPEC, 23, relive.Index(relive.Sequences(8, burn_in=4, at_end="cross"))) as table:
        with table.writer() as writer:
            for _ in range(30):
                write(writer, 1)
            assert table.num_items() == 1, "each step has a tail behind it"


def test_a_lane_counts_on_behind_a_page_that_is_gone() -> None:
    """Its last full page goes before its next row comes."""
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    index = relive.Index(relive.Sequences(2, period=3, at_end="cross"))
    with relive.Table(spec, 64, index, max_lanes=2) as table:
        slow, fast = table.writer(), table.writer()
        slow.extend(action=np.arange(8))
        for _ in range(20):
            fast.extend(action=np.arange(10), terminated=True)
        keys = slow.extend(action=np.arange(8, 16))
        assert (8 + np.flatnonzero(table.gather(keys).present)).tolist() == [9, 12]
        table.check()


def test_lanes_that_share_a_page_count_for_themselves() -> None:
    table = relive.Table(SPEC, 1000, relive.Index(relive.Sequences(2, burn_in=2, period=2, at_end="cross")))
    for number in range(12):
        with table.writer() as writer:
            keys = np.concatenate([write(writer, 1), write(writer, 1 + number % 5)])
        batch = table.gather(keys, columns=["action", "mask", "first"])
        assert np.flatnonzero(batch.present).tolist() == list(range(0, len(keys), 2))
        assert batch["mask"][0].tolist() == [False, False, True, True] and batch["first"][0].sum() == 2
    table.check()
