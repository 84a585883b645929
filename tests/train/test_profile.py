"""What a run's time went into: stopwatches by made-up clocks, the answer by hand, and a whole run that is profiled."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("rich", reason="the command line needs rich")

from rich.console import Console  # noqa: E402

from relive import Index, MinSize, Prioritized, Table, Transitions  # noqa: E402
from relive.errors import DeadlineExceeded, InvalidConfig  # noqa: E402
from relive.train import Profile, load_profile, preset, train  # noqa: E402
from relive.train.memory.stopwatch import (  # noqa: E402
    PARTS,
    STORAGE,
    Counts,
    ProfileBoard,
    Stopwatch,
    stopwatch_of,
    untimed,
    watch_with,
    watched_table,
)
from relive.train.watching.profile import (  # noqa: E402
    PICTURE_FILE,
    PROFILE_FILE,
    ProcessTime,
    Profiling,
    draw_profile,
    show_profile,
)
from train.batches import discrete_spaces  # noqa: E402


class Hand:
    """A clock that somebody turns by hand; work takes a tenth of that on a core."""

    def __init__(self) -> None:
        self.now = 0.0
        size = len(PARTS)
        self.counts = Counts(np.zeros(size), np.zeros(size), np.zeros(size, np.int64))
        self.stopwatch = Stopwatch(self.counts, lambda: self.now, lambda: self.now / 10)

    def takes(self, seconds: float, inside: Any = None) -> Any:
        """A function that takes so long, and then calls another."""

        def work(*arguments: Any, **named: Any) -> Any:
            self.now += seconds
            return inside(*arguments, **named) if inside else (arguments, named)

        return work

    @property
    def seconds(self) -> dict[str, float]:
        return {part: float(took) for part, took in zip(PARTS, self.counts.seconds, strict=True) if took}

    @property
    def calls(self) -> dict[str, int]:
        return {part: int(number) for part, number in zip(PARTS, self.counts.calls, strict=True) if number}


def test_every_moment_is_charged_to_the_innermost_part() -> None:
    hand = Hand()
    environment = hand.stopwatch.timed("environment", hand.takes(5.0))
    insert = hand.stopwatch.timed("insert", hand.takes(2.0, environment))
    hand.now += 1.0
    assert insert(7, name=8) == ((7,), {"name": 8})
    hand.now += 3.0
    environment()
    assert hand.seconds == {"other": 4.0, "insert": 2.0, "environment": 10.0}
    assert hand.calls == {"insert": 1, "environment": 2}
    hand.now += 1.0
    hand.stopwatch.look()
    assert hand.seconds["other"] == 5.0 and hand.counts.seconds.sum() == hand.now
    np.testing.assert_allclose(hand.counts.core_s, hand.counts.seconds / 10)


def test_a_call_that_raises_is_charged_too() -> None:
    hand = Hand()
    with pytest.raises(ZeroDivisionError):
        hand.stopwatch.timed("update", hand.takes(2.0, lambda: 1 // 0))()
    hand.now += 1.0
    hand.stopwatch.look()
    assert hand.seconds == {"update": 2.0, "other": 1.0}


def test_waits_inside_a_call_are_moved_at_most_as_far_as_they_go() -> None:
    hand = Hand()
    hand.stopwatch.timed("sample", hand.takes(10.0))()
    hand.stopwatch.timed("gather", hand.takes(10.0))()
    hand.stopwatch.move(("sample", "gather"), "wait", 4.0)
    assert hand.seconds == pytest.approx({"sample": 6.0, "gather": 10.0, "wait": 4.0})
    hand.stopwatch.move(("sample", "gather"), "wait", 100.0)
    assert hand.seconds == pytest.approx({"sample": 1.0, "gather": 1.0, "wait": 18.0}), "what was on a core stays"


def test_what_is_not_profiled_is_not_touched(tmp_path: Path) -> None:
    """It costs nothing: these are the very objects."""
    thing = discrete_spaces()
    assert watch_with(None)(thing, {"spec": "other"}) is thing
    assert stopwatch_of(None, "actor 3") is None and untimed("update", filled) is filled
    with Table(thing.spec(), 100) as table, Profiling(False, "learner", (), tmp_path / PROFILE_FILE) as profiling:
        assert profiling.board is None and profiling.table(table) is table
        assert (
            profiling.timed("update", test_what_is_not_profiled_is_not_touched)
            is test_what_is_not_profiled_is_not_touched
        )
        assert profiling.watch(thing, {"spec": "other"}) is thing
    assert list(tmp_path.iterdir()) == []


def filled(seed: int = 0) -> Table:
    spec = discrete_spaces().spec()
    index = Index(Transitions(n_step=2), Prioritized(), MinSize(10))
    table = Table(spec, 1_000, index, seed=seed, timeout_s=0.0)
    rng = np.random.default_rng(0)
    with table.writer() as writer:
        for step in range(60):
            writer.append(
                observation=rng.normal(size=4).astype(np.float32), action=step % 2, reward=np.float32(step),
                terminated=step % 20 == 19, truncated=False,
            )  # fmt: skip
    return table


def test_a_watched_table_gives_what_the_table_gives() -> None:
    hand = Hand()
    columns = ("observation", "reward")
    with filled() as table, filled() as other:
        watched = watched_table(table, hand.stopwatch)
        for _ in range(3):
            mine, theirs = watched.sample(16, columns=columns, timeout_s=0.0), other.sample(16, columns=columns)
            for name in columns:
                np.testing.assert_array_equal(mine[name], theirs[name])
            np.testing.assert_array_equal(mine.weights(0.5), theirs.weights(0.5))
            for one in (watched, other):
                one.update_priorities(mine.item_keys, np.ones(16))
        assert len(watched) == len(table) and watched.capacity == 1_000 and bool(watched) == bool(table)
        with watched.batches(8, prefetch=2, columns=columns, timeout_s=10.0) as batches:
            assert next(batches)["observation"].shape == (8, 4)
        assert hand.calls == {"sample": 3, "gather": 4, "priorities": 3}
        table.clear()
        with pytest.raises(DeadlineExceeded):
            watched.sample(16, columns=columns, timeout_s=0.0)


def test_what_was_evicted_between_draw_and_gather_is_drawn_again() -> None:
    hand = Hand()
    with filled() as table:

        class Evicting:
            """Its items go between a draw and the gather of it."""

            def __getattr__(self, name: str) -> Any:
                return getattr(table, name)

            def gather(self, draw: Any, columns: Any) -> Any:
                table.delete(draw.item_keys[:1])
                return table.gather(draw, columns=columns)

        batch = watched_table(Evicting(), hand.stopwatch).sample(8, columns=("reward",), timeout_s=0.0)  # type: ignore[arg-type]
        assert batch.present is None and len(batch["reward"]) == 8, "this one is whole"
        assert hand.calls == {"sample": 1, "gather": 2}


def process(name: str, **seconds: float) -> ProcessTime:
    core_s = {part: seconds.get(part, 0.0) / 2 for part in PARTS}
    return ProcessTime(name, {part: seconds.get(part, 0.0) for part in PARTS}, core_s, dict.fromkeys(PARTS, 3))


def test_the_answer_where_the_learner_is_the_slower_side() -> None:
    learner = process("learner", update=6.0, sample=1.0, gather=0.5, priorities=0.5, wait=2.0)
    profile = Profile((learner, process("actor 0", environment=2.0, wait=8.0), process("actor 1", insert=10.0)))
    assert profile.slower is learner and profile.bottleneck == "update"
    assert learner.share(*STORAGE) == pytest.approx(0.2) and learner.core_share(*STORAGE) == pytest.approx(0.1)
    assert profile.actors.share("insert") == pytest.approx(0.5) and profile.actors.calls["wait"] == 6
    assert profile.without_storage == pytest.approx(1.25)
    for words in (
        "not the bottleneck",
        "the learner is",
        "60% on update",
        "20% waiting",
        "would be 1.25 times as fast",
    ):
        assert words in str(profile)


def test_the_answer_where_storage_holds_the_actors_up() -> None:
    """No part of it is the largest; together they are."""
    actors = [process(f"actor {i}", environment=3.0, insert=4.0, inference=2.0, wait=1.0) for i in range(2)]
    profile = Profile((process("learner", update=1.0, wait=9.0), *actors))
    assert profile.slower.name == "actors" and profile.bottleneck == "storage"
    assert str(profile).startswith("Storage is the bottleneck: the actors are the slower side and spend 40% on storage")
    nothing_else = Profile((process("learner", gather=1.0), process("actor 0", wait=1.0)))
    assert nothing_else.without_storage == float("inf") and process("idle").share("wait") == 0.0


def test_actors_on_other_machines_are_told_of_and_not_judged() -> None:
    learner, waiting = process("learner", update=4.0, wait=6.0), process("actor 0", insert=10.0)
    few, most = Profile((learner, waiting), 0.25), Profile((learner, waiting), 0.75)
    assert few.slower.name == "actors" and "made 25% of the steps" in str(few)
    assert most.slower is learner and "made 75% of the steps" in str(most) and "slower side" not in str(most)
    assert "other machines" not in str(Profile((learner, waiting)))


def test_a_profile_is_read_as_it_was_written_and_nothing_else_is(tmp_path: Path) -> None:
    profile = Profile((process("learner", update=1.5, wait=0.5), process("actor 0", insert=2.0)), 0.5)
    profile.save(tmp_path / PROFILE_FILE)
    assert load_profile(tmp_path) == profile
    tree = dataclasses.asdict(profile)
    del tree["processes"][0]["seconds"]["gather"]
    whole = dataclasses.asdict(profile)
    whole["processes"][0]["seconds"]["gather"] = float("nan")
    no_learner = dataclasses.asdict(Profile(profile.processes[1:]))
    huge = json.dumps(dataclasses.asdict(profile)).replace("1.5", "1" + "0" * 400).replace(": 3", ": Infinity")
    texts = [json.dumps(one) for one in (tree, whole, no_learner, {**dataclasses.asdict(profile), "remote_share": 2})]
    for text in (*texts, huge, "[" * 200_000, "[]", "{", '{"processes": 3}', '{"processes": []}'):
        (tmp_path / PROFILE_FILE).write_text(text)
        with pytest.raises(InvalidConfig, match=PROFILE_FILE):
            load_profile(tmp_path)
    with pytest.raises(InvalidConfig, match="--profile"):
        load_profile(tmp_path / "none")


def test_a_profile_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Profile((process("learner", update=1.5),))
    before.save(tmp_path / PROFILE_FILE)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space.*{PROFILE_FILE}"):
        Profile((process("learner", update=2.5),)).save(tmp_path / PROFILE_FILE)
    assert load_profile(tmp_path) == before and [path.name for path in tmp_path.iterdir()] == [PROFILE_FILE]


def test_the_picture_has_a_bar_for_each_process(tmp_path: Path) -> None:
    profile = Profile(
        (process("learner", update=1.5, gather=0.5), *(process(f"actor {i}", wait=2.0) for i in range(3)))
    )
    draw_profile(tmp_path / "a.svg", "a run", profile)
    text = (tmp_path / "a.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in ("learner", "actor 0", "actor 2", "gather", "a run"):
        assert f"<!-- {words} -->" in text
    assert "<!-- evaluate -->" not in text, "what took no time is not shown"
    (tmp_path / f".a.svg.{os.getpid()}").mkdir()  # the name of the new picture is taken
    with pytest.raises(OSError):
        draw_profile(tmp_path / "a.svg", "another run", profile)
    assert (tmp_path / "a.svg").read_text() == text


def test_a_profile_whose_picture_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    Profile((process("learner", update=1.5),)).save(tmp_path / PROFILE_FILE)
    (tmp_path / f".{PICTURE_FILE}.{os.getpid()}").mkdir()  # the name of the new picture is taken
    text = io.StringIO()
    show_profile(tmp_path, Console(file=text, width=200))
    *shown, last = text.getvalue().splitlines()
    assert "learner: 1.5 s" in "\n".join(shown) and "the bottleneck" in "\n".join(shown)
    assert last.startswith("the picture was not drawn: ") and PICTURE_FILE in last


def test_counts_of_one_process_are_those_of_its_row() -> None:
    names = ("server", "learner 0", "actor 0")
    board = ProfileBoard(names)
    for row, name in enumerate(names):
        counts = board.counts(name)
        counts.seconds[:], counts.core_s[:], counts.calls[:] = row + 0.5, row + 0.25, row
        del counts
    for row, name in enumerate(names):
        counts = board.counts(name)
        assert set(counts.seconds) == {row + 0.5} and set(counts.core_s) == {row + 0.25} and set(counts.calls) == {row}
    board.close()


def test_learners_apart_are_one_side_and_their_server_is_on_none() -> None:
    learners = [process(f"learner {i}", update=4.0, gather=4.0, wait=2.0) for i in range(2)]
    server, inference = process("server", update=1.0, wait=9.0), process("inference", inference=9.0, wait=1.0)
    profile = Profile((server, *learners, inference, process("actor 0", environment=1.0, wait=9.0)))
    assert profile.learner.name == "learners" and profile.learner.seconds["gather"] == 8.0
    assert profile.slower.name == "learners" and profile.helpers == (server, inference)
    assert profile.actors.seconds["wait"] == 9.0 and not profile.is_alone
    assert "the learners are the slower side and spend 40% on" in str(profile) and "of the learners' time" in str(
        profile
    )


def test_a_side_that_had_not_begun_is_not_the_slower_one() -> None:
    actor = process("actor 0", environment=1.0, wait=9.0)
    profile = Profile((process("server", wait=1.0), process("learner 0"), actor))
    assert profile.slower.name == "actors" and str(profile).count("the actors are the slower side") == 1
    alone = Profile((process("server", wait=9.0), process("learner 0", update=1.0, wait=9.0)))
    assert "the learners spend 10% on update" in str(alone)
    assert str(Profile((process("learner"),))) == "The run ended before any time was counted."


def test_followers_are_shown_and_the_leader_is_the_side() -> None:
    leader, follower = process("learner", update=4.0, wait=1.0), process("learner 1", update=1.0, wait=4.0)
    profile = Profile((leader, follower, process("actor 0", wait=9.0, insert=1.0)))
    assert profile.learner is leader and profile.helpers == (follower,)
    alone = Profile((leader, follower))
    assert alone.is_alone and alone.slower is leader and "actors" not in str(alone)


def waited_for_the_limiter(path: Path, name: str, others: list[str], drawing: list[str]) -> float:
    """Profiles a draw that waits for its limiter, and returns the table's figure of the wait."""
    empty = Table(discrete_spaces().spec(), 1_000, Index(Transitions(), Prioritized(), MinSize(10)))
    with empty as table, Profiling(True, name, others, path) as profiling:
        profiling.acted(1, 4)
        watched = profiling.table(table)
        with pytest.raises(DeadlineExceeded):
            watched.sample(4, columns=("reward",), timeout_s=0.2)
        for one in drawing if name == "server" else ():
            profiling.board.counts(one).seconds[PARTS.index("gather")] = 1.0  # type: ignore[union-attr]
        return table.stats().sampler_wait_s


def test_waits_for_the_limiter_are_those_of_who_draws(tmp_path: Path) -> None:
    """Where learners draw for themselves the table's figure is cut into equal parts; a server draws nothing."""
    for name, others, drawing in (
        ("learner", ["learner 1", "actor 0"], ["learner"]),
        ("server", ["learner 0", "learner 1", "actor 0"], ["learner 0", "learner 1"]),
    ):
        path = tmp_path / PROFILE_FILE
        with ThreadPoolExecutor(1) as pool:  # one thread waits; this one might write meanwhile
            waited_s = pool.submit(waited_for_the_limiter, path, name, others, drawing).result()
        assert waited_s > 0.1 and load_profile(tmp_path).remote_share == 0.25
        for one in load_profile(tmp_path).processes:
            assert (one.seconds["wait"] > 0) == (one.name in drawing), one.name
            if name == "server" and one.name in drawing:
                assert one.seconds["wait"] == pytest.approx(waited_s / 2)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {
        "acting.num_actors": 2, "replay.min_size": 100, "limits.max_steps": 600, "evaluation.num_episodes": 2,
        "agent.network.hidden": (16,), "agent.batch_size": 16, "profile": True,
    }  # fmt: skip
    train(preset("iqn", "CartPole-v1", settings), folder)
    return folder


def test_a_run_that_is_profiled(run_dir: Path) -> None:
    profile, result = load_profile(run_dir), json.loads((run_dir / "result.json").read_text())
    learner, actors = profile.learner, profile.actors
    assert [one.name for one in profile.processes] == ["learner", "actor 0", "actor 1"]
    assert learner.calls["update"] == learner.calls["priorities"] == result["num_updates"] > 0
    assert learner.calls["gather"] >= result["num_updates"] and learner.calls["evaluate"] >= 1
    # Each step moves 4 environments, but for the rows that are resets.
    assert 4 * actors.calls["insert"] >= result["num_steps"] and actors.calls["environment"] > actors.calls["insert"]
    for one in profile.processes:
        assert sum(one.share(part) for part in PARTS) == pytest.approx(1.0) and all(one.seconds[p] >= 0 for p in PARTS)
    assert learner.calls["checkpoint"] >= 4, "at the start and at the end: the state, and its file"
    assert learner.seconds["update"] > 0 and learner.seconds["wait"] > 0 and actors.seconds["inference"] > 0
    assert learner.total_s <= result["wall_s"]
    assert (run_dir / PICTURE_FILE).exists()


def test_the_command_shows_it(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / PICTURE_FILE).unlink()
    command = [sys.executable, "-m", "relive.cli", "profile"]
    done = subprocess.run([*command, str(run_dir)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for words in ("learner:", "actors:", "gather (storage)", "environment", "the bottleneck", PICTURE_FILE):
        assert words in done.stdout
    assert (run_dir / PICTURE_FILE).exists()
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("relive: ") and "--profile" in done.stderr


@pytest.mark.forms(1)
@pytest.mark.parametrize(
    ("topology", "others"),
    [
        ("inline", ["learner"]),
        ("learners(2, sync)", ["learner", "learner 1", "actor 0", "actor 1"]),
        ("learners(2, async)", ["server", "learner 0", "learner 1", "actor 0", "actor 1"]),
        ("central(8, 500)", ["learner", "inference", "actor 0", "actor 1"]),
    ],
)
def test_a_run_of_another_topology_that_is_profiled(topology: str, others: list[str], tmp_path: Path) -> None:
    """Every process of a run counts; what actors do in the learner's process is its own time."""
    settings = {
        "topology": topology, "acting.num_actors": 2, "replay.min_size": 100, "limits.max_steps": 600,
        "evaluation.num_episodes": 2, "agent.network.hidden": (16,), "agent.batch_size": 16, "profile": True,
    }  # fmt: skip
    train(preset("dqn", "CartPole-v1", settings), tmp_path / "run")
    profile = load_profile(tmp_path / "run")
    rows = {one.name: one for one in profile.processes}
    assert list(rows) == others
    num_updates = json.loads((tmp_path / "run" / "result.json").read_text())["num_updates"]
    is_apart = topology.endswith("async)")
    main = profile.processes[0]
    assert main.calls["update"] == num_updates > 0 and main.seconds["update"] > 0
    assert profile.learner.calls["update"] >= num_updates and profile.learner.seconds["gather"] > 0
    assert not is_apart or (main.calls["sample"] == 0 and main.calls["parameters"] > num_updates)
    is_inline = topology == "inline"
    assert profile.is_alone == is_inline == (profile.learner.calls["environment"] > 0)
    assert ("the actors'" not in str(profile)) == is_inline
    if is_apart:  # one of them may come when all is over
        assert rows["learner 0"].seconds["parameters"] + rows["learner 1"].seconds["parameters"] > 0
    if topology == "learners(2, sync)":
        follower = rows["learner 1"]
        assert follower.calls["update"] == num_updates and follower.seconds["wait"] > 0
        assert follower.calls["sample"] == follower.calls["parameters"] == 0
    if "inference" in rows:
        asked = rows["inference"]
        assert asked.calls["inference"] > 0 and asked.seconds["wait"] > 0 and asked.calls["parameters"] > 0
