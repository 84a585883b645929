"""The shards of a run in one process: what the options become, where an actor's rows go, the limiter, lost owners."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.shm import needs_shared_memory  # noqa: E402

import relive  # noqa: E402
from relive.errors import DeadlineExceeded, InvalidConfig, RequestTooLarge, ServiceUnavailable  # noqa: E402
from relive.fleet import ShardOwner, attach  # noqa: E402
from relive.service.wire.access import OPEN  # noqa: E402
from relive.train import preset  # noqa: E402
from relive.train.acting.environments import describe  # noqa: E402
from relive.train.acting.serving import ServedRun  # noqa: E402
from relive.train.acting.shard_rows import LostShard, PlacedShard, ShardFacts, ShardRows  # noqa: E402
from relive.train.config import TrainConfig  # noqa: E402
from relive.train.memory.scoreboard import Scoreboard  # noqa: E402
from relive.train.settings import changed  # noqa: E402
from relive.train.setup import _check_capacity, limiter_of, table_config  # noqa: E402
from train.test_remote_actor import WORLD, acting, check_what_follows_what, wait  # noqa: E402

pytestmark = needs_shared_memory


def options(**settings: Any) -> TrainConfig:
    chosen: dict[str, Any] = {
        "cluster.kind": "ray", "cluster.shards": 2, "acting.num_actors": 4, "replay.capacity": 4_000,
        "replay.min_size": 100, "agent.n_step": 1, "agent.network.hidden": (16,), "serving.max_staleness_s": 2.0,
        "serving.max_lanes": 16, "environment.num_envs_per_actor": 3, **settings,
    }  # fmt: skip
    return preset("dqn", WORLD, chosen)


class Sharded:
    """Two shards, as the nodes "a" and "b" have them, and the learner's table over both."""

    def __init__(self, **settings: Any) -> None:
        self.config = options(**settings)
        self.agent = self.config.slice.make(describe(WORLD), seed=0, device="cpu")
        self.wanted = table_config(self.config, self.agent, relive.LocalMemory())
        self.name = f"test-rows-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self.owners = [self.owner(number) for number in (0, 1)]
        self.addresses = [one.serve() for one in self.owners]
        self.table = attach([f"{self.name}-{number}" for number in (0, 1)])
        there = zip((0, 1), "ab", self.addresses, strict=True)
        self.facts = ShardFacts(tuple(PlacedShard(*one) for one in there))

    def owner(self, number: int) -> ShardOwner:
        return ShardOwner(number, replace(self.wanted, storage=relive.SharedMemory(f"{self.name}-{number}")))

    def rows(self, node: str, facts: ShardFacts | None = None) -> ShardRows:
        return ShardRows(facts or self.facts, node, OPEN, 2.0, 1)

    def come_back(self, number: int) -> None:
        """A new owner takes the shard over, at its address."""
        self.owners[number] = self.owner(number)
        assert self.owners[number].is_restored
        self.owners[number].serve(self.addresses[number].rpartition("/")[0])

    def written(self, number: int) -> int:
        """Steps that the shard has ever got."""
        return int(self.owners[number].table.stats().appended)

    def steps(self) -> list[int]:
        return [shard.num_steps for shard in self.table.stats().shards]

    def close(self) -> None:
        self.table.close()
        for owner in self.owners:
            owner.close()


@pytest.fixture
def sharded() -> Iterator[Sharded]:
    one = Sharded()
    try:
        yield one
    finally:
        one.close()


def step(number: int, lanes: int = 1) -> dict[str, Any]:
    observation = np.full((lanes, 4), number, np.float32)
    return {"observation": observation, "action": np.zeros(lanes, np.int64), "reward": np.ones(lanes, np.float32)}


def fill(writer: Any, number: int, timeout_s: float = 0.0) -> int:
    """Writes until there is no room, at most so many steps of episodes of ten; how many it has written."""
    for done in range(number):
        try:
            end = {"truncated": [True], "next_observation": np.zeros((1, 4))} if done % 10 == 9 else {}
            writer.append(**step(done), **end, timeout_s=timeout_s)
        except DeadlineExceeded:
            return done
    return number


# ---- options ---------------------------------------------------------------------------------------------------------


def test_the_capacity_and_the_lanes_of_a_run_are_divided_over_its_shards() -> None:
    one, two, five = (options(**{"cluster.shards": number}) for number in (None, 2, 5))
    found = []
    for config in (one, two, five):
        agent = config.slice.make(describe(WORLD), seed=0, device="cpu")
        table = table_config(config, agent, relive.LocalMemory())
        found.append((table.capacity, table.max_lanes, next(iter(table.index.values())).limiter.num_items))
    assert found == [(4_000, 2 * 12 + 16, 100), (2_000, 2 * 6 + 16, 100), (800, 2 * 3 + 16, 100)]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_shard_has_room_for_the_items_that_a_draw_waits_for(number: int) -> None:
    def check(capacity: int) -> None:
        config = options(**{"cluster.shards": number, "replay.capacity": capacity})
        agent = config.slice.make(describe(WORLD), seed=0, device="cpu")
        _check_capacity(config, agent.index(limiter_of(config)))

    lanes = -(-12 // number) + 16
    least = number * (100 + lanes)  # the newest step of each lane has no item yet
    check(least)
    with pytest.raises(InvalidConfig, match=f"replay.capacity.*>= {least} ") as raised:
        check(least - 1)
    assert (f"each of {number} shards has room for" in str(raised.value)) == (number > 1)


def test_shards_are_not_saved_unless_a_program_says_otherwise() -> None:
    config = options()
    assert config.checkpoint.table == "never" and TrainConfig.from_tree(config.to_tree()) == config
    assert options(**{"cluster.shards": "none"}).checkpoint.table == "always"
    with pytest.raises(InvalidConfig, match=r"checkpoint.table.*'never' with cluster.shards"):
        options(**{"checkpoint.table": "always"})


def test_facts_survive_their_way_and_others_are_refused(sharded: Sharded) -> None:
    facts = ShardFacts(sharded.facts.there, (LostShard(7, 100, 3_200),))
    assert ShardFacts.from_about(facts.to_about()) == facts
    assert ShardFacts.from_about({"num_steps": 3}) is None
    with pytest.raises(InvalidConfig, match="shards of the run"):
        ShardFacts.from_about({"shards": [[["x"]], []]})


# ---- where the rows go -----------------------------------------------------------------------------------------------


def test_rows_go_to_the_shard_of_the_node_and_through_the_service_without_one(sharded: Sharded) -> None:
    for node, number in (("a", 0), ("b", 1)):
        with sharded.rows(node) as rows, rows.writer(1) as writer:
            before = sharded.steps()
            assert rows.number == number and fill(writer, 20) == 20
            assert rows.opened is None, "no stream"
            assert [now - was for now, was in zip(sharded.steps(), before, strict=True)] == [
                20 * (number == at) for at in (0, 1)
            ]
    with sharded.rows("a") as rows, rows.writer(1) as writer:
        fill(writer, 10)
    with sharded.rows("elsewhere") as rows, rows.writer(1) as writer:
        assert rows.number == 1, "the emptiest"
        assert fill(writer, 15) == 15 and rows.opened is not None
        rows.opened.settle(5.0)
        assert sharded.steps() == [30, 35]


def test_the_limiter_acts_on_the_totals_of_all_shards(sharded: Sharded) -> None:
    limiter = next(iter(sharded.wanted.index.values())).limiter
    assert isinstance(limiter, relive.SamplesPerInsert)
    most = limiter.min_size + limiter.half_window / limiter.samples_per_insert
    with sharded.rows("a") as near, sharded.rows("elsewhere") as far, near.writer(1) as one, far.writer(1) as other:
        first = fill(one, 60)
        second = fill(other, 1_000)
        assert first == 60 and most - 2 <= first + second <= most + 12
        assert fill(one, 10) == 0 and fill(other, 10) == 0, "neither has room"
        size = sharded.config.agent.batch_size
        sharded.table.sample(size)
        more = fill(other, 1_000)
        assert abs(more - size / limiter.samples_per_insert) <= 2
        with pytest.raises(DeadlineExceeded, match="over all shards") as raised:
            one.append(**step(0), timeout_s=0.2)
        assert raised.value.waited_s >= 0.2


def test_the_first_fill_lets_in_a_block_that_is_larger_than_the_window(sharded: Sharded) -> None:
    """As in one table."""
    one = step(0)
    block = {name: np.repeat(values[None], 60, 0) for name, values in one.items()}
    with sharded.rows("a") as rows, rows.writer(1) as writer:
        writer.extend(**block, timeout_s=0.0)
        with pytest.raises(RequestTooLarge):
            writer.extend(**block, timeout_s=60.0)
    assert sharded.written(0) == 60


def test_a_read_of_the_totals_serves_a_part_of_the_room_for_each_actor(sharded: Sharded) -> None:
    with sharded.rows("a") as rows, rows.writer(1) as writer:
        fill(writer, 1)
        assert 0 < rows._room._num_granted <= 99, "the first fill ends exactly"
        alone = rows._room._num_granted
    with ShardRows(sharded.facts, "a", OPEN, 2.0, 8) as rows, rows.writer(1) as writer:
        fill(writer, 1)
        assert rows._room._num_granted <= alone / 4


def test_what_a_lost_shard_had_counted_stays_in_the_totals(sharded: Sharded) -> None:
    with sharded.rows("b") as rows, rows.writer(1) as writer:
        full = fill(writer, 1_000)
    with sharded.rows("b") as rows, rows.writer(1) as writer:
        assert fill(writer, 10) == 0
    size = next(iter(sharded.wanted.index.values())).limiter.samples_per_insert
    there = sharded.facts.there[1:]
    for lost, room in ((LostShard(0, 0, 0), 0), (LostShard(0, 100, int(130 * size)), 30), (LostShard(0, 50, 0), 0)):
        with sharded.rows("b", ShardFacts(there, (lost,))) as rows, rows.writer(1) as writer:
            assert abs(fill(writer, 1_000) - room) <= 1, (lost, full)


# ---- owners that end -------------------------------------------------------------------------------------------------


def test_no_step_is_taken_while_the_shard_has_no_owner_and_its_lanes_go_on_after(sharded: Sharded) -> None:
    with sharded.rows("a") as rows, rows.writer(1) as writer:
        assert fill(writer, 5) == 5 and rows.silent_s() < 0.1
        sharded.owners[0].close()
        assert fill(writer, 5) == 0
        time.sleep(0.3)
        assert rows.silent_s() >= 0.3
        sharded.come_back(0)
        for number in range(5, 9):
            writer.append(**step(number), timeout_s=5.0)
        assert rows.silent_s() < 0.1
    found = sharded.owners[0].table.gather(next(iter(sharded.owners[0].table.keys())), ["observation"])
    assert len(found["observation"]) == 8, "one episode, its last step without a next state"


def test_a_shard_without_an_owner_is_not_opened(sharded: Sharded) -> None:
    sharded.owners[1].close()
    for node in "ab":
        with pytest.raises(ServiceUnavailable):
            sharded.rows(node)
    with sharded.rows("a", ShardFacts(sharded.facts.there[:1], (LostShard(1, 0, 0),))) as rows:
        assert rows.number == 0


@contextmanager
def learning(sharded: Sharded) -> Iterator[None]:
    """Draws all the time, and so makes room for steps."""
    over = threading.Event()

    def draw() -> None:
        while not over.is_set():
            with suppress(DeadlineExceeded):
                sharded.table.sample(sharded.config.agent.batch_size, timeout_s=0.1)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30.0)


# ---- whole actors ----------------------------------------------------------------------------------------------------


def test_actors_write_into_their_shards_until_the_run_ends(sharded: Sharded) -> None:
    board = Scoreboard(1)
    beside = relive.Table.from_config(replace(sharded.wanted, max_lanes=1))
    facts = [sharded.facts]
    config = changed(sharded.config, {"serving.max_staleness_s": 60.0})  # a new owner may take seconds to come
    run = ServedRun(config, beside, board, "grpc://127.0.0.1:0", lambda: facts[0].to_about())
    try:
        assert run.is_outdated
        run.publish(sharded.agent.parameters(), 1)
        assert not run.is_outdated
        facts[0] = ShardFacts(sharded.facts.there, (LostShard(9, 0, 0),))
        assert run.is_outdated
        facts[0] = sharded.facts
        with ExitStack() as stack:
            stack.enter_context(learning(sharded))
            near = stack.enter_context(acting(run.address, seed=1, node="a"))
            wait(lambda: sharded.written(0) > 20)
            far = stack.enter_context(acting(run.address, seed=2, node="c"))
            wait(lambda: sharded.written(1) > 20)
            for number in (0, 1):
                sharded.owners[number].close()  # for less than max_staleness_s: the same visits go on
                time.sleep(0.5)
                sharded.come_back(number)
                before = sharded.written(0), sharded.written(1)
                wait(lambda before=before: sharded.written(0) > before[0] and sharded.written(1) > before[1])  # type: ignore[misc]
            run.finish()
        for came, _ in (near, far):
            assert came[0].finished and came[0].num_visits == 1, came
        assert (near[0][0].num_cuts, near[0][0].num_lost) == (0, 0) and far[0][0].num_cuts >= 1
        assert len(beside) == 0
        assert check_what_follows_what(sharded.table) > 100
    finally:
        run.stop()
        beside.close()
        board.close()
