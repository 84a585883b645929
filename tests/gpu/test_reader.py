"""The reader's face: what it takes, what it refuses, whose memory it uses, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from tiered.tools import needs_tiers

import relive
from gpu.tools import DEVICE, ON_CARD, DeviceReader, assert_same, numbered_rows, numbered_spec, torch
from relive import errors
from relive.errors.extras import install_command
from relive.gpu.layout_args import ColumnCopy, RegionLayout, tree_levels
from relive.gpu.region_view import DeviceFailure, HostRegistration, RegionView


@pytest.fixture
def table() -> Any:
    with relive.Table(numbered_spec(), 512, max_lanes=2) as made:
        with made.writer() as writer:
            writer.extend(**numbered_rows(0, 100), truncated=True)
        yield made


@pytest.mark.skipif(ON_CARD, reason="refusals of a machine without a card")
def test_only_the_interpreter_runs_on_the_cpu_and_only_a_gpu_is_a_gpu(
    table: relive.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device in ("cuda", "meta", "no such device", 3.5):
        with pytest.raises(errors.InvalidConfig):
            DeviceReader(table, device)
    with pytest.raises(errors.InvalidConfig):
        DeviceReader("table", DEVICE)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(errors.InvalidConfig, match="TRITON_INTERPRET=1"):
        DeviceReader(table, DEVICE)


def run_python(program: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_without_the_extra_the_error_names_it(package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import relive\n"
        "try: import relive.gpu\n"
        "except ModuleNotFoundError as error: print(error.name, error)\n"
    )
    assert run_python(program).strip() == f"{package} relive.gpu needs {package}: {install_command('gpu')}"


def test_wrong_names_of_a_batch_are_answered(table: relive.Table) -> None:
    with DeviceReader(table, DEVICE) as reader:
        batch = reader.sample(4)
        for name in batch:
            with pytest.raises(errors.UnknownAttribute) as caught:
                getattr(batch, name)
            assert caught.value.instead == f"batch[{name!r}]"
        with pytest.raises(errors.UnknownColumn):
            batch[0:2]
        with pytest.raises(errors.UnknownArgument):
            reader.sample(batch_size=4)


def test_columns_are_tensors_nested_as_declared(table: relive.Table) -> None:
    camera, flag = relive.ArraySpec((4, 4), "uint8", kind="state"), relive.ArraySpec((), "bool")
    spec = relive.StepSpec({"observation": {"camera": camera, "two": (camera, camera)}, "flag": flag})
    with relive.Table(spec, 64) as nested, nested.writer() as writer:
        frame = np.arange(16, dtype=np.uint8).reshape(4, 4)
        key = writer.append(
            observation={"camera": frame, "two": (frame, frame + 1)}, flag=True,
            next_observation={"camera": frame + 2, "two": (frame, frame)},
        )  # fmt: skip
        with DeviceReader(nested, DEVICE) as reader:
            batch = reader.gather([int(key)])
            assert set(batch) == {"observation", "flag", "next_observation", "discount"} and len(batch.keys()) == 4
            assert isinstance(batch["observation"]["two"], tuple) and "observation/two/0" in batch
            assert torch.equal(batch["observation"]["two"][1][0], torch.from_numpy(frame + 1).to(DEVICE))
            assert batch["flag"].dtype == torch.bool and batch["flag"].tolist() == [True]
            assert "DeviceBatch(1 items" in repr(batch)
            with pytest.raises(errors.NoProbabilities):
                _ = batch.probabilities


def test_out_is_filled_and_checked(table: relive.Table) -> None:
    with DeviceReader(table, DEVICE) as reader:
        keys = table.draw(10).item_keys
        first = reader.gather(keys, ["action", "observation"])
        out = {name: torch.zeros_like(array) for name, array in first.flat().items()}
        again = reader.gather(keys, ["action", "observation"], out=out)
        assert again["action"] is out["action"] and torch.equal(out["observation"], first["observation"])
        wrong: dict[type[Exception], Any] = {
            errors.ShapeMismatch: torch.zeros(9, dtype=torch.int64, device=DEVICE),
            errors.DtypeMismatch: torch.zeros(10, dtype=torch.int32, device=DEVICE),
            errors.InvalidConfig: torch.zeros(11, dtype=torch.int64, device=DEVICE)[1:],
        }
        for error, array in wrong.items():
            with pytest.raises(error):
                reader.gather(keys, ["action"], out={"action": array})
        with pytest.raises(errors.UnknownColumn):
            reader.gather(keys, ["action"], out={})
        with pytest.raises(errors.UnknownColumn):
            reader.gather(keys, ["acton"])


def test_keys_are_checked_as_the_table_checks_them(table: relive.Table) -> None:
    with DeviceReader(table, DEVICE) as reader:
        keys = table.draw(3).item_keys
        for foreign in (-1, 5, int(keys[0]) | 1 << 51):
            with pytest.raises(errors.ForeignKey) as caught:
                reader.gather([int(keys[0]), foreign])
            assert (caught.value.position, caught.value.key) == (1, foreign)
        with pytest.raises(errors.ShapeMismatch):
            reader.gather(np.zeros((2, 2), np.int64))
        empty = reader.gather(np.zeros(0, np.int64))
        assert empty.num_items == 0 and empty["observation"].shape == (0, 3)
        with pytest.raises(errors.InvalidConfig):
            reader.sample(0)
        with pytest.raises(errors.InvalidConfig):
            reader.draw(4, index="none")


def test_closed_readers_and_closed_tables_say_so(table: relive.Table) -> None:
    reader = DeviceReader(table, DEVICE)
    keys = reader.draw(4).item_keys
    reader.close()
    reader.close()
    calls: list[Callable[[], Any]] = [lambda: reader.draw(1), lambda: reader.sample(1), lambda: reader.gather(keys)]
    for call in calls:
        with pytest.raises(errors.TableClosed):
            call()
    other = DeviceReader(table, DEVICE)
    table.close()
    with pytest.raises(errors.TableClosed):
        other.draw(1)
    other.close()
    with pytest.raises(errors.TableClosed):
        DeviceReader(table, DEVICE)


@needs_shared_memory
def test_a_reader_of_a_shared_table_outlives_the_handle_it_was_made_from(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    table = relive.Table(numbered_spec(), 512, storage=relive.SharedMemory(name), max_lanes=2)
    with table.writer() as writer:
        keys = writer.extend(**numbered_rows(0, 50), truncated=True)
    with relive.attach(name, read_only=True) as looking_on, DeviceReader(looking_on, DEVICE) as reader:
        assert reader.sample(8)["action"].shape == (8,)
    with DeviceReader(table, DEVICE) as reader:
        table.close()
        assert reader.gather(keys)["action"].tolist() == list(range(50))
    assert name not in [row.name for row in relive.list_tables()], "the last clean close removes it"


class CudartThatNotes:
    """In the place of CUDA's runtime: which ranges would be registered."""

    def __init__(self, result: int = 0, flags: int = 3) -> None:
        self.ranges: dict[int, int] = {}
        self.result = result
        self.flags = flags

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        assert address % 4096 == 0 and num_bytes % 4096 == 0 and flags == self.flags
        assert all(end <= address or start >= address + num_bytes for start, end in self.spans())
        self.ranges[address] = num_bytes
        return self.result

    def cudaHostUnregister(self, address: int) -> int:
        del self.ranges[address]
        return 0

    def spans(self) -> list[tuple[int, int]]:
        return sorted((address, address + size) for address, size in self.ranges.items())


@needs_shared_memory
def test_memory_is_registered_as_the_table_commits_it(shm_name: Callable[[], str]) -> None:
    """In pieces without gaps, never beyond what is committed, and all of it is given back."""
    spec = relive.StepSpec({"blob": relive.ArraySpec((1 << 18,), "uint8")})
    with relive.Table(spec, 400, storage=relive.SharedMemory(shm_name()), max_lanes=1) as table:
        core, cudart = table._core, CudartThatNotes()
        layout = RegionLayout.from_facts(core.geometry)
        view = RegionView(core, layout, HostRegistration(cudart))
        pinned = lambda frames: -(-layout.end_of_frames(frames) // 4096) * 4096  # noqa: E731
        with view.held() as span:
            first = span.mapped_frames
            assert cudart.spans() == [(span.address, span.address + pinned(first))]
        with table.writer() as writer:
            writer.extend(blob=np.zeros((260, 1 << 18), np.uint8))
        with view.held() as span:
            assert span.mapped_frames > first
            assert len(cudart.ranges) == 2 and cudart.spans()[0][1] == cudart.spans()[1][0]
            assert cudart.spans()[-1][1] == span.address + pinned(span.mapped_frames)
            assert layout.end_of_frames(span.mapped_frames) < core.geometry["region_bytes"]
        with view.held():
            assert len(cudart.ranges) == 2
        view.close()
        assert not cudart.ranges
        read_only = RegionView(core, layout, HostRegistration(CudartThatNotes(flags=11), read_only=True))
        with read_only.held():
            pass
        read_only.close()
        refusing = RegionView(core, layout, HostRegistration(CudartThatNotes(result=2)))
        with pytest.raises(DeviceFailure) as caught:
            with refusing.held():
                pass
        assert (caught.value.what, caught.value.code) == ("cudaHostRegister", 2)


@needs_shared_memory
def test_start_cells_are_registered_as_a_range_of_their_own(shm_name: Callable[[], str]) -> None:
    spec = relive.StepSpec({"core": relive.ArraySpec((1 << 16,), "uint8", kind="start")})
    index = relive.Index(relive.Sequences(2))
    with relive.Table(spec, 400, index, storage=relive.SharedMemory(shm_name()), max_lanes=1) as table:
        core, cudart = table._core, CudartThatNotes()
        layout = RegionLayout.from_facts(core.geometry)
        view = RegionView(core, layout, HostRegistration(cudart))
        with view.held() as span:
            assert span.mapped_cells == 0 and len(cudart.ranges) == 1
        with table.writer() as writer:
            writer.extend(core=np.zeros((100, 1 << 16), np.uint8), truncated=True)
        with view.held() as span:
            ends = layout.cells_offset + span.mapped_cells * layout.cell_stride
            assert span.mapped_cells >= 50
            assert cudart.spans()[-1] == (span.address + layout.cells_offset, span.address + ends)
            assert ends < core.geometry["region_bytes"]
        view.close()
        assert not cudart.ranges


@pytest.mark.usefixtures("words_of_pages")
def test_frames_the_device_cannot_see_yet_are_asked_for_again(table: relive.Table) -> None:
    """An item in a frame beyond the mapped ones is not read at all: it stays wanted."""
    with DeviceReader(table, DEVICE) as reader:
        keys = torch.from_numpy(table.draw(8).item_keys).to(DEVICE)
        _, outputs = reader._plan(None, ["action"])
        room = outputs.room(8, None, reader.device)
        rounds = reader._rounds_of(0)
        scratch = rounds.scratch(8)
        with reader._view.held() as span:
            rounds.gather(span._replace(mapped_frames=0), scratch, keys, room)
            assert scratch.left() == (8, 0)
            rounds.gather(span, scratch, keys, room)
            assert scratch.left() == (0, 0)


def test_the_layout_of_a_reader_is_a_value_that_travels(table: relive.Table) -> None:
    """JSON and back: a peer that was sent the facts computes the same constants."""
    facts = {name: fact for name, fact in table._core.geometry.items() if not isinstance(fact, bytes)}
    layout = RegionLayout.from_facts(json.loads(json.dumps(facts)))
    assert layout == RegionLayout.from_facts(table._core.geometry)
    region = np.frombuffer(table._core.region_bytes(), np.uint8)
    keys = table.draw(20).item_keys
    for key, action in zip(keys.tolist(), table.gather(keys)["action"].tolist(), strict=True):
        slot = key & layout.slot_mask
        frame = int(region[layout.frames_offset + (slot >> layout.page_shift) * 4 :][:4].view(np.uint32)[0])
        start = layout.end_of_frames(frame + 1) - layout.frame_bytes + table._core.layout[2]["offset"]
        start += (slot & (layout.page_len - 1)) * layout.record_stride
        assert region[start : start + 8].view(np.int64)[0] == action


def test_a_column_kept_outside_of_the_frames_is_refused(table: relive.Table) -> None:
    facts = {**table._core.layout[1], "area": "bulk"}
    with pytest.raises(errors.InvalidConfig) as caught:
        ColumnCopy.from_facts(facts, stack=1, is_next=False, pads_zeros=False)
    assert caught.value.what == "column 'frame'" and "bulk" in str(caught.value)


def test_tree_levels_and_copies_follow_the_format() -> None:
    assert tree_levels(5) == (0,) and tree_levels(8) == (0,) and tree_levels(9) == (0, 16)
    assert tree_levels(1000) == (0, 1000, 1128, 1144)
    common = {"is_next": False, "pads_zeros": True, "is_large": False}
    copy = ColumnCopy(offset=72, stride=80, num_bytes=4, stack=1, **common)
    assert (copy.unit_bytes, copy.units) == (4, 1)
    copy = ColumnCopy(offset=4096, stride=7104, num_bytes=7056, stack=4, **common)
    assert (copy.unit_bytes, copy.units) == (16, 1764)
    copy = ColumnCopy(offset=64, stride=9024, num_bytes=9001, stack=1, **common)
    assert (copy.unit_bytes, copy.units) == (1, 9001)


def test_explicit_items_are_refused_by_name() -> None:
    """No kernel reads records; the indexes of steps beside them are read as ever."""
    index = {"steps": relive.Index(), "pieces": relive.Index(relive.Explicit(2))}
    with relive.Table(numbered_spec(), 512, index, max_lanes=2) as table, table.writer() as writer:
        keys = writer.extend(**numbered_rows(0, 100), truncated=True)
        table.create_items(keys[:3], index="pieces")
        with DeviceReader(table, DEVICE) as reader:
            for call in (reader.sample, reader.draw):
                with pytest.raises(errors.InvalidConfig, match="'pieces'") as caught:
                    call(2, index="pieces")
                assert "Explicit" in str(caught.value.got)
            assert reader.sample(8, index="steps").num_items == 8


@needs_tiers
def test_a_table_on_disk_is_read_as_far_as_it_is_in_memory(tmp_path: Path) -> None:
    """A column on disk is refused by name. Draws work, and the other columns are the core's."""
    index = relive.Index(relive.Transitions(n_step=2), relive.Prioritized())
    storage = relive.Tiered(tmp_path, "4MiB")
    with relive.Table(numbered_spec(), 512, index, storage=storage, max_lanes=2, seed=3) as table:
        with table.writer() as writer:
            writer.extend(**numbered_rows(0, 100), truncated=True)
        with DeviceReader(table, DEVICE, stream=0) as reader:
            for column in ("frame", "next_frame"):
                with pytest.raises(errors.InvalidConfig, match="column 'frame'"):
                    reader.sample(4, [column])
            columns = ["observation", "next_observation", "action", "reward", "discount", "num_steps"]
            core, device = table.sample(16, columns), reader.sample(16, columns)
            np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
            assert_same(core, device)
