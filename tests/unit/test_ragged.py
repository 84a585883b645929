"""Episodes whose rows lie end to end: drawn while others write, as tensors, as trees, and what they take of memory."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

SPEC = relive.StepSpec(
    {
        "number": relive.ArraySpec((), "int64"),
        "frame": relive.ArraySpec((4096,), "uint8"),
        "core": relive.ArraySpec((), "int64", kind="start"),
    }
)
RAGGED = relive.Episodes(40, layout="ragged")


def episode(writer: relive.Writer, first: int, length: int) -> np.ndarray:
    numbers = np.arange(first, first + length)
    frames = np.repeat((numbers % 251).astype(np.uint8)[:, None], 4096, axis=1)
    return writer.extend(number=numbers, frame=frames, core=numbers, truncated=True)


def check_whole(batch: Any, lengths: dict[int, int] | None = None) -> None:
    """Each item is one episode, from its first step to its last, and each row has the bytes of its step."""
    offsets, numbers = np.asarray(batch.offsets), np.asarray(batch["number"])
    assert offsets[0] == 0 and offsets[-1] == len(numbers) == len(batch["frame"])
    for i, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        first = int(batch["core"][i])
        assert numbers[begin:end].tolist() == list(range(first, first + end - begin))
        assert lengths is None or lengths[first] == end - begin
    frames = np.asarray(batch["frame"])
    assert (frames == (numbers % 251)[:, None]).all()


@pytest.mark.parametrize("max_times_sampled", [None, 2])
def test_items_that_are_drawn_anew_move_those_behind_them(max_times_sampled: int | None) -> None:
    """Rows go between the reading of their lengths and of themselves, while another thread writes round and round."""
    index = relive.Index(RAGGED, max_times_sampled=max_times_sampled)
    table = relive.Table(SPEC, 400, index, timeout_s=5.0)
    lengths: dict[int, int] = {}
    stopping = threading.Event()
    problems: list[BaseException] = []

    def write() -> None:
        first = 0
        try:
            with table.writer() as writer:
                while not stopping.is_set():
                    length = 1 + first * 7 % 40
                    lengths[first] = length
                    episode(writer, first, length)
                    first += length
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        ends = time.monotonic() + 60
        while time.monotonic() < ends and table.stats().redraws_generation < 3 and not problems:
            if len(table) < 300:  # a draw that uses up what was just written meets no row that goes
                time.sleep(0.001)
                continue
            batch = table.sample(8 if max_times_sampled else 48)
            check_whole(batch, lengths)
            assert len(batch["number"]) == sum(lengths[int(first)] for first in batch["core"])
        assert table.stats().redraws_generation >= 3, "nothing was drawn anew: the test tests nothing"
    finally:
        stopping.set()
        thread.join()
    assert not problems
    table.check()
    table.close()


@pytest.fixture
def batch() -> Any:
    with relive.Table(SPEC, 1000, relive.Index(RAGGED), seed=2, timeout_s=0.0) as table, table.writer() as writer:
        first = 0
        for length in (3, 9, 1, 30):
            episode(writer, first, length)
            first += length
        yield table.sample(6)


def test_tensors(batch: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    tensors = batch.to_torch()
    assert isinstance(tensors.offsets, torch.Tensor) and tensors.offsets.dtype == torch.int64
    assert tensors["number"].data_ptr() == batch["number"].ctypes.data, "nothing is copied"
    check_whole(tensors)
    assert torch.equal(tensors.lengths, torch.from_numpy(batch.lengths))
    for which in (slice(1, 4), np.asarray([3, 0, 3]), torch.tensor([5, 1]), slice(None, None, 2)):
        part = tensors.rows(which)
        check_whole(part)
        assert isinstance(part.offsets, torch.Tensor) and part.num_items == len(part.offsets) - 1
    nested = torch.nested.nested_tensor_from_jagged(tensors["number"], tensors.offsets)
    assert nested.shape[0] == 6
    exchanged = np.from_dlpack(batch["frame"])
    assert np.shares_memory(exchanged, batch["frame"])


def test_trees(batch: Any) -> None:
    """The offsets are a leaf as the columns are; the items stay known as long as every leaf has its axis."""
    pytree = pytest.importorskip("torch.utils._pytree", reason="torch is not installed here")
    again = pytree.tree_map(lambda leaf: leaf.copy(), batch)
    assert again.item_keys.tolist() == batch.item_keys.tolist() and again.offsets.tolist() == batch.offsets.tolist()
    check_whole(again)
    shorter = pytree.tree_map(lambda leaf: leaf[:-1], batch)
    with pytest.raises(errors.UnknownAttribute):
        _ = shorter.item_keys
    assert len(pytree.tree_leaves(batch)) == len(batch.flat()) == 6


def test_a_batch_takes_the_bytes_of_its_rows(batch: Any) -> None:
    rows, items = int(batch.offsets[-1]), 6
    assert (
        sum(array.nbytes for array in batch.flat().values()) == rows * (8 + 4096 + 4 + 1) + items * 8 + (items + 1) * 8
    )
    frame = batch["frame"]
    assert frame.shape == (rows, 4096) and frame.flags.c_contiguous and frame.flags.writeable


def test_the_layout_is_a_value_of_the_configuration() -> None:
    config = relive.TableConfig(SPEC, 100, {"whole": relive.Index(RAGGED)})
    assert (
        pickle.loads(pickle.dumps(config)) == config != relive.TableConfig(SPEC, 100, relive.Index(relive.Episodes(40)))
    )
    assert relive.TableConfig.from_metadata(config.to_metadata()).index["whole"].items.layout == "ragged"


def test_one_table_gives_episodes_both_ways() -> None:
    index = {"padded": relive.Index(relive.Episodes(40)), "ragged": relive.Index(RAGGED)}
    with relive.Table(SPEC, 1000, index) as table, table.writer() as writer:
        keys = np.asarray([episode(writer, 10, 3)[0], episode(writer, 13, 5)[0]])
        padded, ragged = table.gather(keys, index="padded"), table.gather(keys, index="ragged")
        assert padded["frame"][padded.mask].tolist() == ragged["frame"].tolist()
        assert padded["number"].shape == (2, 5) and ragged["number"].shape == (8,)
