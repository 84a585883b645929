"""Learners with batches of their own: units, their staleness, one learner beside none, and the deaths of learners."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive.errors import InvalidConfig  # noqa: E402
from relive.train import LearnersKeepDying, preset  # noqa: E402
from relive.train.learners import async_learner as learners  # noqa: E402
from relive.train.learners.parameter_server import ParameterServer, ServerOptions  # noqa: E402
from train.batches import box_spaces, continuous_batch, discrete_batch, discrete_spaces  # noqa: E402

AGENTS: dict[str, dict[str, object]] = {
    "dqn": {"agent.network.hidden": (16, 16), "agent.priority_exponent": 0.6, "agent.target_period": 3},
    "iqn": {"agent.network.hidden": (16, 16), "agent.priority_exponent": 0.6},
    "ddpg": {"agent.hidden": (16, 16)},
    "td3": {"agent.hidden": (16, 16), "agent.priority_exponent": 0.5},
    "sac": {"agent.hidden": (16, 16)},
}
ROWS = 24


def made(agent: str) -> tuple[Any, Any, Any]:
    """An agent, its configuration and its spaces."""
    spaces = discrete_spaces() if agent in ("dqn", "iqn") else box_spaces()
    config = preset(agent, spaces.env_id, {**AGENTS[agent], "agent.batch_size": ROWS}).agent
    return config.make(spaces, seed=4, device="cpu"), config, spaces


def batch_of(agent: str, number: int) -> Any:
    return discrete_batch(number, ROWS) if agent in ("dqn", "iqn") else continuous_batch(number, ROWS)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


class Recorder:
    """Replicas of one, which keeps what an update gives."""

    number, count = 0, 1

    def __init__(self) -> None:
        self.unit: list[Any] = []

    def combine(self, gradients: Any) -> None:
        self.unit.append(gradients.clone())


# ---- what an agent lends to it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", list(AGENTS))
def test_applying_its_gradients_is_an_update(agent: str) -> None:
    """To the bit: one computes them, the other steps along them, and both know as much afterwards."""
    (learning, _, _), (applying, _, _) = made(agent), made(agent)
    recorder = Recorder()
    learning.join(recorder)
    for number in range(7):
        recorder.unit.clear()
        learning.update(batch_of(agent, number))
        applying.apply(recorder.unit)
        for mine, its in zip(learning.exchange().generators, applying.exchange().generators, strict=True):
            its.set_state(mine.get_state())
        assert same(learning.state_dict(), applying.state_dict()), number
        for mine, its in zip(learning.exchange().tensors, applying.exchange().tensors, strict=True):
            assert torch.equal(mine, its)


def test_what_travels_is_all_that_an_update_reads() -> None:
    """An agent of another seed, given an exchange, updates as the one that it came from; td3 in mid-delay."""
    for agent in AGENTS:
        one, config, spaces = made(agent)
        other = config.make(spaces, seed=99, device="cpu")
        for number in range(3):
            one.update(batch_of(agent, number))
        for source, target in zip(one.exchange().tensors, other.exchange().tensors, strict=True):
            target.copy_(source)
        for source, target in zip(one.exchange().generators, other.exchange().generators, strict=True):
            target.set_state(source.get_state())
        other.num_updates = one.num_updates
        for number in range(3, 6):
            one.update(batch_of(agent, number))
            other.update(batch_of(agent, number))
        assert same(one.state_dict(), other.state_dict()), agent


def test_a_resumed_td3_knows_when_its_actor_is_due() -> None:
    one, config, spaces = made("td3")
    for number in range(3):
        one.update(batch_of("td3", number))
    other = config.make(spaces, seed=99, device="cpu")
    other.load_state_dict(one.state_dict())
    for number in range(3, 8):
        one.update(batch_of("td3", number)), other.update(batch_of("td3", number))
    assert same(one.state_dict(), other.state_dict())


def test_learners_in_step_do_not_leave_the_actor_out() -> None:
    """Two that begin from the same version see every second one: by num_updates the actor would never have a turn."""
    server, config, spaces = made("td3")
    pair = [config.make(spaces, seed=seed, device="cpu") for seed in (1, 2)]
    recorders = [Recorder() for _ in pair]
    for one, recorder in zip(pair, recorders, strict=True):
        one.join(recorder)
    num_of_actor = 0
    for number in range(10):
        for one, recorder in zip(pair, recorders, strict=True):
            for source, target in zip(server.exchange().tensors, one.exchange().tensors, strict=True):
                target.copy_(source)
            one.num_updates = server.num_updates
            recorder.unit.clear()
            one.update(batch_of("td3", number))
        for recorder in recorders:
            num_of_actor += len(recorder.unit) - 1
            server.apply(recorder.unit)
    assert server.num_updates == 20 and num_of_actor == 10


@pytest.mark.parametrize(("count", "delay"), [(1, 4), (2, 4), (3, 4), (3, 1), (5, 2)])
def test_the_actor_is_as_late_as_with_one_learner(count: int, delay: int) -> None:
    """However many learners find that the actor is due: they take over a version at random moments."""
    _, config, spaces = made("td3")
    config = replace(config, policy_delay=delay)
    server, *learning = (config.make(spaces, seed=seed, device="cpu") for seed in range(1 + count))
    recorders = [Recorder() for _ in learning]
    rng = np.random.default_rng(count + delay)
    for one, recorder in zip(learning, recorders, strict=True):
        one.join(recorder)
    for _ in range(100):
        at = int(rng.integers(count))
        one, recorder = learning[at], recorders[at]
        if recorder.unit:
            server.apply(recorder.unit)
        recorder.unit.clear()
        for source, target in zip(server.exchange().tensors, one.exchange().tensors, strict=True):
            target.copy_(source)
        one.num_updates = server.num_updates
        one.update(batch_of("td3", 0))
    steps = server.state_dict()["actor_optimizer"]["step"]
    assert abs(float(steps) - server.num_updates / delay) <= 1 + count / delay


# ---- the protocol, by hand -------------------------------------------------------------------------------------------


class NoProcess:
    """In place of a learner's process: the test speaks for it."""

    pid, exitcode = 0, None

    def __init__(self, target: Any, args: Any, name: str, daemon: bool) -> None:
        self.task = args[0].value[0]

    def start(self) -> None:
        made_by_hand.append(Hand(self.task))

    def join(self, timeout: float | None = None) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def is_alive(self) -> bool:
        return False


made_by_hand: list[Hand] = []


class Hand:
    """A learner that does what it is told to, when it is told to."""

    def __init__(self, task: Any) -> None:
        self.pipe = Connection(os.dup(task.pipe.fileno()))  # the server closes its copy
        self.agent = task.agent.make(task.spaces, seed=task.seed, device="cpu")
        self.slot = learners.Slot(task.block, task.layout, self.agent)
        self.recorder = Recorder()
        self.agent.join(self.recorder)
        self.task, self.version = task, -1

    def hears(self) -> tuple[str, int]:
        assert self.pipe.poll(10), "the server said nothing"
        word, self.version = self.pipe.recv()
        self.slot.read_state()
        self.agent.num_updates = self.version
        return word, self.version

    def finds(self, batch: Any) -> list[Any]:
        """Makes a unit and says so."""
        self.recorder.unit.clear()
        self.agent.update(batch)
        self.slot.gradients.zero_()
        whole = torch.cat([gradient.view(-1) for gradient in self.recorder.unit])
        self.slot.gradients[: len(whole)] = whole
        self.slot.write_noise()
        self.pipe.send((learners.DONE, tuple(len(gradient) for gradient in self.recorder.unit), {"loss": 1.5}))
        return list(self.recorder.unit)


@contextmanager
def by_hand(agent: str, count: int, max_staleness: int) -> Iterator[tuple[Any, ParameterServer, list[Hand]]]:
    serving, config, spaces = made(agent)
    server = ParameterServer(serving, config, spaces, "no table", ServerOptions(count, max_staleness, "cpu", 1, seed=7))
    made_by_hand.clear()
    server._context = type("Context", (), {"Pipe": staticmethod(server._context.Pipe), "Process": NoProcess})()  # type: ignore[assignment]
    server.start()
    try:
        yield serving, server, list(made_by_hand)
    finally:
        server.stop()
        for hand in made_by_hand:
            hand.pipe.close()


def begin(server: ParameterServer, hands: list[Hand]) -> None:
    for hand in hands:
        hand.pipe.send((learners.READY,))
        assert not server.serve(0.05) and hand.hears() == (learners.GO, 0)


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_a_gradient_is_applied_while_it_is_not_too_stale(max_staleness: int) -> None:
    """Four learners begin at once: gradient number k meets a server that has moved on by k updates."""
    with by_hand("sac", 4, max_staleness) as (agent, server, hands):
        twin, _, _ = made("sac")
        begin(server, hands)
        for number, hand in enumerate(hands):
            unit = hand.finds(batch_of("sac", number))
            applied = server.serve(0.05)
            assert applied == (number <= max_staleness)
            if applied:
                twin.apply(unit)
            assert hand.hears() == (learners.GO if applied else learners.AGAIN, twin.num_updates)
            assert all(
                torch.equal(mine, its)
                for mine, its in zip(hand.agent.exchange().tensors, twin.exchange().tensors, strict=True)
            ), "and has the newest state either way"
        assert agent.num_updates == max_staleness + 1 and server.num_dropped == 3 - max_staleness
        assert all(torch.equal(a, b) for a, b in zip(agent.exchange().tensors, twin.exchange().tensors, strict=True))
        hands[3].finds(batch_of("sac", 3))  # computed anew, on the newest state
        assert server.serve(0.05) and agent.num_updates == max_staleness + 2


def test_units_are_taken_one_a_call_and_in_turn() -> None:
    with by_hand("dqn", 3, 5) as (agent, server, hands):
        begin(server, hands)
        for _ in range(2):
            for hand in hands:
                hand.finds(batch_of("dqn", 0))
            for done in range(1, 4):
                before = agent.num_updates
                assert server.serve(1.0) and agent.num_updates == before + 1, done
            assert sorted(hand.hears()[1] for hand in hands) == [before - 1, before, before + 1]
        assert server.metrics() == {"loss": 1.5} and not server.serve(0.0)


def test_a_learner_that_waited_gets_the_newest_state() -> None:
    with by_hand("dqn", 2, 0) as (agent, server, hands):
        begin(server, hands)
        hands[0].finds(batch_of("dqn", 0))
        assert server.serve(0.05)
        hands[1].pipe.send((learners.WAITS,))
        hands[1].pipe.send((learners.ASKS,))
        assert not server.serve(0.05) and hands[1].hears() == (learners.GO, 1)
        hands[1].finds(batch_of("dqn", 1))
        assert server.serve(0.05) and agent.num_updates == 2 and server.num_dropped == 0


def test_noise_belongs_to_the_learner_and_that_of_the_first_is_the_agents() -> None:
    with by_hand("sac", 3, 9) as (agent, server, hands):
        alone, _, _ = made("sac")
        assert len({hand.task.seed for hand in hands}) == 3 and len({hand.task.stream for hand in hands}) == 3
        hands[0].slot.read_noise()
        begin(server, hands)
        for hand in (hands[1], hands[0], hands[2]):
            hand.finds(batch_of("sac", 0))
            assert server.serve(0.05)
        alone.update(batch_of("sac", 0))
        (mine,), (its,) = alone.exchange().generators, agent.exchange().generators
        assert torch.equal(mine.get_state(), its.get_state()), "moved by learner 0 alone"


def test_a_learner_that_ends_is_replaced_and_three_times_is_too_often() -> None:
    with by_hand("dqn", 2, 2) as (agent, server, hands):
        said: list[str] = []
        server._options = replace(server._options, say=said.append)
        begin(server, hands)
        for death in range(1, 4):
            made_by_hand[-1].pipe.close()
            if death == 3:
                with pytest.raises(LearnersKeepDying) as caught:
                    server.serve(0.05)
                assert (caught.value.learner, caught.value.num_deaths) == (1, 3)
            else:
                assert not server.serve(0.05) and server.num_restarts == death == len(said)
                assert made_by_hand[-1].task.stream not in {hand.task.stream for hand in hands}
        hands[0].finds(batch_of("dqn", 0))
        assert server.serve(0.05) and agent.num_updates == 1, "the other one has not noticed"


def test_more_gradients_than_a_state_has_values_are_refused() -> None:
    with by_hand("dqn", 1, 0) as (_, _, hands):
        learner = learners._AsyncLearner(hands[0].task, hands[0].agent, None)  # type: ignore[arg-type]
        with pytest.raises(InvalidConfig):
            for _ in range(9):
                learner.combine(hands[0].agent.online.gradients)


def test_priorities_and_batches_of_a_dropped_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A4: what came with a dropped gradient is not given back, and its batch is learnt from again, on a newer state."""
    server_agent, config, spaces = made("dqn")
    drawn: list[int] = []
    given: list[tuple[int, Any]] = []

    class StandIn:
        def sample(self, num_items: int, **options: Any) -> Any:
            drawn.append(num_items)
            batch = batch_of("dqn", len(drawn))
            batch.item_keys = len(drawn)
            return batch

        def update_priorities(self, keys: int, priorities: Any) -> None:
            given.append((keys, priorities))

    monkeypatch.setattr(learners, "_LONG_S", 60.0)  # nobody asks for a newer state here
    with by_hand("dqn", 1, 0) as (_, _, hands):
        task, (mine, its) = hands[0].task, multiprocessing.get_context("spawn").Pipe()
        slot = learners.Slot(task.block, task.layout, server_agent)
        learner = learners._AsyncLearner(replace(task, pipe=its), hands[0].agent, StandIn())  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: _until_eof(learner.run), daemon=True)
        thread.start()
        twin, _, _ = made("dqn")
        assert mine.recv() == (learners.READY,)
        for word, version, num_drawn in ((learners.GO, 0, 1), (learners.AGAIN, 5, 1), (learners.GO, 6, 2)):
            server_agent.online.values += 0.01
            slot.write_state()
            mine.send((word, version))
            assert mine.poll(30) and mine.recv()[0] == learners.DONE and len(drawn) == num_drawn
            if word == learners.AGAIN:
                assert given == [], "those of the dropped gradient are lost"
                twin.online.values += 0.02
                expected = twin.update(batch_of("dqn", 1))
        ((keys, priorities),) = given
        assert keys == 1
        np.testing.assert_allclose(priorities, expected, rtol=1e-5)
        mine.close()
        thread.join(30)
        assert not thread.is_alive()


def _until_eof(run: Any) -> None:
    try:
        run()
    except (EOFError, OSError):
        pass
