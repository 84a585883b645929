"""Actors of other machines, in one process with the run's server: what fits, what is counted, links that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.shm import needs_shared_memory  # noqa: E402
from service.proxy import Proxy  # noqa: E402

import relive  # noqa: E402
from relive import errors  # noqa: E402
from relive.service import RemoteTable, connect  # noqa: E402
from relive.train import EnvironmentRaised, preset  # noqa: E402
from relive.train.acting.links import StreamedTable  # noqa: E402
from relive.train.acting.remote_actor import Acted, ActOptions, act  # noqa: E402
from relive.train.acting.serving import ActorReport, ServedRun  # noqa: E402
from relive.train.config import TrainConfig  # noqa: E402
from relive.train.memory.scoreboard import Scoreboard  # noqa: E402
from relive.train.sections import where_to_serve  # noqa: E402
from relive.train.setup import limiter_of, make_table, prepare  # noqa: E402

pytestmark = needs_shared_memory
WORLD = "train.worlds:Counting-v0"


class Served:
    """A run that never learns: its table, its server, its agent."""

    def __init__(
        self, address: str = "grpc://127.0.0.1:0", table: Any = None, kind: str = "dqn", world: str = WORLD,
        tells_spaces: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        chosen: dict[str, Any] = {
            "serving.address": address, "acting.num_actors": 0, "replay.min_size": 40_000, "agent.n_step": 1,
            "serving.max_staleness_s": 2.0, "environment.num_envs_per_actor": 3,
            **({"agent.network.hidden": (16,)} if kind == "dqn" else {}), **settings,
        }  # fmt: skip
        self.config = preset(kind, world, chosen)
        setup = prepare(self.config)
        self.agent = setup.agent
        self.table = table or make_table(self.config, self.agent)
        self.scoreboard = Scoreboard(1)
        self.run = ServedRun(
            self.config, self.table, self.scoreboard, spaces=setup.spaces if tells_spaces else None
        )  # fmt: skip
        self.version = 0

    @property
    def port(self) -> int:
        return int(self.run.address.rpartition("/")[0].rpartition(":")[2])

    def publish(self) -> None:
        self.version += 1
        self.run.publish(self.agent.parameters(), self.version)

    def wait_for_steps(self, more: int = 1, timeout_s: float = 60.0) -> None:
        """Until the table has so many more."""
        length = len(self.table) + more
        wait(lambda: len(self.table) >= length, timeout_s)

    def close(self) -> None:
        self.run.stop()
        self.table.close()
        self.scoreboard.close()


def wait(until: Callable[[], bool], timeout_s: float = 60.0) -> None:
    ends = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.01)


@contextmanager
def served(table: Any = None, **settings: Any) -> Iterator[Served]:
    one = Served(table=table, **settings)
    try:
        yield one
    finally:
        one.close()


@contextmanager
def acting(address: str, **options: Any) -> Iterator[tuple[list[Any], list[str]]]:
    """An actor in a thread; what it came to, and what it said. It ends when the run does."""
    came: list[Any] = []
    said: list[str] = []

    def run() -> None:
        try:
            came.append(act(address, ActOptions(**options), say=said.append))
        except errors.ReliveError as problem:
            came.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield came, said
    thread.join(60)
    assert not thread.is_alive() and came


def transitions(table: Any) -> Any:
    """All items: observation, next_observation, policy_version."""
    keys = np.concatenate([page for page in table.keys()] or [np.zeros(0, np.int64)])
    return table.gather(keys, ["observation", "next_observation", "policy_version", "lane"])


def check_what_follows_what(table: Any) -> int:
    """Every stored transition is a step of one episode; how many there are."""
    found = transitions(table)
    before, after = np.asarray(found["observation"]), np.asarray(found["next_observation"])
    assert (before[:, 0] == after[:, 0]).all(), "a transition from one episode into another"
    assert (before[:, 1] + 1 == after[:, 1]).all(), "a transition that skips steps"
    pairs = {(episode, step) for episode, step, *_ in before.tolist()}
    assert len(pairs) == len(before), "a step came twice"
    table.check()
    return len(before)


# ---- a whole life --------------------------------------------------------------------------------------------------


def test_an_actor_finds_out_what_the_run_is_and_acts_until_it_ends() -> None:
    with served() as run:
        run.publish()
        with acting(run.run.address, seed=4) as (came, said):
            wait(lambda: run.scoreboard.num_steps > 200)
            assert run.run.num_connected == 1
            for _ in range(5):
                run.publish()
                run.wait_for_steps(30)
            run.run.finish()
        (acted,) = came
        assert isinstance(acted, Acted) and acted.finished and acted.seed == 4
        assert (acted.num_lost, acted.num_cuts, acted.num_visits) == (0, 0, 1)
        assert f"dqn on {WORLD}, 3 environments, seed 4" in said[0]
        # NEXT_STEP environments: the scoreboard counts what moved, the table what is complete.
        assert run.scoreboard.num_steps == acted.num_steps and acted.num_episodes > 0
        wait(lambda: run.table.stats().num_lanes == 0)
        count = check_what_follows_what(run.table)
        assert 0.9 * acted.num_steps <= count <= acted.num_steps
        versions = set(np.unique(transitions(run.table)["policy_version"]).tolist())
        assert {1, 2, 3} <= versions <= set(range(1, 7)), "rows carry the version that they were acted with"
        returns = run.scoreboard.recent_returns(100)
        assert len(returns) and set(returns.tolist()) == {40.0}
        wait(lambda: run.run.num_connected == 0)


def test_a_run_follows_the_actors_that_it_named() -> None:
    with served() as run:
        run.run.follow("actor-0")
        run.run.follow("actor-1")
        run.publish()
        with acting(run.run.address, name="actor-1") as (named, _), acting(run.run.address) as (other, _):
            wait(lambda: run.run.num_connected == 2)
            run.wait_for_steps(100)
            run.run.finish()
        assert run.run.steps_of("actor-0") == 0 and run.run.steps_of("actor-1") == named[0].num_steps > 0
        assert run.scoreboard.num_steps == named[0].num_steps + other[0].num_steps


def test_seeds_say_what_an_actor_sees() -> None:
    seen = []
    for seed in (1, 1, 2):
        with served() as run:
            run.publish()
            with acting(run.run.address, seed=seed, num_envs=1):
                run.wait_for_steps(100)
                run.run.finish()
            wait(lambda: run.table.stats().num_lanes == 0)
            seen.append(np.asarray(transitions(run.table)["observation"])[:80].tolist())
    assert seen[0] == seen[1] != seen[2]


# ---- what does not fit ---------------------------------------------------------------------------------------------


def refusal(address: str, **options: Any) -> Any:
    with acting(address, **options) as (came, _):
        pass
    return came[0]


def test_what_does_not_fit_is_refused() -> None:
    with served(**{"serving.max_lanes": 4}) as run:
        run.publish()
        address = run.run.address
        other = refusal(address, env_id="Pendulum-v1")
        assert isinstance(other, errors.InvalidConfig)
        spaces = refusal(address, env_id="Acrobot-v1")
        assert isinstance(spaces, errors.InvalidConfig) and "Acrobot-v1" in str(spaces) and WORLD in str(spaces)
        assert isinstance(refusal(address, env_id="Nothing-v0"), errors.InvalidConfig)
        many = refusal(address, num_envs=5)
        assert isinstance(many, errors.TooManyLanes)
        assert isinstance(refusal(address.replace("/run", "/other")), errors.NoSuchTable)
        assert isinstance(refusal("no address"), errors.InvalidConfig)
        assert isinstance(refusal(f"grpc://127.0.0.1:{run.port}"), errors.InvalidConfig)

        wrong = {name: value[..., :1] for name, value in run.agent.parameters().items()}
        about = {"format": 2, "config": run.config.to_tree(), "session": "", "num_steps": 0}
        with connect(address) as remote:
            for version, (parameters, said) in enumerate(
                ((wrong, about), (run.agent.parameters(), {**about, "format": 1}), (run.agent.parameters(), {}),
                 (run.agent.parameters(), {**about, "config": {"agent": {"name": "nobody"}}})), 10,
            ):  # fmt: skip
                remote.parameters.publish(parameters, version, said)
                assert isinstance(refusal(address), errors.InvalidConfig)
        assert len(run.table) == 0 and run.table.stats().num_lanes == 0
    for wrong_options in ({"num_envs": 0}, {"seed": -1}, {"patience_s": -1.0}):
        with pytest.raises(errors.InvalidConfig):
            ActOptions(**wrong_options)  # type: ignore[arg-type]


def test_an_environment_with_other_bounds_is_refused() -> None:
    """Its columns are the same, and its actions are scaled to its own bounds."""
    pushed, settings = "train.worlds:Pushed-v0", {"agent.hidden": (8,), "replay.min_size": 1_000}
    with served(kind="td3", world=pushed, tells_spaces=True, **settings) as run:
        run.publish()
        for name, bound in (("Shoved", "Box(-10.0, 10.0, (1,), float32)"), ("PushedFarther", "Box(-2.0, 2.0")):
            refused = refusal(run.run.address, env_id=f"train.worlds:{name}-v0", num_envs=1)
            assert isinstance(refused, errors.InvalidConfig), refused
            assert bound in str(refused) and "actions Box(-1.0, 1.0, (1,), float32)" in str(refused)
            assert pushed in str(refused)
        assert len(run.table) == 0
        with acting(run.run.address, env_id="train.worlds:PushedAgain-v0", num_envs=1) as (came, _):
            run.wait_for_steps()
            run.run.finish()
        assert isinstance(came[0], Acted)


def test_more_environments_than_the_limiter_ever_admits_together_are_refused() -> None:
    settings = {"replay.min_size": 100, "agent.batch_size": 16, "replay.updates_per_step": 0.25}
    with served(**settings) as run:
        run.publish()
        limiter = limiter_of(run.config)
        most = int(limiter.window / limiter.samples_per_insert)
        assert 3 < most < run.config.serving.max_lanes
        refused = refusal(run.run.address, num_envs=most + 1)
        assert isinstance(refused, errors.InvalidConfig) and f"<= {most}," in str(refused) and "actors" in str(refused)
        assert len(run.table) == 0 and run.scoreboard.num_steps == 0
        with acting(run.run.address, num_envs=most) as (came, _):
            wait(lambda: len(run.table) >= most)
            run.run.finish()
        assert isinstance(came[0], Acted) and came[0].num_lost == 0


def test_a_run_that_is_not_there_is_waited_for_with_patience() -> None:
    start = time.monotonic()
    with acting("grpc://127.0.0.1:1/run", patience_s=3.0) as (came, said):
        pass
    assert isinstance(came[0], errors.ServiceUnavailable) and time.monotonic() - start < 30
    assert "waiting for at most 3 s" in said[0]


def test_an_environment_that_raises_ends_the_actor_and_says_where() -> None:
    with served() as run:
        run.publish()
        problem = refusal(run.run.address, env_id="train.worlds:Faulty-v0", num_envs=1)  # of the same columns
        assert isinstance(problem, EnvironmentRaised)
        assert problem.step == 150 and "the world ends at step 150" in problem.traceback
        wait(lambda: run.table.stats().num_lanes == 0)
        assert run.scoreboard.num_steps >= 140, "what was done before is counted"


def test_addresses() -> None:
    assert where_to_serve("grpc://h:1") == ("grpc://h:1", "run") == where_to_serve("grpc://h:1/")
    assert where_to_serve("grpc://h:1/pong") == ("grpc://h:1", "pong")
    assert where_to_serve("grpc://[::1]:0") == ("grpc://[::1]:0", "run")
    for wrong in ("grpc://h", "grpc://h:1/a/b", "h:1", "grpc://", "http://h:1", "grpc://h:x", "grpc://h:1?a=b", ""):
        with pytest.raises(errors.InvalidConfig):
            where_to_serve(wrong)


def test_a_configuration_survives_its_way() -> None:
    config = preset("sac", "Pendulum-v1", {"agent.hidden": (8, 8), "serving.address": "grpc://h:1"})
    assert TrainConfig.from_tree(config.to_tree()) == config


# ---- what is counted -----------------------------------------------------------------------------------------------


def notes_for(session: str) -> Callable[..., dict[str, Any]]:
    def note(actor: str, steps: int, returns: list[float], wait_s: float = 0.0) -> dict[str, Any]:
        last = tuple(returns[-3:])
        return ActorReport(actor, steps, len(returns), wait_s, 1, last, (1,) * len(last), session).to_note()

    return note


def test_deeds_are_counted_once() -> None:
    """Notes that come twice, late, or from a second actor; and notes that are none."""
    with served() as run:
        hear, board, note = run.run._hear, run.scoreboard, notes_for(run.run.session)
        hear(1, note("a", 10, [1.0]))
        hear(1, note("a", 10, [1.0]))  # again: its answer was lost
        hear(2, note("b", 5, []))
        hear(3, note("a", 30, [1.0, 2.0, 3.0], 0.5))  # on another stream
        hear(1, note("a", 20, [1.0, 2.0]))  # overtaken
        assert (board.num_steps, board.num_episodes, board.wait_s) == (35, 3, 0.5)
        assert board.recent_returns(10).tolist() == [1.0, 2.0, 3.0] and run.run.num_connected == 3
        hear(1, None)
        hear(1, None)
        assert run.run.num_connected == 2
        good = note("a", 40, [1.0])
        for changed in (
            {"num_steps": -1}, {"num_steps": "x"}, {"returns": [1.0, 2.0]}, {"returns": [float("nan")], "lengths": [1]},
            {"wait_s": float("nan")}, {"wait_s": None}, {"num_episodes": 2**60}, {"lengths": 3},
        ):  # fmt: skip
            with pytest.raises(errors.InvalidConfig):
                hear(2, {**good, **changed})
        with pytest.raises(errors.InvalidConfig):
            hear(2, {})
        with pytest.raises(errors.FormatMismatch, match="connect again") as refused:
            hear(2, notes_for("of yesterday")("a", 1_000, [1.0]))
        assert refused.value.replaced
        assert board.num_steps == 35


# ---- links that fail -----------------------------------------------------------------------------------------------


def test_a_link_that_breaks_again_and_again() -> None:
    """Acting goes on, on new lanes; no stored transition joins what did not follow, and none comes twice."""
    with served() as run, Proxy(run.port) as proxy:
        run.publish()
        with acting(proxy.address + "/run", num_envs=4, seed=0) as (came, _):
            for cut in range(6):
                run.wait_for_steps(150)
                proxy.cut() if cut % 2 else setattr(proxy, "cuts_after", 50)
                run.publish()
            run.wait_for_steps(300)
            run.run.finish()
        (acted,) = came
        assert isinstance(acted, Acted) and acted.finished and acted.num_visits == 1 and acted.num_cuts >= 3
        wait(lambda: run.table.stats().num_lanes == 0)
        count = check_what_follows_what(run.table)
        # What was lost, and the last row of each lane that was cut.
        assert acted.num_steps - acted.num_lost - 4 * (acted.num_cuts + 1) - 50 <= count <= acted.num_steps
        assert run.scoreboard.num_steps == acted.num_steps, "counted once, over all links"


def test_acting_stops_without_news_and_goes_on_with_them() -> None:
    """Nothing passes, nothing breaks: after max_staleness_s no step is taken; a new link is another visit."""
    with served() as run, Proxy(run.port) as proxy:
        run.publish()
        with acting(proxy.address + "/run", seed=0, patience_s=100.0) as (came, said):
            run.wait_for_steps(200)
            proxy.stall(True)
            wait(lambda: any("nothing heard for" in line for line in said))
            length = len(run.table)
            time.sleep(0.5)
            assert len(run.table) == length
            proxy.stall(False)
            wait(lambda: any("acting again" in line for line in said))
            run.wait_for_steps(200)
            run.run.finish()
        (acted,) = came
        assert isinstance(acted, Acted) and acted.finished and acted.num_visits == 2
        wait(lambda: run.table.stats().num_lanes == 0)
        check_what_follows_what(run.table)


def test_lanes_that_the_run_has_not_missed_yet_are_waited_for() -> None:
    """There are just enough of them, and each new link asks before the old one's are given back."""
    with served(**{"serving.max_lanes": 3}) as run, Proxy(run.port) as proxy:
        run.publish()
        with connect(run.run.address) as remote:
            with acting(proxy.address + "/run", seed=0, patience_s=100.0) as (came, said):
                for _ in range(3):
                    run.wait_for_steps(100)
                    proxy.cut()
                run.wait_for_steps(100)
                proxy.stall(True)
                wait(lambda: any("nothing heard for" in line for line in said))
                proxy.cut()
                wait(lambda: run.table.stats().num_lanes == 0)
                with remote.writer(num_lanes=3):  # somebody has them all
                    proxy.stall(False)
                    time.sleep(3.0)
                run.wait_for_steps(100)
                run.run.finish()
        (acted,) = came
        assert isinstance(acted, Acted) and acted.finished and acted.num_visits >= 2
        wait(lambda: run.table.stats().num_lanes == 0)
        check_what_follows_what(run.table)


def test_as_many_actors_as_there_are_lanes_find_room() -> None:
    """Each has three streams. The server of any other table has room for 170 such clients."""
    with served() as run, ExitStack() as stack:
        run.publish()
        for _ in range(180):
            remote = stack.enter_context(connect(run.run.address, timeout_s=30.0))
            assert remote.parameters.pull(timeout_s=30.0) is not None
            stack.enter_context(remote.writer())
        assert run.table.stats().num_lanes == 180


def test_an_actor_whose_run_is_gone_gives_up_in_time() -> None:
    with served() as run, Proxy(run.port) as proxy:
        run.publish()
        with acting(proxy.address + "/run", patience_s=4.0) as (came, _):
            run.wait_for_steps(100)
            proxy.refuses = True
            proxy.cut()
            start = time.monotonic()
        assert isinstance(came[0], errors.ServiceUnavailable) and 3.0 < time.monotonic() - start < 40
        wait(lambda: run.table.stats().num_lanes == 0)
        check_what_follows_what(run.table)


def test_another_run_at_the_same_address_is_another_visit() -> None:
    """As after a learner was killed and resumed: another table, the versions go on."""
    with served() as first, served() as second:
        first.publish()
        with Proxy(first.port) as proxy:
            with acting(proxy.address + "/run", seed=0, patience_s=60.0) as (came, said):
                first.wait_for_steps(100)
                second.version = 5
                second.publish()
                proxy.aim(second.port)
                proxy.cut()
                second.wait_for_steps(100)
                second.run.finish()
            (acted,) = came
            assert isinstance(acted, Acted) and acted.finished and acted.num_visits == 2
            assert any("acting again" in line and "parameters 6" in line for line in said)
            wait(lambda: second.table.stats().num_lanes == 0)
            check_what_follows_what(second.table)


def test_a_session_that_goes_on_with_the_saved_table_counts_no_step_again(tmp_path: Path) -> None:
    """The handle fits the loaded table. The sums of the actor are those of the earlier session."""
    with served() as first:
        first.publish()
        with Proxy(first.port) as proxy:
            with acting(proxy.address + "/run", seed=0, patience_s=60.0) as (came, _):
                first.wait_for_steps(300)
                first.table.save(tmp_path / "save")
                with served(table=relive.load(tmp_path / "save")) as second:
                    num_saved = len(second.table)
                    second.publish()
                    proxy.aim(second.port)
                    proxy.cut()
                    wait(lambda: second.scoreboard.num_steps > 0)
                    second.wait_for_steps(100)
                    second.run.finish()
                    wait(lambda: second.table.stats().num_lanes == 0)
                    assert second.scoreboard.num_steps <= len(second.table) - num_saved
            (acted,) = came
            assert isinstance(acted, Acted) and acted.finished and acted.num_visits == 2


# ---- streaming under a limiter -------------------------------------------------------------------------------------


def test_the_limiter_may_hold_blocks_longer_than_a_call_waits() -> None:
    """held_s: the call has its own deadline, and the block it brought another; nothing is lost by waiting."""
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    index = relive.Index(limiter=relive.SamplesPerInsert(1.0, 10, tolerance=10.0))
    with relive.Table(spec, 1000, index) as table:
        from relive.service import Streaming, serve

        with (
            serve({"t": table}, "grpc://127.0.0.1:0") as server,
            connect(server.address + "/t", timeout_s=5.0) as remote,
        ):
            streaming = Streaming(max_rows=4, max_in_flight=3, held_s=60.0)
            writer = remote.writer(streaming=streaming)
            taken = 0
            with pytest.raises(errors.DeadlineExceeded):
                for _ in range(1000):
                    writer.append(action=taken, terminated=True, timeout_s=0.0)
                    taken += 1
            time.sleep(1.0)
            assert taken < 100
            while len(table) < taken:
                table.sample(4, timeout_s=10.0)
            writer.flush()
            writer.close()
            assert len(table) == taken


def test_lanes_of_a_table_are_a_writer() -> None:
    with served() as run, connect(run.run.address) as remote:
        assert isinstance(remote, RemoteTable)
        lanes = StreamedTable(remote)
        with lanes.writer(2) as writer:
            assert writer is lanes.opened and lanes.spec == run.table.spec
            rows = {"observation": np.zeros((2, 4), np.float32), "action": [0, 1], "reward": [0.0, 1.0]}
            assert writer.append(**rows).tolist() == [-1, -1]
            assert writer.append(lanes=[1], **{name: value[1:] for name, value in rows.items()}).tolist() == [-1]
            writer.end_episode(next_observation=np.zeros((2, 4), np.float32), truncated=True)
        assert len(run.table) == 3


def test_versions_wait_for_room_with_their_rows() -> None:
    """Said once each, not at every turn; where no room is for one, the row with it says so, and none is lost."""
    with served(**{"replay.min_size": 500}) as run:
        with Proxy(run.port) as proxy, connect(proxy.address + "/run", timeout_s=1.0) as remote:
            lanes = StreamedTable(remote)
            writer = lanes.writer(1)
            rows = {"observation": np.zeros((1, 4), np.float32), "action": [0], "reward": [0.0], "terminated": True}
            for _ in range(200):
                writer.set_policy_version(3)
                writer.append(**rows, next_observation=rows["observation"])
            assert writer._writer._core._sequence < 200, "messages: with a version each there would be 400"
            run.wait_for_steps(200 - len(run.table))
            assert set(np.unique(transitions(run.table)["policy_version"]).tolist()) == {3}
            proxy.stall(True)
            with pytest.raises(errors.DeadlineExceeded):
                for version in range(4, 100):
                    writer.set_policy_version(version)
                    writer.append(**rows, next_observation=rows["observation"], timeout_s=0.0)
            proxy.stall(False)
            writer.append(**rows, next_observation=rows["observation"], timeout_s=20.0)
            writer.close()
            assert writer.num_lost == 0
            found = transitions(run.table)["policy_version"].tolist()
            assert sorted(set(found)) == list(range(3, version + 1)) and len(found) == 200 + version - 3
