"""Checkpoints with the table: what they keep, how a run goes on from them, and what fails without harm."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from rich.console import Console  # noqa: E402

import relive  # noqa: E402
import relive.checkpoint  # noqa: E402
from relive.errors import DamagedSave, InvalidConfig, StorageFull  # noqa: E402
from relive.saving.disk_files import DiskFiles  # noqa: E402
from relive.train import Callback, NonFiniteLoss, RunResult, Snapshot, TrainConfig, load_policy, preset, train  # noqa: E402
from relive.train.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from relive.train.learner import Learner  # noqa: E402
from relive.train.setup import limiter_of  # noqa: E402
from relive.train.watching import saves  # noqa: E402
from relive.train.watching.checkpoint import joint_names  # noqa: E402
from train.runs import children_of, run_of  # noqa: E402

SMALL: dict[str, object] = {
    "topology": "inline", "acting.num_actors": 2, "replay.min_size": 100, "replay.updates_per_step": 0.25,
    "agent.network.hidden": (8,), "agent.batch_size": 16, "update": "handwritten", "limits.max_steps": 1_000,
    "evaluation.num_episodes": 2, "evaluation.num_final_episodes": 2, "evaluation.stop_return": None,
    "evaluation.period_updates": 10_000, "limits.checkpoint_period_s": 0.1,
}  # fmt: skip


def small(env_id: str = "CartPole-v1", **more: object) -> TrainConfig:
    return preset("dqn", env_id, {**SMALL, **{path.replace("__", "."): value for path, value in more.items()}})


class Noting(Callback):
    """Notes the checkpoints, and the first snapshot."""

    def __init__(self, stop_at: int = 10**9) -> None:
        self.paths: list[str] = []
        self.first: Snapshot | None = None
        self._stop_at = stop_at

    def on_progress(self, now: Snapshot) -> bool:
        self.first = self.first or now
        return now.num_steps >= self._stop_at

    def on_checkpoint(self, path: Path, num_updates: int) -> None:
        self.paths.append(path.name)
        state, _ = load_checkpoint(path.parent)
        assert state["num_updates"] == num_updates


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    ends_s = time.monotonic() + 5.0
    while time.monotonic() < ends_s and _savers():
        time.sleep(0.01)
    assert _savers() == []


def _savers() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("relive-checkpoint", "relive-save"))]


def table_of(folder: Path) -> tuple[int, int, int]:
    """Steps appended, items inserted and items sampled of the saved table."""
    with relive.load(folder / "save") as table:
        table.check()
        stats = table.stats()
        (index,) = stats.indexes.values()
        return stats.appended, index.inserted, index.sampled


def updates_alone(folder: Path) -> int:
    """Updates of the learner in checkpoint.pt."""
    return int(torch.load(folder / "checkpoint.pt", weights_only=True)["learner"]["num_updates"])


def in_corridor(folder: Path, config: TrainConfig) -> None:
    """The limiter's totals over all sessions: as the learner's updates, and within the corridor."""
    _, inserted, sampled = table_of(folder)
    limiter, (state, _) = limiter_of(config), load_checkpoint(folder)
    assert sampled == state["num_updates"] * config.agent.batch_size
    off = sampled - (inserted - limiter.min_size) * limiter.samples_per_insert
    assert abs(off) <= limiter.half_window + limiter.window + config.agent.batch_size


# ---- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.forms(2)
@pytest.mark.parametrize("mode", ["always", "end"])
@pytest.mark.parametrize("topology", ["inline", "actors(2)", "learners(2, async)"])
def test_a_resumed_run_learns_at_once_from_the_table_that_was_saved(topology: str, mode: str, tmp_path: Path) -> None:
    folder, config = tmp_path / "run", small(topology=topology, checkpoint__table=mode, replay__min_size=400)
    first, noting = train(config, folder), Noting()
    assert updates_alone(folder) == first.num_updates and relive.saved(folder / "save").beside == ("learner",)
    appended, inserted, _ = table_of(folder)
    assert load_checkpoint(folder)[1].steps_before_table == 0
    if topology != "learners(2, async)":  # whose learners draw batches that are not applied
        in_corridor(folder, config)
    more = small(topology=topology, checkpoint__table=mode, replay__min_size=400, limits__max_steps=appended + 40)
    result = train(more, folder, resume=True, callbacks=[noting])
    assert noting.first is not None and noting.first.fill >= inserted > 400, "nothing was filled again"
    assert result.num_sessions == 2 and first.num_updates < result.num_updates
    assert appended + 40 <= result.num_steps < appended + 200
    if topology != "learners(2, async)":
        in_corridor(folder, config)
    assert load_policy(folder, which="last").num_steps == load_checkpoint(folder)[1].num_steps


def test_steps_are_those_that_the_table_counts(tmp_path: Path) -> None:
    """A crash loses the steps since the cut, whatever the run had counted by then."""
    folder = tmp_path / "run"
    train(small(), folder)
    learner = relive.checkpoint.load_learner(folder / "save")
    learner["counters"]["num_steps"] = 99_999
    with relive.load(folder / "save") as table:
        appended = table.stats().appended
        relive.checkpoint.save(folder / "save", table=table, learner=learner)
    noting = Noting(stop_at=0)
    train(small(limits__max_steps=10**6), folder, resume=True, callbacks=[noting])
    assert noting.first is not None and appended <= noting.first.num_steps < appended + 10_000
    assert load_checkpoint(folder)[1].num_steps == table_of(folder)[0]


@pytest.mark.parametrize(
    "mode", ["always", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in ("end", "never"))]
)
def test_the_files_of_each_choice(mode: str, tmp_path: Path) -> None:
    folder, noting = tmp_path / "run", Noting()
    train(small(checkpoint__table=mode, limits__max_steps=6_000), folder, callbacks=[noting])
    assert len(noting.paths) >= 3, "some while it ran"
    between = {"always": "save", "end": "checkpoint.pt", "never": "checkpoint.pt"}[mode]
    last = "checkpoint.pt" if mode == "never" else "save"
    assert (noting.paths[0], set(noting.paths[1:-1]), noting.paths[-1]) == ("checkpoint.pt", {between}, last)
    assert updates_alone(folder) == load_checkpoint(folder)[0]["num_updates"]
    assert (folder / "save").exists() == (mode != "never")


def test_a_checkpoint_of_an_earlier_version_still_loads(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = train(small(checkpoint__table="never"), folder)
    state, progress = load_checkpoint(folder)
    counters = {name: value for name, value in vars(progress).items() if name != "steps_before_table"}
    save_checkpoint(folder, state, type(progress)(**counters))  # as it was written before
    stored = torch.load(folder / "checkpoint.pt", weights_only=True)
    del stored["counters"]["steps_before_table"]
    torch.save(stored, folder / "checkpoint.pt")
    again = train(small(limits__max_steps=result.num_steps + 400), folder, resume=True)
    assert again.num_updates > result.num_updates and again.num_steps >= result.num_steps + 400
    _, progress = load_checkpoint(folder)
    assert progress.steps_before_table == result.num_steps, "the new table has not counted them"
    assert progress.num_steps == result.num_steps + table_of(folder)[0]


def test_never_goes_on_with_the_learner_of_a_save_and_a_new_table(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result, noting = train(small(), folder), Noting()
    again = train(
        small(checkpoint__table="never", limits__max_steps=result.num_steps + 400),
        folder, resume=True, callbacks=[noting],
    )  # fmt: skip
    assert noting.first is not None and noting.first.fill < 800 and again.num_updates > result.num_updates
    assert load_checkpoint(folder)[1].num_steps == again.num_steps, "the newer of both"


def test_a_table_gets_another_size_and_another_limiter(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result, noting = train(small(), folder), Noting()
    changes = {"replay__capacity": 500, "replay__updates_per_step": 0.5, "acting__num_actors": 3}
    config = small(limits__max_steps=result.num_steps + 200, **changes)
    again = train(config, folder, resume=True, callbacks=[noting])
    assert 50 <= again.num_updates - result.num_updates < 300, "the new ratio from here on"
    assert noting.first is not None and noting.first.capacity == 500 and noting.first.fill > 300
    with relive.load(folder / "save") as table:
        assert table.limiter() == limiter_of(config)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_learner_of_another_agent_is_one_error(tmp_path: Path) -> None:
    train(small(), tmp_path / "run")
    train(preset("iqn", "CartPole-v1", {**SMALL, "limits.max_steps": 300}), tmp_path / "iqn")
    os.rename(tmp_path / "run" / "save", tmp_path / "iqn" / "save.other")
    os.rename(tmp_path / "iqn" / "save", tmp_path / "run" / "save")
    with pytest.raises(InvalidConfig, match="'dqn', got 'iqn'"):
        train(run_dir=tmp_path / "run", resume=True)


def test_networks_of_another_size_are_one_error(tmp_path: Path) -> None:
    train(small(), tmp_path / "run")
    with pytest.raises(InvalidConfig, match="names and shapes"):
        train(small(agent__network__hidden=(16,)), tmp_path / "run", resume=True)


@pytest.mark.forms(1)
@pytest.mark.parametrize(
    ("change", "what"),
    [({"agent__n_step": 7}, "items of the table"), ({"agent__priority_exponent": 0.0}, "items of the table")],
)
def test_a_table_of_other_items_is_one_error_with_a_way_out(
    change: dict[str, object], what: str, tmp_path: Path
) -> None:
    result = train(small(), tmp_path / "run")
    with pytest.raises(InvalidConfig, match=f"{what}.*checkpoint.table=never"):
        train(small(**change), tmp_path / "run", resume=True)
    more = {**change, "checkpoint__table": "never", "limits__max_steps": result.num_steps + 300}
    assert train(small(**more), tmp_path / "run", resume=True).num_updates > result.num_updates


def test_a_damaged_save_is_one_error(tmp_path: Path) -> None:
    train(small(), tmp_path / "run")
    (blob,) = (tmp_path / "run" / "save" / "beside").glob("*/learner")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(DamagedSave, match=r"move it away to go on from checkpoint.pt, after 1,\d{3} steps"):
        train(run_dir=tmp_path / "run", resume=True)
    os.rename(tmp_path / "run" / "save", tmp_path / "away")
    again = train(small(limits__max_steps=2_000), tmp_path / "run", resume=True)
    assert again.num_sessions == 2 and again.num_steps >= 2_000


def test_a_damaged_copy_is_one_error_that_names_the_whole_save(tmp_path: Path) -> None:
    """Whether the file was a copy is not known once it is damaged: the caller says which one counts."""
    folder = tmp_path / "run"
    first = train(small(), folder)
    path = folder / "checkpoint.pt"
    data = path.read_bytes()
    changed = data.replace(b"counters", b"kounters")  # in a part: a change between two parts does no harm
    assert changed != data
    for damaged in (b"", data[:-100], changed):
        path.write_bytes(damaged)
        for call in (lambda: train(run_dir=folder, resume=True), lambda: joint_names(folder, is_first=True)):
            with pytest.raises(InvalidConfig, match=r"remove it to go on from the save of 1,\d{3} steps in .*/save"):
                call()
    path.unlink()
    again = train(small(limits__max_steps=2_000), folder, resume=True)
    assert again.num_sessions == 2 and again.num_updates > first.num_updates
    assert updates_alone(folder) == again.num_updates, "a copy again"


def test_a_damaged_page_of_the_table_is_one_error_with_a_way_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = train(small(), folder)
    for pages in (folder / "save" / "segments").iterdir():
        pages.write_bytes(bytes(pages.stat().st_size))
    with pytest.raises(DamagedSave, match="checkpoint.table=never goes on with the learner"):
        train(run_dir=folder, resume=True)
    more = small(checkpoint__table="never", limits__max_steps=2_000)
    assert train(more, folder, resume=True).num_updates > first.num_updates


# ---- what fails ------------------------------------------------------------------------------------------------------


class Full:
    """Lets the disk of saves be full from the nth block on, while it is armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed, self.num_failed = False, 0
        append = DiskFiles.append

        def appended(files: Any, *arguments: Any) -> None:
            if self.armed:
                self.num_failed += 1
                raise StorageFull("the disk", 8 << 20, 0)
            append(files, *arguments)

        monkeypatch.setattr(DiskFiles, "append", appended)


def said(run: Callable[[Console], RunResult], log: Path) -> tuple[RunResult, str]:
    console = Console(record=True, width=300, file=log.open("w"))
    return run(console), console.export_text()


def test_a_full_disk_is_told_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save before it stays whole, and the learner is kept alone until there is room again."""
    folder, full, before = tmp_path / "run", Full(monkeypatch), []

    class Filling(Noting):
        def on_checkpoint(self, path: Path, num_updates: int) -> None:
            super().on_checkpoint(path, num_updates)
            if self.paths == ["checkpoint.pt", "save"]:
                full.armed = True
                before.append(table_of(folder))
            elif full.armed:
                assert path.name == "checkpoint.pt" and table_of(folder) == before[0]
                full.armed = len(self.paths) < 4

        def on_progress(self, now: Snapshot) -> bool:
            return now.num_steps >= 12_000 and len(self.paths) >= 4  # however fast the steps come

    noting = Filling()
    _, text = said(
        lambda console: train(small(limits__max_steps=10**6), folder, callbacks=[noting], console=console),
        tmp_path / "log",
    )
    assert full.num_failed and "the table was not saved: the disk: needs" in text
    assert noting.paths[2:4] == ["checkpoint.pt"] * 2 and noting.paths[-1] == "save"
    assert updates_alone(folder) == load_checkpoint(folder)[0]["num_updates"] and table_of(folder)[0] >= 12_000


def test_a_disk_without_room_for_the_last_save_keeps_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, full = tmp_path / "run", Full(monkeypatch)
    result = train(small(), folder)
    before = table_of(folder)
    full.armed = True
    again, text = said(
        lambda console: train(small(limits__max_steps=2_000), folder, resume=True, console=console), tmp_path / "log"
    )
    full.armed = False
    assert "the table was not saved" in text and again.num_updates > result.num_updates
    assert table_of(folder) == before and load_checkpoint(folder)[1].num_steps == again.num_steps
    last = train(small(limits__max_steps=2_400), folder, resume=True)
    assert last.num_updates > again.num_updates


@pytest.mark.thorough
def test_a_periodic_checkpoint_that_cannot_be_written_at_all_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, full = tmp_path / "run", Full(monkeypatch)
    write, refuses = saves.save_checkpoint, [False]

    def refusing(*arguments: Any, **options: Any) -> None:
        if refuses[0]:
            raise OSError(28, "No space left on device")
        write(*arguments, **options)

    monkeypatch.setattr(saves, "save_checkpoint", refusing)

    class Filling(Noting):
        def on_progress(self, now: Snapshot) -> bool:
            full.armed = refuses[0] = 500 < now.num_steps < 8_000
            return False

    _, text = said(
        lambda console: train(small(limits__max_steps=12_000), folder, callbacks=[Filling()], console=console),
        tmp_path / "log",
    )
    assert "the checkpoint was not written" in text and table_of(folder)[0] >= 12_000
    full.armed = refuses[0] = True
    with pytest.raises(OSError, match="No space left"):
        train(small(limits__max_steps=12_100), folder, resume=True)
    full.armed = refuses[0] = False
    assert table_of(folder)[0] < 12_100


class Slow:
    """Lets each block of a save take its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.seconds, self.num_blocks = seconds, 0
        append = DiskFiles.append

        def appended(files: Any, *arguments: Any) -> None:
            self.num_blocks += 1
            time.sleep(self.seconds)
            append(files, *arguments)

        monkeypatch.setattr(DiskFiles, "append", appended)


@pytest.mark.thorough
def test_the_learner_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, waits = Slow(monkeypatch, 0.3), []
    look = saves.Checkpoints.look

    def timed(self: Any, state: Any) -> Any:
        began_s = time.monotonic()
        try:
            return look(self, state)
        finally:
            waits.append(time.monotonic() - began_s)

    monkeypatch.setattr(saves.Checkpoints, "look", timed)
    noting = Noting()
    train(small(limits__max_steps=12_000), tmp_path / "run", callbacks=[noting])
    assert slow.num_blocks > 4 and "save" in noting.paths
    assert np.median(waits) < 0.02 and max(waits) < 0.3, "less than one block"


def test_the_end_waits_for_the_save_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, folder = Slow(monkeypatch, 0.2), tmp_path / "run"

    class Stopping(Noting):
        def on_progress(self, now: Snapshot) -> bool:
            return slow.num_blocks > 0  # a save writes

    result = train(small(limits__max_steps=10**6), folder, callbacks=[Stopping()])
    assert result.stopped and load_checkpoint(folder)[1].num_steps == result.num_steps
    assert updates_alone(folder) == result.num_updates
    in_corridor(folder, small())


def test_a_second_signal_ends_the_wait_and_keeps_the_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save that was there stays whole."""
    folder = tmp_path / "run"
    result = train(small(), folder)
    before = table_of(folder)
    monkeypatch.setattr(saves, "_HURRY_S", 0.3)
    Slow(monkeypatch, 2.0)

    def interrupt() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    class Stopping(Noting):
        def on_progress(self, now: Snapshot) -> bool:
            if now.num_updates > result.num_updates + 20 and not started:
                started.append(threading.Thread(target=interrupt))
                started[0].start()
            return False

    started: list[threading.Thread] = []
    began_s = time.monotonic()
    with _either():
        train(
            small(limits__max_steps=10**6, limits__checkpoint_period_s=100.0),
            folder, resume=True, callbacks=[Stopping()],
        )  # fmt: skip
    started[0].join()
    assert time.monotonic() - began_s < 15.0
    assert table_of(folder) == before and (folder / "checkpoint.pt").exists()
    assert load_checkpoint(folder)[0]["num_updates"] > result.num_updates


class _either:
    """A run that is about to end returns its result, else it raises."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *rest: Any) -> bool:
        return kind is KeyboardInterrupt


def test_a_save_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "LAST_SAVE_S", 0.3)
    Slow(monkeypatch, 0.5)
    config, folder = small(limits__checkpoint_period_s=100.0), tmp_path / "run"
    result, text = said(lambda console: train(config, folder, console=console), tmp_path / "log")
    assert "was cancelled" in text and load_checkpoint(folder)[0]["num_updates"] == result.num_updates
    assert not (folder / "save" / "CURRENT").exists() and (folder / "checkpoint.pt").exists()


def test_a_loss_that_is_not_finite_keeps_the_last_good_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    train(small(), folder)
    before = load_checkpoint(folder)[0]["num_updates"]
    found = Learner._not_finite

    def broken(self: Any, parameters: Any) -> Any:
        return ("the loss", float("nan")) if self._agent.num_updates > before + 20 else found(self, parameters)

    monkeypatch.setattr(Learner, "_not_finite", broken)
    with pytest.raises(NonFiniteLoss) as caught:
        train(small(limits__max_steps=10**6, limits__checkpoint_period_s=100.0), folder, resume=True)
    assert caught.value.checkpoint == str(folder / "save")
    assert load_checkpoint(folder)[0]["num_updates"] == before == updates_alone(folder)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_after_a_kill_the_run_goes_on_where_it_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = {**SMALL, "topology": "actors(2)", "limits.max_steps": 10**6, "limits.checkpoint_period_s": 0.3}
    words = [
        f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in options.items()
    ]
    settings = [part for word in words for part in ("--set", word)]
    with run_of(tmp_path, "--env", "CartPole-v1", "--run-dir", str(folder), *settings) as run:
        ends_s = time.monotonic() + 90.0
        while not (folder / "save" / "CURRENT").exists() or table_of(folder)[0] < 3_000:
            assert run.process.poll() is None and time.monotonic() < ends_s, run.text
            time.sleep(0.05)
        children = children_of(run.pid)
        os.kill(run.pid, signal.SIGKILL)
        run.process.wait(20)
        run.wait_until_gone(children)
    appended, inserted, _ = table_of(folder)
    in_corridor(folder, small())
    noting = Noting()
    config = small(topology="actors(2)", limits__max_steps=appended + 2_000)
    result = train(config, folder, resume=True, callbacks=[noting])
    assert noting.first is not None and noting.first.fill >= inserted and noting.first.num_steps >= appended
    assert result.num_steps < appended + 2_500 and load_checkpoint(folder)[1].steps_before_table == 0
    in_corridor(folder, config)
