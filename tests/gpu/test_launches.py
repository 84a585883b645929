"""How much a call asks of the device: launches of kernels, and nothing of torch between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.compiler import CompiledKernel
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

import relive
from gpu.tools import DEVICE, ON_CARD, DeviceReader, all_columns, numbered_rows, numbered_spec, set_rounds, torch
from relive import _core
from relive.gpu.kernels.draw import chain_swaps, strata_of
from relive.gpu.kernels.pointers import pointer
from relive.gpu.launch import WARP, BlockSizes, compile_options

ALLOCATES = {"aten::empty", "aten::slice", "aten::detach", "aten::lift_fresh", "aten::select", "aten::alias"}
READS_COUNTERS = ["aten::_to_copy"] if ON_CARD else []  # 16 bytes from the card, after the last launch


class OpsThatRun(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """The operations of torch that are more than memory and views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name not in ALLOCATES:
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[tuple[list[str], OpsThatRun]]:
    """The kernels that Triton starts, by name, and what torch runs."""
    started: list[str] = []
    launcher, name = (CompiledKernel, "launch_metadata") if ON_CARD else (GridExecutor, "__call__")
    run = getattr(launcher, name)

    def note(self: Any, *arguments: Any, **constants: Any) -> Any:
        started.append(self.name if ON_CARD else self.fn.__name__)
        return run(self, *arguments, **constants)

    with pytest.MonkeyPatch.context() as patch, OpsThatRun() as ops:
        patch.setattr(launcher, name, note)
        yield started, ops


@pytest.fixture
def table() -> Iterator[relive.Table]:
    """Ten columns and a stack, small and large ones: 13 launches a sample if each had its own."""
    items = relive.Transitions(n_step=3, stack={"frame": 4})
    with relive.Table(numbered_spec(), 512, relive.Index(items, relive.Prioritized()), max_lanes=2) as made:
        with made.writer() as writer:
            writer.extend(**numbered_rows(0, 300), truncated=True)
        yield made


SAMPLE = ["chain_swaps", "draw_slots", "resolve", "copy_columns", "copy_columns", "recheck"]


def test_a_sample_of_all_columns_is_six_launches(table: relive.Table) -> None:
    with DeviceReader(table, DEVICE) as reader:
        with counted() as (started, ops):
            reader.sample(32, all_columns(table))
        assert started == SAMPLE and len(SAMPLE) <= 6
        assert ops.names == READS_COUNTERS, "between the launches torch starts nothing"


def test_a_sample_of_sequences_is_eight_launches() -> None:
    """Two more: one for all derived columns of rows, one for versions; copies are those of transitions."""
    items = relive.Sequences(6, burn_in=3, bootstrap=1, stack={"frame": 2})
    with relive.Table(numbered_spec(), 512, relive.Index(items), max_lanes=2) as table, table.writer() as writer:
        writer.extend(**numbered_rows(0, 60), truncated=True)
        with DeviceReader(table, DEVICE) as reader, counted() as (started, ops):
            reader.sample(8, [*all_columns(table), "mask"])
            assert started == [*SAMPLE[:5], "fill_rows", "fill_versions", "recheck"] and ops.names == READS_COUNTERS
            started.clear()
            reader.sample(8, ["action", "frame"])
            assert started == SAMPLE


def test_a_batch_of_more_items_than_the_table_has_pages_copies_their_words() -> None:
    """Two launches more: of words before all else, and after all else."""
    index = relive.Index(relive.Transitions(), relive.Prioritized())
    with relive.Table(numbered_spec(), 64, index, max_lanes=1) as table, table.writer() as writer:
        writer.extend(**numbered_rows(0, 50), truncated=True)
        pages = table._core.geometry["num_pages"]
        with DeviceReader(table, DEVICE) as reader:
            for count, copies in ((pages - 1, []), (pages, ["copy_words"])):
                with counted() as (started, _):
                    drawn = reader.draw(count)
                assert started == ["chain_swaps", *copies, "draw_slots", "take_leaves", *copies, "recheck"]
                with counted() as (started, _):
                    reader.gather(drawn, ["action"])
                assert started == [*copies, "note_words", "resolve", "copy_columns", *copies, "recheck"]


def test_a_draw_is_four_launches_and_a_gather_five(table: relive.Table) -> None:
    with DeviceReader(table, DEVICE) as reader:
        with counted() as (started, ops):
            drawn = reader.draw(32)
        assert started == ["chain_swaps", "draw_slots", "take_leaves", "recheck"] and ops.names == READS_COUNTERS
        with counted() as (started, ops):
            reader.gather(drawn, all_columns(table))
        assert (
            started == ["note_words", "resolve", "copy_columns", "copy_columns", "recheck"]
            and ops.names == READS_COUNTERS
        )
        with counted() as (started, ops):
            reader.gather(drawn, ["action"])
        assert started == ["note_words", "resolve", "copy_columns", "recheck"] and ops.names == READS_COUNTERS


def test_a_redraw_does_not_shuffle_again(table: relive.Table) -> None:
    with DeviceReader(table, DEVICE) as reader, table.writer() as writer:
        moves = []

        def pause(stage: str) -> None:
            if stage == "copied" and not moves:
                moves.append(writer.extend(**numbered_rows(300, 600), truncated=True))

        set_rounds(reader, pause)
        with counted() as (started, _):
            reader.sample(32, all_columns(table))
        assert started == SAMPLE + SAMPLE[1:]


@pytest.mark.skipif(ON_CARD, reason="only the interpreter tells the addresses of its loads")
@pytest.mark.parametrize("items", [
    relive.Transitions(stack={"frame": 4}), relive.Transitions(n_step=3, stack={"frame": 4}),
    relive.Sequences(8, burn_in=2, bootstrap=1), relive.Episodes(30, time_major=True),
    relive.Episodes(30, layout="ragged"),
])  # fmt: skip
@pytest.mark.forms(2)
def test_each_row_of_an_item_crosses_the_bus_once(items: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that a stack shares with the next stack, and a state between two steps of a window."""
    load, seen = InterpreterBuilder.create_masked_load, []

    def watched(self: Any, addresses: Any, mask: Any, *others: Any) -> Any:
        if addresses.data.ndim == 2 and addresses.data.shape[1] == 2:  # the two halves of 16 bytes of a row
            seen.extend(addresses.data[np.broadcast_to(mask.data, addresses.data.shape)].tolist())
        return load(self, addresses, mask, *others)

    with relive.Table(numbered_spec(), 512, relive.Index(items), max_lanes=2) as table, table.writer() as writer:
        keys = writer.extend(**numbered_rows(0, 24), truncated=True)
        with DeviceReader(table, DEVICE) as reader:
            present = table.gather(keys).present
            monkeypatch.setattr(InterpreterBuilder, "create_masked_load", watched)
            assert reader.gather(keys[present][-1:], ["frame", "next_frame"]).present.all()
    assert len(seen) > 4 * 50 and len(set(seen)) == len(seen)


def test_a_block_has_at_least_an_item_for_every_thread() -> None:
    """Else several threads load the words of one item, each for itself, and a writer may change a word in between.

    Blocks of 16 items in programs of 128 threads read pages at addresses that were never set, on a card.
    """
    blocks = BlockSizes()
    for block in (blocks.items, blocks.windows, blocks.units, blocks.swaps):
        assert block >= WARP * compile_options({"BLOCK": block})["num_warps"] >= WARP
    assert blocks.versions[0] * blocks.versions[1] >= WARP * compile_options({})["num_warps"]


@triton.jit
def write_strata(chains: tl.int64, strata: tl.int64, count: tl.int32, base: tl.uint64, BLOCK: tl.constexpr) -> None:
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stratum = strata_of(chains, count, base, item, item < count, BLOCK)
    tl.store(pointer(strata, tl.int32) + item, stratum, mask=item < count)


@pytest.mark.forms(4)
@pytest.mark.parametrize("size", [1, 2, 3, 31, 256, 257, pytest.param(5000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("block", [64, 4096])
def test_the_device_shuffles_as_the_core_does(size: int, block: int) -> None:
    """The stratum of every row, for batches smaller and larger than what one program does at a time."""
    for call in range(3):
        chains = torch.empty((2, size), dtype=torch.int32, device=DEVICE)
        strata = torch.full((size,), -1, dtype=torch.int32, device=DEVICE)
        base = _core.random_base(11, 5, call, 0)
        chain_swaps[(1,)](chains.data_ptr(), size, base, BLOCK=block)
        write_strata[(triton.cdiv(size, 1024),)](chains.data_ptr(), strata.data_ptr(), size, base, BLOCK=1024)
        rows = _core.permutation(11, 5, call, size)
        assert strata.cpu().numpy()[rows].tolist() == list(range(size))
