"""Which way updates go: what a package is found by, who makes it, the check, the trial, and every way back."""

from __future__ import annotations

import inspect
import json
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive.agents.dqn import DQNConfig, QNetworkConfig  # noqa: E402
from relive.agents.functional import Functional  # noqa: E402
from relive.agents.mlp import MLP  # noqa: E402
from relive.agents.td3 import TD3Config  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train import TrainConfig, preset, train  # noqa: E402
from relive.train.assembly import update_choice as update_choice_of  # noqa: E402
from relive.train.learners import compiled_updates, update_choice  # noqa: E402
from relive.train.learners.compiled_updates import Compiling, PackageRequest, load_packages  # noqa: E402
from relive.train.learners.update_choice import ChoiceOptions, UpdateChoice  # noqa: E402
from relive.train.setup import prepare  # noqa: E402
from train.batches import box_spaces, continuous_batch, discrete_batch, discrete_spaces  # noqa: E402

ROWS = 16
SMALL = DQNConfig(batch_size=ROWS, network=QNetworkConfig(hidden=(8,)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "relive" / "updates"


def request_of(config: Any = SMALL, threads: int = 1) -> PackageRequest:
    spaces = discrete_spaces() if config.name == "dqn" else box_spaces()
    agent = config.make(spaces, seed=0, device="cpu")
    return PackageRequest(config, spaces, threads, tuple(agent.functional().steps))


# ---- packages --------------------------------------------------------------------------------------------------------


def test_a_key_is_of_all_that_a_package_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = request_of()
    keys = {base.key, request_of(threads=2).key, request_of(replace(SMALL, batch_size=32)).key,
            request_of(replace(SMALL, network=QNetworkConfig(hidden=(16,)))).key,
            request_of(replace(SMALL, precision="bfloat16")).key,
            replace(base, spaces=discrete_spaces(num_actions=3)).key, replace(base, spaces=discrete_spaces((5,))).key,
            request_of(TD3Config(batch_size=ROWS)).key}  # fmt: skip
    assert len(keys) == 8 and request_of().key == base.key
    monkeypatch.setattr(compiled_updates, "processor", lambda: "another one")
    assert request_of().key not in keys
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert request_of().key not in keys
    monkeypatch.undo()
    mine, *_ = code = compiled_updates.source_files()
    assert {Path(inspect.getfile(part)) for part in (DQNConfig, TD3Config, Functional, MLP)} <= set(code)
    changed = tmp_path / mine.name
    changed.write_text(mine.read_text() + "# changed\n")
    monkeypatch.setattr(compiled_updates, "source_files", lambda: [changed, *code[1:]])
    assert request_of().key not in keys


def test_there_when_all_steps_are(cache: Path) -> None:
    request = request_of(TD3Config(batch_size=ROWS))
    assert request.steps == ("all", "critics") and not request.is_there
    cache.mkdir(parents=True)
    for number, step in enumerate(request.steps):
        assert not request.is_there, number
        request.path(step).touch()
    assert request.is_there


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")
def test_a_compiled_update_is_the_same_update(cache: Path) -> None:
    """A real one, made by a process beside (half a minute of a core)."""
    request = request_of()
    making = Compiling(request)
    try:
        deadline_s = time.monotonic() + 600
        while not making.ended and time.monotonic() < deadline_s:
            time.sleep(0.2)
        assert making.ended and making.problem is None, making.log.read_text()
    finally:
        making.stop()
    assert request.is_there and not list(cache.glob("new-*"))
    told: list[str] = []
    mine, other = (SMALL.make(discrete_spaces(), seed=1, device="cpu") for _ in range(2))
    chosen: list[str] = []
    compiled = UpdateChoice(other, other.functional(), request, ChoiceOptions(False, told.append, chosen.append))
    compiled._looked_s = -10.0
    for number in range(20):
        mine.update(discrete_batch(number, ROWS))
        compiled.update(discrete_batch(number, ROWS))
    assert compiled.way == "compiled" and chosen == ["compiled"] and told == ["updates are compiled from now on"]
    torch.testing.assert_close(other.online.values, mine.online.values, rtol=1e-3, atol=1e-5)
    assert mine.num_updates == other.num_updates == 20
    again = Compiling(request)  # finds them all: nothing to do
    while not again.ended:
        time.sleep(0.1)
    assert again.problem is None
    again.stop()


def test_a_compiler_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    making = Compiling(replace(request_of(), steps=("nonesuch",)))
    try:
        deadline_s = time.monotonic() + 300
        while not making.ended and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert making.ended and making.problem is not None and "nonesuch" in making.problem
    finally:
        making.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_compiler_ends_with_who_asked_for_it(cache: Path) -> None:
    """Stopped at once, or when its parent was killed."""
    making = Compiling(request_of())
    making.stop()
    assert making.ended
    code = (
        "import pickle, sys, time\nfrom relive.train.learners.compiled_updates import Compiling\n"
        "making = Compiling(pickle.load(sys.stdin.buffer))\nprint(making._process.pid, flush=True)\ntime.sleep(600)\n"
    )
    import pickle

    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    pickle.dump(request_of(), parent.stdin)
    parent.stdin.close()
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline_s = time.monotonic() + 120
    while alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not alive(child)


# ---- the choice ------------------------------------------------------------------------------------------------------


class Maker:
    """A compiler that ends when it is told to."""

    def __init__(self, request: PackageRequest) -> None:
        self.request, self.ended, self.stopped = request, False, False
        self.problem: str | None = None

    def stop(self) -> None:
        self.stopped = True


class World:
    """An agent whose compiled way is the uncompiled functional, or something worse."""

    def __init__(self, *, chooses: bool = True, worth_s: float = 0.0, config: Any = SMALL) -> None:
        discrete = config.name == "dqn"
        self.agent = config.make(discrete_spaces() if discrete else box_spaces(), seed=0, device="cpu")
        self.batch_of = discrete_batch if discrete else continuous_batch
        self.functional, self.request = self.agent.functional(), request_of(config)
        self.makers: list[Maker] = []
        self.told: list[str] = []
        self.chosen: list[str] = []
        self.calls = 0
        self.step: Callable[[str, list[Any]], Any] = lambda name, arguments: self.functional.call(name, arguments)
        options = ChoiceOptions(
            chooses, self.told.append, self.chosen.append, worth_s=worth_s, make=self._make, load=self._load
        )
        self.ways = UpdateChoice(self.agent, self.functional, self.request, options)

    def _make(self, request: PackageRequest) -> Maker:
        self.makers.append(Maker(request))
        return self.makers[-1]

    def _load(self, request: PackageRequest) -> dict[str, Any]:
        def run(arguments: list[Any], name: str) -> Any:
            self.calls += 1
            return self.step(name, arguments)

        return {name: lambda arguments, name=name: run(arguments, name) for name in request.steps}

    def put_packages(self) -> None:
        for step in self.request.steps:
            self.request.path(step).parent.mkdir(parents=True, exist_ok=True)
            self.request.path(step).touch()

    def update(self, count: int = 1) -> None:
        for _ in range(count):
            self.ways._looked_s = -10.0  # it is time to look
            self.ways.update(self.batch_of(self.agent.num_updates, ROWS))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """CPU time as the test has it: what was spent before the next reading."""
    spent = [0.0]
    monkeypatch.setattr(update_choice.time, "thread_time", lambda: spent[0])

    def spend(seconds: float) -> None:
        spent[0] += seconds

    return spend


@pytest.mark.parametrize(("compiled_s", "chosen"), [(0.5, "compiled"), (0.99, "handwritten"), (2.0, "handwritten")])
def test_the_faster_way_is_chosen(compiled_s: float, chosen: str, clock: Callable[[float], None]) -> None:
    world = World()
    world.put_packages()
    by_hand = world.agent.update

    def timed(batch: Any) -> Any:
        clock(1.0)
        return by_hand(batch)

    def compiled(name: str, arguments: list[Any]) -> Any:
        clock(compiled_s)
        return world.functional.call(name, tuple(arguments))

    world.agent.update, world.step = timed, compiled
    world.update(1 + 120)
    assert world.chosen == [chosen] and world.ways.way == chosen and world.agent.num_updates == 121
    assert len(world.told) == 1 and f"{1e6 * compiled_s:,.0f} us compiled" in world.told[0]
    before = world.calls
    world.update(3)
    assert world.calls - before == (3 if chosen == "compiled" else 0)


def test_packages_that_are_there_are_taken_by_the_first_update() -> None:
    for step in request_of().steps:
        request_of().path(step).parent.mkdir(parents=True, exist_ok=True)
        request_of().path(step).touch()
    world = World(chooses=False, worth_s=3600.0)
    world.ways.update(discrete_batch(0, ROWS))
    assert world.chosen == ["compiled"] and world.calls == 1 and world.makers == []


def test_no_update_is_lost_or_changed_by_check_and_trial() -> None:
    world, twin = World(config=TD3Config(batch_size=ROWS, hidden=(8,))), None
    twin = TD3Config(batch_size=ROWS, hidden=(8,)).make(box_spaces(), seed=0, device="cpu")
    world.update(3)
    world.put_packages()
    world.update(130)
    for number in range(133):
        twin.update(continuous_batch(number, ROWS))
    assert world.agent.num_updates == twin.num_updates == 133 and world.chosen and world.calls >= 60
    torch.testing.assert_close(world.agent.critics.online.values, twin.critics.online.values, rtol=1e-2, atol=1e-4)


def test_a_package_that_gives_something_else_is_not_used() -> None:
    world = World(chooses=False)
    world.put_packages()

    def wrong(name: str, arguments: list[Any]) -> Any:
        outputs = world.functional.call(name, tuple(arguments))
        arguments[0][:4].add_(1e-2)
        return outputs

    world.step = wrong
    world.update(1)
    twin = SMALL.make(discrete_spaces(), seed=0, device="cpu")
    twin.update(discrete_batch(0, ROWS))
    for name, value in twin.online.value.items():
        assert torch.equal(world.agent.online.value[name], value), "the hand-written result stands"
    assert world.chosen == ["handwritten"] and "computes another online" in world.told[0]


def test_a_package_that_does_not_load_is_told_of() -> None:
    world = World()
    world.put_packages()
    world.step = lambda name, arguments: (_ for _ in ()).throw(RuntimeError("not for this processor\nat all"))
    world.update(2)
    assert world.chosen == ["handwritten"] and world.told == [
        "updates could not be run compiled: not for this processor"
    ]
    assert world.agent.num_updates == 2


def test_a_torn_package_is_refused_by_the_loader() -> None:
    request = request_of()
    request.path("all").parent.mkdir(parents=True)
    request.path("all").write_bytes(b"PK\x03\x04 half of one")
    with pytest.raises(RuntimeError):
        load_packages(request)


def test_short_runs_compile_nothing_and_nobody_waits() -> None:
    world = World(worth_s=3600.0)
    world.update(5)
    assert world.makers == [] and world.ways.way is None
    eager = World(worth_s=0.0)
    eager.update(3)
    (maker,) = eager.makers
    assert eager.agent.num_updates == 3 and not maker.stopped, "it goes on by hand meanwhile"
    eager.ways.stop()
    assert maker.stopped
    assert len(World(chooses=False, worth_s=3600.0).makers) == 1, "asked for: at once"


def test_what_keeps_one_from_compiling_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = World()
    failed.makers[0].ended, failed.makers[0].problem = True, "error: no space left"
    failed.update(2)
    assert failed.chosen == ["handwritten"] and failed.told == ["updates could not be compiled: error: no space left"]
    other = World()
    other.makers[0].ended = True  # another process is at it
    other.update(2)
    assert len(other.makers) == 2 and other.chosen == []
    monkeypatch.setenv("CXX", "no-such-compiler")
    missing = World()
    missing.update(1)
    assert missing.chosen == ["handwritten"] and "there is no g++ here" in missing.told[0] and missing.makers == []


@pytest.mark.parametrize("chooses", [True, False])
def test_a_cache_that_cannot_be_searched_is_said(chooses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "x" * 300)  # no file system has such a name, and root may search any
    long = World(chooses=chooses, worth_s=3600.0)
    long.update(2)
    assert long.chosen == ["handwritten"] and "File name too long" in long.told[0] and len(long.told) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a user that is not in /etc/passwd
    homeless = World(chooses=chooses, worth_s=3600.0)
    homeless.update(2)
    assert homeless.chosen == ["handwritten"] and "no home directory: set $XDG_CACHE_HOME" in homeless.told[0]
    assert long.agent.num_updates == homeless.agent.num_updates == 2 and long.makers == homeless.makers == []


# ---- configurations and whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "more", "reason"),
    [("dqn", {"deterministic": True}, "deterministic"), ("dqn", {"topology": "learners(2, sync)"}, "several learners"),
     ("iqn", {}, "iqn has no other")],
)  # fmt: skip
def test_where_updates_are_by_hand_alone_a_line_says_why(agent: str, more: dict[str, object], reason: str) -> None:
    said: list[str] = []
    for update, lines in (("compiled", 1), ("auto", 0), ("handwritten", 0)):
        config = preset(agent, "CartPole-v1", {"update": update, **more})
        made = update_choice_of(prepare(config), said.append, said.append)
        assert made is None and len(said) == lines, said
        assert not lines or reason in said.pop()
    with pytest.raises(InvalidConfig, match="update"):
        preset(agent, "CartPole-v1", {"update": "fast"})


def test_auto_is_the_default_and_waits_for_its_time() -> None:
    config = preset("dqn", "CartPole-v1")
    made = update_choice_of(prepare(config), print, print)
    assert made is not None and made.way is None and made._maker is None
    made.stop()


def test_the_choice_stands_in_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(update_choice, "_LOOK_S", 0.0)
    settings = {
        "topology": "inline", "acting.num_actors": 1, "replay.min_size": 50, "agent.batch_size": 8,
        "update": "compiled",
        "agent.network.hidden": (8,), "evaluation.num_final_episodes": 1, "evaluation.num_episodes": 1,
    }  # fmt: skip
    run = tmp_path / "run"
    result = train(preset("dqn", "CartPole-v1", settings), run, stop_when=lambda steps, updates: updates >= 30)
    assert result.num_updates == 30
    assert json.loads((run / "config.json").read_text())["update"] == "handwritten"
    assert TrainConfig.load(run / "config.json").update == "handwritten" and not list(run.glob("*.new"))
