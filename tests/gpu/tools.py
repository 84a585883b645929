"""Tables to read with kernels, and exact comparison with what the core reads."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import relive

torch = pytest.importorskip("torch", reason="device readers return torch tensors")
pytest.importorskip("triton", reason="relive.gpu needs triton, which has no wheel for this Python")

from triton.runtime.interpreter import InterpreterBuilder  # noqa: E402

from relive.gpu import DeviceReader  # noqa: E402
from relive.gpu.launch import BlockSizes  # noqa: E402

DEVICE = os.environ.get("RELIVE_TEST_DEVICE", "cpu")
ON_CARD = DEVICE != "cpu"

DERIVED = (
    "discount",
    "terminated",
    "truncated",
    "episode_step",
    "first",
    "num_steps",
    "policy_version",
    "staleness",
    "lane",
)
FRAME = (20, 20)


def all_columns(table: relive.Table) -> list[str]:
    spec = table.spec
    return [*spec.columns, *(f"next_{name}" for name in spec.state_columns), *DERIVED]


def assert_same(core: Any, device: Any) -> None:
    """Every column byte for byte, NaNs and zeros of absent items included."""
    expected, got = core.flat(), device.flat()
    assert list(expected) == list(got)
    for name, array in expected.items():
        mine = got[name].cpu().numpy()
        assert mine.dtype == array.dtype and mine.shape == array.shape, name
        if mine.tobytes() != array.tobytes():
            rows = [row for row in range(len(array)) if mine[row].tobytes() != array[row].tobytes()]
            raise AssertionError(f"{name}: rows {rows[:8]} differ: {mine[rows[0]]} instead of {array[rows[0]]}")


def assert_gathers_the_same(table: relive.Table, reader: DeviceReader, keys: np.ndarray, index: str | None) -> int:
    """All columns of these keys by core and kernels; returns how many were present."""
    columns = all_columns(table)
    core = table.gather(keys, columns, index=index)
    device = reader.gather(keys, columns, index=index)
    assert device.present.cpu().numpy().tolist() == core.present.tolist()
    assert_same(core, device)
    return int(core.present.sum())


def set_rounds(reader: DeviceReader, pause: Callable[[str], None] | None = None, blocks: Any = None) -> None:
    """Other block sizes, or a pause inside each round, for the reader's first index."""
    rounds = reader._rounds_of(0)

    def at_rest(stage: str) -> None:
        """A card is still at work when a launch returns."""
        if ON_CARD:
            torch.cuda.synchronize()
        if pause is not None:
            pause(stage)

    reader._rounds[0] = dataclasses.replace(rounds, pause=at_rest, blocks=blocks or rounds.blocks)


GPU_BLOCKS = BlockSizes()


@contextmanager
def before_load(address: int, num_bytes: int, action: Callable[[], None]) -> Iterator[None]:
    """Calls action once, just before a kernel first loads anything from these bytes: a pause inside a launch."""
    if ON_CARD:
        pytest.skip("only the interpreter can be stopped inside a launch")
    load = InterpreterBuilder.create_masked_load
    done: list[bool] = []

    def watched(self: Any, addresses: Any, mask: Any, *others: Any) -> Any:
        asked = np.broadcast_to(addresses.data, mask.data.shape)[mask.data].astype(np.uint64)
        if not done and ((asked >= address) & (asked < address + num_bytes)).any():
            done.append(True)
            action()
        return load(self, addresses, mask, *others)

    InterpreterBuilder.create_masked_load = watched
    try:
        yield
    finally:
        InterpreterBuilder.create_masked_load = load


def links_from(table: relive.Table, reader: DeviceReader, key: int, hops: int) -> list[int]:
    """The addresses of the next links that a window from this key follows."""
    facts = table._core.geometry
    region = np.frombuffer(table._core.region_bytes(), np.uint8)
    page = (key & (1 << facts["slot_bits"]) - 1) // facts["page_len"]
    found = []
    for _ in range(hops):
        at = facts["pages_offset"] + page * facts["structs"]["page"]["num_bytes"] + facts["structs"]["page"]["next"]
        found.append(at)
        page = int(region[at : at + 8].view(np.uint64)[0]) & (1 << facts["page_bits"]) - 1
    with reader._view.held() as span:
        return [span.address + at for at in found]


class _CudaArray:
    """Memory of a card, in the protocol by which torch takes it over."""

    def __init__(self, address: int, count: int) -> None:
        parts = {"shape": (count,), "typestr": "|b1", "data": (address, False), "version": 2}
        self.__cuda_array_interface__ = parts


def bools_at(address: int, count: int) -> Any:
    """The tensor bool[count] at an address of the device."""
    if ON_CARD:
        return torch.as_tensor(_CudaArray(address, count), device=DEVICE)
    return torch.frombuffer((ctypes.c_bool * count).from_address(address), dtype=torch.bool)


def numbered_spec() -> relive.StepSpec:
    """Rows that say in every cell which step they are."""
    return relive.StepSpec(
        {
            "observation": relive.ArraySpec((3,), "float32", kind="state"),
            "frame": relive.ArraySpec(FRAME, "uint8", kind="state"),
            "action": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )


def numbered_rows(first: int, count: int) -> dict[str, np.ndarray]:
    """Steps first, first + 1, ... and the state after the last."""
    numbers = np.arange(first, first + count + 1)
    frames = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (count + 1, *FRAME))
    return {
        "observation": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32),
        "frame": frames,
        "action": numbers[:-1],
        "reward": numbers[:-1].astype(np.float32),
    }


def wrong_rows(batch: Any, which: np.ndarray) -> list[int]:
    """Items among `which` whose cells are not all of the step that `action` names (windows of one step, no stack)."""
    action = batch["action"].cpu().numpy().astype(np.int64)
    good = (batch["observation"].cpu().numpy() == action[:, None]).all(axis=1)
    good &= (batch["next_observation"].cpu().numpy() == action[:, None] + 1).all(axis=1)
    good &= (batch["frame"].cpu().numpy() == (action % 251)[:, None, None]).all(axis=(1, 2))
    good &= (batch["next_frame"].cpu().numpy() == ((action + 1) % 251)[:, None, None]).all(axis=(1, 2))
    return [int(row) for row in which if not good[row]]
