"""Actions that somebody else infers: noise that belongs to environments, batches that close, requests and answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest

from relive import Table
from relive.agents.agent import Spaces
from relive.agents.boxes import ActionBox, NoisyPolicy, SquashedGaussianPolicy
from relive.agents.config import LinearSchedule
from relive.agents.policies import EpsilonGreedy, NetworkValues
from relive.errors import DeadlineExceeded
from relive.train.acting import inference as inferences
from relive.train.acting.actor import ActorTask, make_acting
from relive.train.acting.answering import Answering, OpenBatch
from relive.train.acting.environments import describe
from relive.train.acting.inference import (
    AskedInference,
    Bell,
    OwnInference,
    RequestBoard,
    RequestLayout,
    group_sizes,
)
from relive.train.acting.noise import EnvironmentNoise, NoiseStream, environment_keys
from relive.train.memory.parameters import ParameterBoard, ParameterLayout
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import watch_with
from relive.train.sections import EnvironmentConfig

SPACES = Spaces("Made-v0", gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(4))
GREEDY = EpsilonGreedy(LinearSchedule(0.5, 0.5, 1), NetworkValues(False))


def parameters(name: str = "q", outputs: int = 4, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        f"{name}.0.weight": rng.normal(size=(outputs, 3)).astype(np.float32),
        f"{name}.0.bias": rng.normal(size=outputs).astype(np.float32),
    }


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_noise_follows_from_key_and_step_alone() -> None:
    keys, steps = environment_keys(3, 1, 0, 6), np.arange(6, dtype=np.uint64)
    whole = EnvironmentNoise(keys, steps)
    uniform, again, normal = whole.random((6, 3)), whole.random((6, 3)), whole.standard_normal((6, 2), np.float32)
    assert normal.dtype == np.float32
    for row in range(6):
        alone = EnvironmentNoise(keys[row : row + 1], steps[row : row + 1])
        np.testing.assert_array_equal(alone.random((1, 3))[0], uniform[row])
        np.testing.assert_array_equal(alone.random((1, 3))[0], again[row])
        np.testing.assert_array_equal(alone.standard_normal((1, 2), np.float32)[0], normal[row])
    assert len({*uniform.ravel(), *again.ravel()}) == 36, "other rows, columns, steps and calls are others"


def test_a_stream_gives_what_each_step_gives_alone() -> None:
    """Over the end of what was computed ahead, and whatever is drawn in a step."""
    keys = environment_keys(3, 1, 0, 3)
    stream = NoiseStream(keys)
    for step in range(150):
        alone = EnvironmentNoise(keys, np.full(3, step, np.uint64))
        for _ in range(1 + step % 2):
            np.testing.assert_array_equal(stream.random((3, 2)), alone.random((3, 2)))
            normal = stream.standard_normal((3, 1 + step % 3), np.float32)
            assert normal.dtype == np.float32
            np.testing.assert_array_equal(normal, alone.standard_normal((3, 1 + step % 3), np.float32))
        stream.random((3, 2))[:] = 7.0  # is the caller's own
        stream.next_step()


def test_keys_are_of_seed_actor_incarnation_and_environment() -> None:
    np.testing.assert_array_equal(environment_keys(3, 1, 0, 2), environment_keys(3, 1, 0, 9)[:2])
    several = [environment_keys(*which, 4) for which in ((3, 1, 0), (4, 1, 0), (3, 2, 0), (3, 1, 1))]
    assert len({int(key) for keys in several for key in keys}) == 16


def test_noise_is_as_uniform_and_as_normal_as_it_says() -> None:
    """Of one environment over its steps, and of many at one step: neither shows a pattern in its moments."""
    for keys, steps in (
        (np.full(40_000, environment_keys(0, 0, 0, 1)[0]), np.arange(40_000, dtype=np.uint64)),
        (environment_keys(0, 0, 0, 40_000), np.zeros(40_000, np.uint64)),
    ):
        noise = EnvironmentNoise(keys, steps)
        uniform, normal = noise.random((40_000, 2)), noise.standard_normal((40_000, 2), np.float32)
        assert uniform.min() >= 0.0 and uniform.max() < 1.0
        assert np.abs(uniform.mean(axis=0) - 0.5).max() < 0.01 and np.abs(uniform.var(axis=0) - 1 / 12).max() < 0.005
        assert np.abs(normal.mean(axis=0)).max() < 0.03 and np.abs(normal.std(axis=0) - 1.0).max() < 0.02
        for drawn in (uniform, normal):
            assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.02 and abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.02
        counts = np.bincount((uniform[:, 0] * 50).astype(int), minlength=50)
        assert ((counts - 800) ** 2 / 800).sum() < 120, "chi square of 49 degrees of freedom"


@pytest.mark.parametrize("num_steps", [0, 100])
def test_an_action_depends_on_its_own_row_alone(num_steps: int) -> None:
    box = ActionBox.of(Spaces("Made-v0", SPACES.observation, gymnasium.spaces.Box(-2, 2, (2,), np.float32)), "a policy")
    policies = (
        (GREEDY, parameters()),
        (NoisyPolicy(box, 0.3, 50), parameters("actor", 2)),
        (SquashedGaussianPolicy(box, 50), parameters("actor", 4)),
    )
    keys, steps = environment_keys(0, 0, 0, 9), np.full(9, 7, np.uint64)
    observations = np.random.default_rng(0).uniform(-1, 1, (9, 3)).astype(np.float32)
    for policy, given in policies:
        together = policy.explore(given, observations, num_steps, EnvironmentNoise(keys, steps))
        for row in range(9):
            one = slice(row, row + 1)
            alone = policy.explore(given, observations[one], num_steps, EnvironmentNoise(keys[one], steps[one]))
            np.testing.assert_allclose(alone[0], together[row], rtol=1e-5, atol=1e-6)


# ---- when a batch closes ---------------------------------------------------------------------------------------------


def test_a_batch_closes_when_it_is_full() -> None:
    batch = OpenBatch(max_batch=5, max_wait_s=1.0)
    assert batch.closes_in(0.0) is None
    for slot in range(2):
        batch.add(slot, 1, 2, now_s=10.0 + slot / 100)
        assert batch.closes_in(10.02) == pytest.approx(0.98)
    batch.add(2, 1, 2, now_s=10.03)
    assert batch.closes_in(10.03) == 0.0
    assert batch.take() == [(0, 1), (1, 1)], "whole requests in their order: five rows are two requests"
    assert batch.num_rows == 2 and batch.closes_in(10.03) == pytest.approx(1.0), "the rest has waited since it came"
    batch.add(3, 1, 2, now_s=10.04)
    batch.add(4, 1, 1, now_s=10.05)
    assert batch.closes_in(10.05) == 0.0 and batch.take() == [(2, 1), (3, 1), (4, 1)] and batch.closes_in(11.0) is None


def test_a_batch_closes_when_its_oldest_request_has_waited() -> None:
    batch = OpenBatch(max_batch=100, max_wait_s=0.5)
    batch.add(7, 1, 2, now_s=1.0)
    batch.add(8, 1, 2, now_s=1.4)
    assert batch.closes_in(1.49) == pytest.approx(0.01) and batch.closes_in(1.5) == 0.0 and batch.closes_in(9.0) == 0.0
    assert batch.take() == [(7, 1), (8, 1)]


def test_a_request_that_is_rung_again_waits_once() -> None:
    batch = OpenBatch(max_batch=4, max_wait_s=0.5)
    batch.add(7, 1, 2, now_s=1.0)
    batch.add(7, 1, 2, now_s=1.4)
    assert batch.num_rows == 2 and batch.closes_in(1.4) == pytest.approx(0.1)
    batch.add(7, 2, 2, now_s=1.45)  # of who took the place of a dead one
    assert batch.num_rows == 2 and batch.take() == [(7, 2)]


# ---- requests and answers --------------------------------------------------------------------------------------------


class Run:
    """A run's memory, and who infers in it."""

    def __init__(self, num_slots: int, rows: int, max_batch: int, max_wait_s: float = 0.0) -> None:
        self.requests = RequestBoard(num_slots, RequestLayout.of(SPACES, rows))
        self.scoreboard = Scoreboard(num_slots)
        self.board = ParameterBoard(ParameterLayout.of(parameters()))
        self.batch = (max_batch, max_wait_s)
        self.answering = self.another()

    def another(self, policy: Any = GREEDY) -> Answering:
        return Answering(self.requests, policy, self.board.reader(), self.scoreboard, OpenBatch(*self.batch))


@contextmanager
def run_of(num_slots: int, rows: int, max_batch: int, max_wait_s: float = 0.0) -> Iterator[Run]:
    run = Run(num_slots, rows, max_batch, max_wait_s)
    run.board.publish(parameters())
    try:
        yield run
    finally:
        del run.answering
        run.requests.close(), run.board.close(), run.scoreboard.close()


def asked(run: Run, slot: int, rows: int) -> AskedInference:
    return AskedInference(run.requests.of_slots(range(slot, slot + 1)), slot, environment_keys(0, slot, 0, rows))


def shown(seed: int, rows: int) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 3)).astype(np.float32)


def test_answers_are_what_an_actor_finds_itself() -> None:
    """Step by step, for groups of different sizes in one batch; the version is that of the parameters."""
    with run_of(2, 3, max_batch=5) as run:
        sizes = (3, 2)
        others = [asked(run, slot, rows) for slot, rows in enumerate(sizes)]
        own = [
            OwnInference(GREEDY, run.board.reader(), run.scoreboard, environment_keys(0, slot, 0, rows))
            for slot, rows in enumerate(sizes)
        ]
        for step in range(6):
            if step == 3:
                run.board.publish(parameters(seed=1))
            for slot, rows in enumerate(sizes):
                others[slot].ask(shown(10 * step + slot, rows))
                own[slot].ask(shown(10 * step + slot, rows))
            assert others[0].actions(0.0) is None
            assert run.answering.serve(1.0) == 5
            for mine, its in zip(own, others, strict=True):
                np.testing.assert_array_equal(mine.actions(0.0), its.actions(1.0))
                assert mine.version == its.version == (1 if step < 3 else 2)
        assert run.requests.answers[0] == 6


def test_parameters_that_are_not_there_are_waited_for() -> None:
    run = Run(1, 2, max_batch=2)
    own = OwnInference(GREEDY, run.board.reader(), run.scoreboard, environment_keys(0, 0, 0, 2))
    other = asked(run, 0, 2)
    own.ask(shown(0, 2)), other.ask(shown(0, 2))
    assert own.actions(0.0) is None and run.answering.serve(0.0) == 0 and other.actions(0.25) is None
    run.board.publish(parameters())
    assert run.answering.serve(1.0) == 2, "it was asked again"
    np.testing.assert_array_equal(own.actions(0.0), other.actions(0.0))


def test_who_comes_after_a_dead_one_is_asked_again() -> None:
    with run_of(1, 2, max_batch=2) as run:
        actor = asked(run, 0, 2)
        actor.ask(shown(0, 2))
        run.answering._hear(0.0)  # and dies with what it has heard
        after = run.another()
        assert after.serve(0.0) == 0 and actor.actions(0.25) is None
        assert after.serve(1.0) == 2 and actor.actions(0.0) is not None


def test_an_answer_whose_bell_was_lost_is_found() -> None:
    """Who answered died between the answer and the bell."""
    with run_of(1, 2, max_batch=2) as run:
        actor = asked(run, 0, 2)
        actor.ask(shown(0, 2))
        assert run.answering.serve(1.0) == 2
        assert run.requests.bells[0].heard(0.0) == b"!"
        assert actor.actions(0.0) is None and actor.actions(1.0) is not None


def test_a_request_is_answered_once() -> None:
    """However often it is rung: a second answer would change actions that are being read."""
    with run_of(1, 2, max_batch=2) as run:
        actor = asked(run, 0, 2)
        actor.ask(shown(0, 2))
        actor._ring()
        assert run.answering.serve(1.0) == 2
        actor._ring()
        run.board.publish(parameters(seed=1))
        assert run.answering.serve(0.0) == 0 and actor.actions(1.0) is not None and actor.version == 1


def test_what_a_dead_actor_asked_is_not_taken_for_its_successors() -> None:
    with run_of(1, 2, max_batch=2) as run:
        dead = asked(run, 0, 2)
        dead.ask(shown(0, 2))
        run.answering._hear(0.0)
        successor = asked(run, 0, 2)
        run.requests.slots[0]["request"] += 1  # Q1, half-way: its observations are not written yet
        assert run.answering.serve(0.0) == 0, "the copy does not count"
        run.requests.slots[0]["request"] -= 1
        successor.ask(shown(1, 2))
        assert run.answering.serve(1.0) == 2
        twin = OwnInference(GREEDY, run.board.reader(), run.scoreboard, environment_keys(0, 0, 0, 2))
        twin.ask(shown(1, 2))
        np.testing.assert_array_equal(successor.actions(1.0), twin.actions(0.0))


def test_a_request_that_changes_while_it_is_copied_does_not_count() -> None:
    class Changing(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "steps":
                self["request"] = 5  # a successor's first write
            return super().__getitem__(name)

    with run_of(1, 2, max_batch=2) as run:
        asked(run, 0, 2).ask(shown(0, 2))
        names = run.requests.slots.dtype.names
        whole = {name: run.requests.slots[0][name] for name in names}
        assert run.answering._copied(whole, 1, 0) == 2 and run.answering._copied(Changing(whole), 1, 0) == 0


def test_a_batch_that_is_not_full_waits_for_others() -> None:
    """And a full one does not: its third actor comes while it is open."""
    with run_of(3, 2, max_batch=6, max_wait_s=30.0) as run:
        actors = [asked(run, slot, 2) for slot in range(3)]
        for slot in range(2):
            actors[slot].ask(shown(slot, 2))
        assert run.answering.serve(0.05) == 0
        timer = threading.Timer(0.1, lambda: actors[2].ask(shown(2, 2)))
        timer.start()
        assert run.answering.serve(20.0) == 6
        timer.join()
        assert all(actor.actions(1.0) is not None for actor in actors)


def test_an_actor_waits_until_its_deadline_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_of(1, 2, max_batch=2) as run:
        actor = asked(run, 0, 2)
        actor.ask(shown(0, 2))
        began_s = time.monotonic()
        assert actor.actions(0.3) is None and time.monotonic() - began_s >= 0.3
        monkeypatch.setattr(inferences, "_DEADLINE_S", 0.1)
        with pytest.raises(DeadlineExceeded, match="inference process"):
            actor.actions(0.3)


def test_a_bell_that_nobody_hears_does_not_block() -> None:
    bell = Bell()
    for _ in range(20_000):
        bell.ring(b"0123456789abcdef")
    assert set(bell.heard(0.0)) == set(b"0123456789abcdef")
    bell.close()


@pytest.mark.parametrize(
    ("num_envs", "num_groups", "sizes"), [(4, 1, [4]), (4, 2, [2, 2]), (5, 2, [3, 2]), (2, 2, [1, 1])]
)
def test_groups_share_the_environments(num_envs: int, num_groups: int, sizes: list[int]) -> None:
    assert group_sizes(num_envs, num_groups) == sizes


# ---- what is stored --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [False, True])
def test_rows_say_which_version_acted(asks: bool) -> None:
    """Also where newer parameters came while the action was on its way: what counts is who acted."""
    spaces = describe("CartPole-v1")
    network = {"q.0.weight": np.zeros((2, 4), np.float32), "q.0.bias": np.zeros(2, np.float32)}
    board, scoreboard = ParameterBoard(ParameterLayout.of(network), first_version=6), Scoreboard(1)
    requests = RequestBoard(1, RequestLayout.of(spaces, 2)) if asks else None
    task = ActorTask(0, 0, "", EnvironmentConfig(num_envs_per_actor=2), GREEDY, board, scoreboard, requests)
    with Table(spaces.spec(), 1_000, max_lanes=2, seed=0) as table, ExitStack() as stack:
        acting = make_acting(task, table, watch_with(None), stack)
        board.publish(network)
        acting.reset()
        for turn in range(8):
            if requests is not None:
                answering = Answering(requests, GREEDY, board.reader(), scoreboard, OpenBatch(2, 0.0))
                assert answering.serve(1.0) == 2
                if turn == 3:
                    board.publish(network)  # too late for this one
            elif turn == 4:
                board.publish(network)
            acting.step(1.0)
        rows = table.sample(200, columns=("policy_version", "episode_step"))
    pairs = set(zip(rows["episode_step"].tolist(), rows["policy_version"].tolist(), strict=True))
    assert pairs == {(step, 7 if step < 4 else 8) for step in range(7)}, "a step waits for the state after it"
