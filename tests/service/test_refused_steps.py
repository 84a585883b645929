"""Steps of a streaming writer that the server refuses: no item joins a state before them and a state after them."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import contents, plain_spec, state, step

import relive
from relive import errors
from relive.adapters.lanes import LaneRecorder
from relive.service import RemoteTable, Streaming, connect, serve
from relive.service.client.blocks import Part
from relive.service.client.streamed_core import _Message
from relive.train.acting.links import StreamedLanes
from service.gates import until
from service.refused import LOOPBACK, NOT_HELD, fails, served
from service.refused import patient as patient

ROOM = 20  # steps that the limiter of `paced` lets in before the first draw


def paced(items: Any = None) -> relive.Index:
    return relive.Index(
        items or relive.Transitions(), limiter=relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    )


def alone(number: float) -> dict[str, Any]:
    """One step without its next state, which the following step brings."""
    return {"observation": state(number), "action": int(number), "reward": 0.0}


def draw_all(remote: RemoteTable) -> None:
    """Draws as often as the limiter permits, which then lets steps in."""
    with contextlib.suppress(errors.DeadlineExceeded):
        while True:
            remote.draw(1, timeout_s=0.0)


def joined(table: Any) -> list[tuple[float, float]]:
    """(state, next state) of each item, in the order of the states."""
    keys = np.concatenate([np.asarray(some) for some in table.keys()])
    batch = table.gather(keys, columns=["observation", "next_observation"])
    return sorted(zip(batch["observation"][..., 0].tolist(), batch["next_observation"][..., 0].tolist(), strict=True))


@pytest.mark.parametrize("lost", ["steps", "an end", "a step that ends", "an extend"])
def test_no_item_joins_the_states_around_lost_steps(lost: str) -> None:
    """The lost end may be that of the episode: the step after it belongs to another one."""
    with served(paced()) as remote, remote.writer(streaming=NOT_HELD) as writer:
        for t in range(ROOM + 1):  # the last state makes an item of the step before it
            writer.append(**alone(t))
        writer.flush()
        if lost == "an end":
            writer.append(**alone(21))
            writer.end_episode(terminated=True)
        elif lost == "an extend":
            writer.extend(observation=np.arange(21, 31).repeat(2).reshape(10, 2), action=np.arange(10), reward=[0] * 10)
        else:
            for t in range(ROOM + 1, 30):
                writer.append(**alone(t), terminated=t == 25 and lost == "a step that ends")
        fails(writer.flush, errors.DeadlineExceeded)
        draw_all(remote)
        for t in range(50, 60):
            writer.append(**alone(t))
        writer.end_episode(truncated=True, next_observation=state(60))
        writer.flush()
        states = [*range(ROOM), *range(50, 60)]
        assert joined(remote) == [(t, t + 1) for t in states]
        assert remote.stats().cut_lanes == 1
        remote.check()


@pytest.mark.parametrize("items", [relive.Transitions(n_step=3, gamma=1.0), relive.Sequences(4)], ids=["n", "windows"])
def test_no_window_runs_across_lost_steps(items: Any) -> None:
    with served(relive.Index(items)) as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        for t in range(8):
            writer.append(**step(t, t + 1))
        writer.append(**step(30, 31))  # no continuation of 8
        fails(writer.flush, errors.SeamMismatch)
        for t in range(60, 68):
            writer.append(**step(t, t + 1))
        writer.end_episode(truncated=True)
        writer.flush()
        keys = np.concatenate([np.asarray(some) for some in remote.keys()])
        batch = remote.gather(keys, columns=["observation", "next_observation"])
        first, last = batch["observation"].reshape(len(keys), -1), batch["next_observation"].reshape(len(keys), -1)
        assert len(keys) and (np.ptp(np.concatenate([first, last], axis=1), axis=1) <= 8).all()


def test_a_writer_goes_on_where_the_environment_is_after_a_refused_step() -> None:
    """The refused step is the last one that was sent. It is lost as well, so the lane is new."""
    with served() as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        before = [writer.append(**step(t, t + 1)) for t in range(5)]
        writer.append(**step(77, 78))
        assert fails(writer.flush, errors.SeamMismatch).num_steps == 1
        after = [writer.append(**step(t, t + 1)) for t in range(78, 82)]
        assert contents(remote, [int(key) for key in after])["action"] == [78, 79, 80, 81]
        lanes = remote.gather([int(before[0]), int(after[0])], columns=["lane", "episode_step"])
        assert lanes["lane"][0] != lanes["lane"][1] and lanes["episode_step"].tolist() == [0, 0]


def test_every_lane_of_a_writer_is_new_after_one_lane_was_refused() -> None:
    """Steps of the other lanes that were sent later are lost, too."""

    def rows(values: list[int]) -> dict[str, Any]:
        states = np.repeat(np.asarray(values, np.float32)[:, None], 2, axis=1)
        return {"observation": states, "action": np.asarray(values), "reward": np.zeros(len(values), np.float32)}

    with served(max_lanes=3) as remote, remote.writer(3, streaming=Streaming(linger_s=30.0)) as writer:
        for t in range(4):
            writer.append(**rows([t, 100 + t, 200 + t]))
        writer.append(**rows([104]), lanes=[1], truncated=True)  # without its next state
        writer.append(**rows([4, 204]), lanes=[0, 2])
        fails(writer.flush, errors.MissingNext)
        for t in range(10, 13):
            writer.append(**rows([t, 100 + t, 200 + t]))
        writer.flush()
        pairs = joined(remote)
        assert {one for one, _ in pairs} >= {0.0, 100.0, 200.0, 10.0, 110.0, 210.0}
        assert all(after - before == 1.0 for before, after in pairs)


def test_new_lanes_need_no_room_besides_the_old_ones() -> None:
    """The old lanes are cut before new ones are opened; a close waits for that, too."""
    with served() as remote:
        writer = remote.writer(streaming=Streaming(linger_s=30.0))
        for round_ in range(20):
            key = writer.append(**step(round_, 50))
            writer.append(**step(99))
            fails(writer.flush, errors.SeamMismatch)
            assert contents(remote, [int(key)])["action"] == [round_]
        writer.close()
        assert remote.stats().num_lanes == 0 and remote.stats().cut_lanes == 20
        remote.check()


def test_a_close_that_tells_of_refused_steps_has_cut_the_lanes() -> None:
    with served() as remote:
        for _ in range(5):
            writer = remote.writer(streaming=Streaming(linger_s=30.0))
            writer.append(**step(0, 1))
            writer.append(**step(7, 8))
            fails(writer.close, errors.SeamMismatch)
            assert remote.stats().num_lanes == 0


def test_a_call_sees_the_first_steps_of_new_lanes() -> None:
    with served() as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        for stored in range(0, 40, 2):
            writer.append(**step(0, 1))
            writer.append(**step(7, 8))
            fails(writer.flush, errors.SeamMismatch)
            writer.append(**step(3, 4))
            assert len(remote) == stored + 2
            writer.append(**step(9, 8))
            fails(writer.flush, errors.SeamMismatch)


def test_a_version_counts_for_the_rows_of_new_lanes() -> None:
    with served() as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        writer.set_policy_version(3)
        writer.append(**step(0, 1))
        writer.append(**step(7, 8))
        fails(writer.flush, errors.SeamMismatch)
        keys = [int(writer.append(**step(9, 10)))]
        writer.set_policy_version(4)
        keys.append(int(writer.append(**step(10, 11))))
        assert remote.gather(keys, columns=["policy_version"])["policy_version"].tolist() == [3, 4]


def test_a_recorder_ends_no_episode_with_a_state_after_lost_steps() -> None:
    """It writes the end of an episode whose step was refused; the lanes of that episode are cut by then."""

    class Streamed:
        def __init__(self, remote: RemoteTable) -> None:
            self.spec, self._remote = remote.spec, remote

        def writer(self, num_lanes: int | None = None) -> Any:
            return StreamedLanes(self._remote.writer(num_lanes, streaming=NOT_HELD), 1)

    with served(paced()) as remote:
        recorder, here = LaneRecorder(Streamed(remote), 1, None), np.arange(1)
        core: Any = recorder.writer._writer._core  # type: ignore[attr-defined]
        recorder.restart(here, state(0)[None])
        told = now = 0
        for _ in range(90):
            try:
                recorder.prepare(here, np.array([now]), None)
                now += 1
                recorder.receive(here, (state(now)[None], np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)))
                recorder.write(None)
                if now == 30:
                    len(remote)  # sends the steps
                    until(lambda: core._failure is not None)
            except errors.Unacknowledged:
                told += 1
            if told:
                draw_all(remote)
        recorder.close()
        pairs = joined(remote)
        assert told == 1 and len(pairs) > 60 and all(after - before == 1.0 for before, after in pairs)


def test_a_server_that_closes_is_told_once_and_the_next_steps_wait_for_the_next_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a kill: one error, then new lanes. The server refuses steps while it waits for calls under way."""
    with relive.Table(plain_spec(), 1000, relive.Index(), max_lanes=1) as table:
        server = serve({"t": table}, LOOPBACK)
        is_refusing, may_end, end = threading.Event(), threading.Event(), server._shut_down

        def shut_down() -> None:
            is_refusing.set()
            assert may_end.wait(60.0)
            end()

        monkeypatch.setattr(server, "_shut_down", shut_down)
        with connect(server.address + "/t", timeout_s=60.0) as remote:
            writer = remote.writer(streaming=Streaming(max_rows=4, linger_s=0.0))
            writer.append(**step(0, 1))
            writer.flush()
            closing = threading.Thread(target=server.close)
            closing.start()
            try:
                assert is_refusing.wait(60.0)
                writer.append(**step(1, 2))
                assert fails(writer.flush, errors.ServiceUnavailable).num_steps == 1
                for t in range(2, 10):
                    writer.append(**step(t, t + 1))
                with pytest.raises(errors.DeadlineExceeded):
                    writer.flush(0.5)
            finally:
                may_end.set()
                closing.join(60.0)
            with serve({"t": table}, server.address):
                writer.flush(60.0)
                assert joined(table) == [(t, t + 1) for t in (0, *range(2, 10))]
                writer.close()


def test_a_stream_that_was_opened_for_steps_that_are_given_up_waits_for_no_answer() -> None:
    """The deadline of an answer that never comes would break the stream of later steps."""
    with served() as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        core: Any = writer._core
        writer.append(**step(0, 1))
        writer.append(**step(7, 8))
        fails(writer.flush, errors.SeamMismatch)
        stream = core._open_again(_Message(9, 0, Part(core, None, 1), 60.0, None))
        assert stream.deadline == float("inf")
        writer.append(**step(9, 10))
        assert len(remote) == 2 and core._stream is stream


def test_a_pattern_makes_no_item_of_steps_around_a_refused_step() -> None:
    """Its pairs have steps t and t + 2 of one episode. Each way to be told of the refused step ends the episode."""
    pairs = relive.Index(relive.Explicit({"a": relive.Window(1), "b": relive.Window(1)}))
    table = relive.Table(plain_spec(), 1000, {"steps": relive.Index(), "pairs": pairs}, max_lanes=1)
    with table, serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t") as remote:
        pattern = relive.Pattern({"a": slice(-3, -2), "b": slice(-1, None)}, index="pairs")
        with relive.PatternWriter(remote, remote.writer(streaming=Streaming(linger_s=0.0)), [pattern]) as writer:
            stream: Any = writer._writer
            tells = [
                lambda: writer.append(**step(50, 51)),  # the read of its keys
                lambda: writer.set_policy_version(1),
                lambda: writer.end_episode(truncated=True),
                lambda: writer.append(**step(50, 51)),
            ]
            for first, tell in zip(range(100, 500, 100), tells, strict=True):
                for t in range(first, first + 5):
                    writer.append(**step(t, t + 1))
                if first > 100:
                    stream.append(**step(50, 51))
                    until(lambda: stream._core._failure is not None)
                fails(tell, errors.SeamMismatch)
                if first == 100:
                    fails(stream.flush, errors.SeamMismatch)  # the writer's own word of it
            batch = table.sample(256, index="pairs")
            drawn = zip(batch["a/action"].ravel().tolist(), batch["b/action"].ravel().tolist(), strict=True)
            assert set(drawn) == {(t, t + 2) for first in range(100, 500, 100) for t in range(first, first + 3)}
            assert writer.num_dropped == 0
