"""The work of a Writer before its core: names, nesting, lanes, deadlines. This core only records its calls."""

from __future__ import annotations

import dis
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from processes.interrupts import prepare_opcodes

from relive import ArraySpec, StepSpec, Table
from relive.core.protocol import ReplayWriter
from relive.errors import (
    InvalidConfig,
    LaneError,
    MissingColumn,
    RequestTooLarge,
    SpecError,
    UnknownColumn,
)
from relive.writing.writer import Writer

FLAT = StepSpec(
    {
        "observation": ArraySpec((2,), "float32", kind="state"),
        "goal": ArraySpec((), "float32", kind="state"),
        "action": ArraySpec((), "int64"),
    }
)
NESTED = StepSpec(
    {
        "observation": {
            "pos": ArraySpec((2,), "float32", kind="state"),
            "arms": (ArraySpec((), "float32", kind="state"), ArraySpec((), "float32", kind="state")),
        },
        "action": ArraySpec((), "int64"),
    }
)


class RecordingCore:
    """Stands in for a core table and its writer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error = error
        self.closed = False
        self.version: int | None = None

    def open_writer(self, num_lanes: int, single: bool, normalise: Any) -> RecordingCore:
        self.opened = (num_lanes, single, normalise)
        return self

    def append(self, *arguments: Any) -> str:
        if self.error is not None:
            raise self.error
        self.calls.append(arguments)
        return "keys"

    extend = end_episode = append

    def append_alike(self, *arguments: Any) -> None:
        if self.error is not None:
            raise self.error

    def abandon(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def set_policy_version(self, version: int | None) -> None:
        self.version = version

    def close(self) -> None:
        self.closed = True


def open_writer(spec: StepSpec, num_lanes: int | None, error: Exception | None = None) -> tuple[Writer, RecordingCore]:
    core = RecordingCore(error)
    explain = lambda error: RequestTooLarge(error.requested, error.window, "explained")  # noqa: E731
    none = lambda *rows, **options: np.empty(0, np.int64)  # noqa: E731
    return Writer(core, spec, num_lanes, 60.0, explain, none), core  # type: ignore[arg-type]


def flat_step(rows: int | None = None) -> dict[str, Any]:
    shape = () if rows is None else (rows,)
    return {"observation": np.zeros((*shape, 2)), "goal": np.zeros(shape), "action": np.zeros(shape, int)}


def test_arguments_go_through_untouched() -> None:
    writer, core = open_writer(FLAT, None)
    step = flat_step()
    assert writer.append(**step, terminated=True) == "keys"
    assert writer.extend(**step, priority=2.0, timeout_s=0) == "keys"
    (columns, lanes, priority, timeout_s), second = core.calls
    assert columns == {**step, "terminated": True} and lanes is None and priority is None and timeout_s == 60.0
    assert second[2:] == (2.0, 0.0)
    assert core.opened[:2] == (1, True)
    assert writer.num_lanes is None


def test_deadlines() -> None:
    writer, core = open_writer(FLAT, None)
    writer.append(**flat_step(), timeout_s=math.inf)
    assert core.calls[0][3] == math.inf
    for bad in (-1.0, math.nan):
        for call in (writer.append, writer.extend):
            with pytest.raises(InvalidConfig):
                call(**flat_step(), timeout_s=bad)
    assert len(core.calls) == 1


def test_names_are_checked_before_the_core_is_called() -> None:
    writer, core = open_writer(FLAT, None)
    step = flat_step()
    with pytest.raises(UnknownColumn, match="did you mean 'observation'"):
        writer.append(**step, obervation=0)
    with pytest.raises(UnknownColumn):
        writer.append(**step, next_action=0)
    with pytest.raises(UnknownColumn):
        writer.append(**step, episode_step=0)
    for name in step:
        with pytest.raises(MissingColumn) as caught:
            writer.append(**{key: value for key, value in step.items() if key != name})
        assert caught.value.column == name
    with pytest.raises(MissingColumn) as caught:
        writer.append(**step, next_observation=np.zeros(2))
    assert caught.value.column == "next_goal"
    with pytest.raises(MissingColumn):
        writer.append()
    assert core.calls == []
    for _ in range(2):
        writer.append(**step, next_observation=np.zeros(2), next_goal=0.0)


def test_a_bad_call_is_refused_each_time() -> None:
    writer, core = open_writer(FLAT, None)
    for _ in range(3):
        with pytest.raises(MissingColumn):
            writer.append(action=1)
    assert core.calls == []


def test_nesting_is_flattened() -> None:
    writer, core = open_writer(NESTED, None)
    step = {"observation": {"pos": "p", "arms": ("a", "b")}, "action": 1}
    following = {"next_observation": {"arms": ["d", "e"], "pos": "c"}}
    for _ in range(2):
        writer.append(**step, **following)
    writer.append(
        **{"observation/pos": "p", "observation/arms/0": "a", "observation": {"arms": {"1": "b"}}, "action": 1}
    )
    expected = {"observation/pos": "p", "observation/arms/0": "a", "observation/arms/1": "b", "action": 1}
    assert (
        core.calls[0][0]
        == core.calls[1][0]
        == {
            **expected,
            "next_observation/pos": "c",
            "next_observation/arms/0": "d",
            "next_observation/arms/1": "e",
        }
    )
    assert core.calls[2][0] == expected
    with pytest.raises(SpecError):
        writer.append(observation=np.zeros(2), action=1)
    with pytest.raises(UnknownColumn):
        writer.append(observation={**step["observation"], "legs": 1}, action=1)  # type: ignore[dict-item]
    with pytest.raises(MissingColumn):
        writer.append(observation={"pos": "p", "arms": ("a",)}, action=1)
    assert len(core.calls) == 3


def test_lanes_cut_whole_arrays_and_take_cut_ones() -> None:
    writer, core = open_writer(FLAT, 3)
    whole = {"observation": np.arange(6).reshape(3, 2), "goal": [0.0, 1.0, 2.0], "action": np.array([5, 6])}
    for lanes in ([2, 0], np.array([2, 0], np.uint8), (2, 0)):
        writer.append(**whole, lanes=lanes, terminated=True, priority=[1.0, 2.0, 3.0])
    for columns, ids, priority, _ in core.calls:
        assert ids.dtype == np.int32 and ids.tolist() == [2, 0]
        assert columns["observation"].tolist() == [[4, 5], [0, 1]]
        assert columns["goal"].tolist() == [2.0, 0.0]
        assert columns["action"].tolist() == [5, 6]
        assert columns["terminated"] is True
        assert priority.tolist() == [3.0, 1.0]


def test_masks_of_lanes() -> None:
    writer, core = open_writer(FLAT, 3)
    writer.append(**flat_step(3), lanes=[False, True, True])
    writer.append(**flat_step(2), lanes=np.array([False, True, True]))
    writer.append(**flat_step(3), lanes=np.ones(3, bool))
    assert core.calls[0][1].tolist() == core.calls[1][1].tolist() == [1, 2]
    assert core.calls[0][0]["observation"].shape == (2, 2)
    assert core.calls[2][1] is None, "a full mask is every lane"


def test_extend_cuts_the_second_axis() -> None:
    writer, core = open_writer(FLAT, 3)
    columns = {"observation": np.arange(30).reshape(5, 3, 2), "goal": np.zeros((6, 3)), "action": np.zeros((5, 2), int)}
    writer.extend(**columns, lanes=[1, 2])
    cut = core.calls[0][0]
    assert cut["observation"].tolist() == columns["observation"][:, [1, 2]].tolist()
    assert cut["goal"].shape == (6, 2) and cut["action"].shape == (5, 2)


def test_no_lane_is_no_step() -> None:
    writer, core = open_writer(FLAT, 3)
    assert writer.append(**flat_step(3), lanes=np.zeros(3, bool)).shape == (0,)
    assert writer.append(**flat_step(0), lanes=[]).dtype == np.int64
    writer.end_episode(lanes=[], next_observation=np.zeros((0, 2)), next_goal=np.zeros(0))
    assert core.calls == []
    with pytest.raises(MissingColumn):
        writer.append(action=1, lanes=[])


@pytest.mark.parametrize(
    "lanes", [[0, 3], [-1], [1, 1], [True], np.ones(4, bool), np.ones((3, 1), bool), 1, [[0]], [0.0], ["a"]]
)
def test_bad_lanes_are_refused(lanes: Any) -> None:
    writer, core = open_writer(FLAT, 3)
    with pytest.raises(LaneError):
        writer.append(**flat_step(3), lanes=lanes)
    assert core.calls == []


def test_a_writer_without_a_lane_axis_takes_no_lanes() -> None:
    writer, _ = open_writer(FLAT, None)
    with pytest.raises(LaneError):
        writer.append(**flat_step(), lanes=[0])


def test_abandon() -> None:
    writer, core = open_writer(FLAT, 3)
    writer.abandon()
    writer.abandon([2, 0], timeout_s=1)
    writer.abandon(np.array([False, True, False]))
    writer.abandon(lanes=[])
    named = [None if lanes is None else lanes.tolist() for lanes, _ in core.calls]
    assert named == [None, [2, 0], [1]] and [timeout_s for _, timeout_s in core.calls] == [60.0, 1.0, 60.0]
    for lanes in ([3], [1, 1], "0", np.ones(4, bool)):
        with pytest.raises(LaneError):
            writer.abandon(lanes)
    assert len(core.calls) == 3


def test_end_episode() -> None:
    writer, core = open_writer(FLAT, 2)
    nexts = {"next_observation": np.zeros((2, 2)), "next_goal": np.zeros(2)}
    writer.end_episode(**nexts)
    writer.end_episode(terminated=True)
    writer.end_episode(truncated=True, lanes=[1], timeout_s=1, **nexts)
    assert [call[1] for call in core.calls] == [False, True, False]
    assert core.calls[2][0]["next_goal"].shape == (1,) and core.calls[2][2].tolist() == [1]
    with pytest.raises(InvalidConfig):
        writer.end_episode(truncated=False)
    with pytest.raises(UnknownColumn):
        writer.end_episode(**nexts, observation=np.zeros((2, 2)))
    with pytest.raises(MissingColumn):
        writer.end_episode(next_goal=np.zeros(2))
    assert len(core.calls) == 3


def test_versions_and_closing() -> None:
    writer, core = open_writer(FLAT, 2)
    writer.set_policy_version(7)
    assert core.version == 7
    writer.set_policy_version(None)
    assert core.version is None
    with pytest.raises(InvalidConfig):
        writer.set_policy_version(-1)
    with writer as same:
        assert same is writer and not writer.closed
    assert writer.closed
    assert isinstance(writer, ReplayWriter)
    with pytest.raises(InvalidConfig):
        open_writer(FLAT, 0)


def test_a_request_too_large_is_explained() -> None:
    writer, _ = open_writer(FLAT, None, error=RequestTooLarge(9000, 2048))
    for call in (writer.append, writer.extend):
        with pytest.raises(RequestTooLarge, match="explained"):
            call(**flat_step())


def test_a_table_that_closes_while_a_writer_opens() -> None:
    """Either the writer is opened or the table is closed. No thread reads memory that is no longer mapped."""
    program = """
import threading, relive
spec = relive.StepSpec({"x": relive.ArraySpec((), "int64")})
for _ in range(400):
    table = relive.Table(spec, 100, max_lanes=8)
    start = threading.Barrier(3)
    def opens():
        start.wait()
        try:
            while True:
                table.writer().close()
        except relive.errors.TableClosed:
            pass
    threads = [threading.Thread(target=opens) for _ in range(2)]
    for thread in threads: thread.start()
    start.wait()
    table.close()
    for thread in threads: thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_right_after_a_write_tells_which_rows_are_stored() -> None:
    """The core tells it of signals that it hears itself. Python hears others after each of its calls."""
    code, moment, raised = Writer._write.__code__, 0, True
    spec = StepSpec({"a": ArraySpec((), "int64")})

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left, last
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= last.startswith("CALL")
            last = dis.opname[code.co_code[frame.f_lasti]]
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    prepare_opcodes()
    while raised:
        with Table(spec, 100) as table, table.writer(2) as writer:
            left, last, raised, before = moment, "", False, sys.gettrace()
            sys.settrace(trace)
            try:
                keys = writer.append(a=[1, 2], lanes=[0, 1], terminated=True)
            except KeyboardInterrupt as error:
                raised, keys = True, getattr(error, "keys", [])
            finally:
                sys.settrace(before)
            assert len(keys) == len(table), f"at moment {moment}"
        moment += 1
    assert moment > 3
