"""What two runs at once must not do to each other, and signals that come in the middle of each other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from rich.console import Console  # noqa: E402
from service.certificates import Authority, needs_openssl  # noqa: E402

import relive.train  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train.config import TrainConfig, preset  # noqa: E402
from relive.train.run_directory import (  # noqa: E402
    LOCK_FILE,
    alone_in,
    forget_table,
    move_aside,
    note_table,
    remove_left_table,
)
from relive.train.signals import stop_signals  # noqa: E402
from relive.train.tuning.tuner import tune  # noqa: E402
from relive.train.watching.checkpoint import CurvePoint, Progress, save_checkpoint  # noqa: E402
from relive.train.watching.curve import draw_curve  # noqa: E402
from relive.train.watching.progress import ProgressReporter  # noqa: E402

SMALL = {
    "topology": "inline",
    "replay.min_size": 100,
    "agent.network.hidden": (8,),
    "limits.max_steps": 600,
    "evaluation.num_final_episodes": 1,
}


def small(**more: object) -> TrainConfig:
    return preset("dqn", "CartPole-v1", {**SMALL, **{path.replace("__", "."): value for path, value in more.items()}})


# ---- the directory -------------------------------------------------------------------------------------------------


def test_a_directory_is_one_runs_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with alone_in(folder):
        with pytest.raises(InvalidConfig, match="no run is using"), alone_in(folder):
            pass
        assert (folder / LOCK_FILE).exists()
    assert not folder.exists()  # nothing came into it
    with alone_in(folder):
        (folder / "config.json").write_text("{}")
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize("is_active", [True, False])
def test_a_directory_in_another_runs_or_above_it_is_refused(is_active: bool, tmp_path: Path) -> None:
    """The other run goes on, or has ended and left its files."""
    outer, inner, beside = tmp_path / "runs", tmp_path / "runs" / "deep" / "a", tmp_path / "beside"
    with contextlib.ExitStack() as stack:
        if is_active:
            stack.enter_context(alone_in(inner))
        else:
            relive.train.train(small(), inner)
        with pytest.raises(InvalidConfig, match="deep/a in it is the directory of another run"):
            relive.train.train(small(), outer, moving_aside=True)
        with pytest.raises(InvalidConfig, match="it lies in .*deep/a, the directory of another run"):
            relive.train.train(small(), inner / "b" / "c")
        assert not (inner / "b").exists() and not (outer / LOCK_FILE).exists()
        assert [path.name for path in tmp_path.iterdir()] == ["runs"]
        with alone_in(beside), alone_in(tmp_path / "runs" / "deep" / "aa"):
            pass
    if not is_active:
        assert relive.train.train(run_dir=inner, resume=True).num_sessions == 2


def test_of_two_runs_that_begin_at_once_one_finds_the_other(tmp_path: Path) -> None:
    """Each has taken its lock before it looks."""
    outer, inner = alone_in(tmp_path / "runs"), alone_in(tmp_path / "runs" / "a")
    with outer, pytest.raises(InvalidConfig), inner:
        pass
    outer, inner = alone_in(tmp_path / "runs"), alone_in(tmp_path / "runs" / "a")
    with inner, pytest.raises(InvalidConfig), outer:
        pass


def test_a_lock_that_a_killed_run_left_is_nobodys(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with alone_in(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / LOCK_FILE).exists()
    with alone_in(tmp_path):
        pass


def leave_a_table(name: str, noted_in: Path | None = None) -> None:
    """A process makes a shared table and is killed."""
    child = os.fork()
    if child == 0:
        spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
        with relive.Table(spec, 100, storage=relive.SharedMemory(name)):
            if noted_in is not None:
                note_table(noted_in, name)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def is_there(name: str) -> bool:
    return name in {row.name for row in relive.list_tables()}


def test_a_table_that_a_killed_session_left_is_removed_unless_a_process_is_attached(tmp_path: Path) -> None:
    name = f"train-{os.getpid()}-left"
    leave_a_table(name, tmp_path)
    with relive.attach(name):
        remove_left_table(tmp_path)
        assert is_there(name)
    leave_a_table(name)
    remove_left_table(tmp_path)
    assert not is_there(name)
    forget_table(tmp_path)
    leave_a_table(name)
    remove_left_table(tmp_path)
    assert is_there(name), "nothing notes it"
    relive.remove(name)


def test_a_note_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    (tmp_path / f"..table.{os.getpid()}").mkdir()  # the name of the new file is taken
    with pytest.raises(OSError, match="table"):
        note_table(tmp_path, "train-1-a")
    assert not (tmp_path / ".table").exists()


def test_a_note_that_no_run_wrote_removes_no_table(tmp_path: Path, shm_name: Callable[[], str]) -> None:
    name = shm_name()
    leave_a_table(name)
    for text in (name, f"train-/../relive-{name}", ""):
        (tmp_path / ".table").write_text(text)
        remove_left_table(tmp_path)
    assert is_there(name)


def test_a_run_that_goes_on_is_not_moved_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with alone_in(folder):
        small().save(folder / "config.json")
        with pytest.raises(InvalidConfig, match="no run is using"):
            move_aside(folder, Console(quiet=True))
        assert (folder / "config.json").exists() and not (tmp_path / "run.1").exists()
    move_aside(folder, Console(quiet=True))
    assert [path.name for path in (tmp_path / "run.1").iterdir()] == ["config.json"] and not folder.exists()


def test_the_directory_in_which_the_program_works_is_not_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "thesis.txt").write_text("a user's file")
    for place in (tmp_path, tmp_path / "below"):
        monkeypatch.chdir(place)
        with pytest.raises(InvalidConfig, match="work in"):
            relive.train.train(small(), tmp_path, moving_aside=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["below", "thesis.txt"]


def test_a_directory_with_files_of_another_kind_is_not_moved_aside(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "thesis.txt").write_text("a user's file")
    with pytest.raises(InvalidConfig, match="files of another kind"):
        relive.train.train(small(), folder, moving_aside=True)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


OTHER_CONFIGS = ("{}", "[]", "nonsense", '{"agent": "smith"}', '{"model_type": "bert", "agent": {"name": 3}}')


@pytest.mark.parametrize("moving_aside", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "a user's file"},
        {"checkpoint.pt": "another library's"},
        {"result.json": "{}"},
        {"save/CURRENT": "1", "tensorboard/events": ""},
        *({"config.json": text, "model.bin": ""} for text in OTHER_CONFIGS),
    ],
)
def test_a_new_run_changes_no_file_that_no_run_wrote(files: dict[str, str], moving_aside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(InvalidConfig, match="files of another kind"):
        relive.train.train(small(), folder, moving_aside=moving_aside)
    there = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert there == files and [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_run_without_its_options_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    relive.train.train(small(checkpoint__table="never"), folder)
    (folder / "config.json").unlink()
    before = (folder / "checkpoint.pt").read_bytes()
    with pytest.raises(InvalidConfig, match="files of another kind"):
        relive.train.train(small(), folder)
    assert (folder / "checkpoint.pt").read_bytes() == before and not (folder / "config.json").exists()


def test_a_new_run_begins_where_a_run_was_killed_as_it_began(tmp_path: Path) -> None:
    for name in (".lock", ".table", ".config.json.77"):
        (tmp_path / name).write_text("")
    assert relive.train.train(small(), tmp_path).num_sessions == 1


def test_a_model_of_another_library_is_no_run_in_the_directory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    relive.train.train(small(), folder)
    (folder / "export").mkdir()
    (folder / "export" / "config.json").write_text('{"model_type": "bert"}')
    (folder / "export" / "checkpoint.pt").write_text("")
    assert relive.train.train(run_dir=folder, resume=True).num_sessions == 2


def test_what_a_run_leaves_that_was_killed_as_it_began_is_moved_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", ".table", ".config.json.77"):
        (folder / name).write_text("")
    move_aside(folder, Console(quiet=True))
    assert [path.name for path in tmp_path.iterdir()] == ["run.1"]


def test_a_run_whose_table_does_not_fit_leaves_no_directory(tmp_path: Path) -> None:
    config = relive.train.preset("dqn", "CartPole-v1", {"topology": "actors", "replay.capacity": 4_000_000_000})
    with pytest.raises(relive.errors.StorageFull):
        relive.train.train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_ends_while_its_session_opens_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C while it waits for the shards of a cluster."""

    class Opening:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("relive.train.run.open_session", Opening)
    with pytest.raises(KeyboardInterrupt):
        relive.train.train(small(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_moved_under_its_run_takes_no_lock_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = alone_in(folder), alone_in(folder)
    with contextlib.ExitStack() as stack:
        with first:
            folder.rename(tmp_path / "elsewhere")
            stack.enter_context(second)
        with pytest.raises(InvalidConfig), alone_in(folder):  # the first one's end did not end the second's lock
            pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_keeps_nobody_from_running(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(OSError, match="error"), alone_in(tmp_path / "run"):
            pass
    else:
        with alone_in(tmp_path / "run"):
            (tmp_path / "run" / "config.json").write_text("{}")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_a_directory_that_is_moved_as_it_is_opened_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, as_it_is = tmp_path / "run", os.open

    def open_late(path: Path, *arguments: int) -> int:
        monkeypatch.setattr(os, "open", as_it_is)
        folder.rename(tmp_path / "run.1")
        return as_it_is(path, *arguments)

    monkeypatch.setattr(os, "open", open_late)
    with alone_in(folder):
        assert (folder / LOCK_FILE).exists()


def test_what_holds_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="holds a run"):
        relive.train.train(small(), tmp_path / "run", resume=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file", "file/run", "a" * 300, "zero\0byte"])
def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="run.dir"):
        relive.train.train(small(), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_second_run_in_the_directory_of_one_that_goes_on_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused = []

    class Second(relive.train.Callback):
        def on_start(self, config: TrainConfig, run_dir: Path) -> None:
            for more in ({"moving_aside": True}, {"resume": True}):
                with pytest.raises(InvalidConfig, match="no run is using"):
                    relive.train.train(None if "resume" in more else small(), run, **more)  # type: ignore[arg-type]
                refused.append(more)

    result = relive.train.train(small(), run, callbacks=[Second()])
    assert len(refused) == 2 and result.num_steps >= 600 and [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (run / LOCK_FILE).exists()


def test_an_address_that_is_taken_is_refused_before_there_is_a_directory(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidConfig, match=r"serving.address.*free"):
            relive.train.train(small(topology="actors(1)", serving__address=address), tmp_path / "run")
        nowhere = f"grpc://{'a' * 70}:0"  # no name of a machine is so long
        with pytest.raises(InvalidConfig, match=r"serving.address"):
            relive.train.train(
                small(topology="actors(1)", serving__address=nowhere, serving__insecure=True), tmp_path / "run"
            )
    assert list(tmp_path.iterdir()) == []


@needs_openssl
@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "client_ca", "tokens"])
@pytest.mark.parametrize("content", [None, "no PEM and no TOML"])
def test_a_file_of_the_door_that_cannot_be_used_is_refused_before_there_is_a_directory(
    name: str, content: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    cert, key = Authority(tmp_path).issue("server")
    tokens, wrong = tmp_path / "tokens.toml", tmp_path / "wrong"
    for path, text in ((tokens, "[tokens]"), (wrong, content)):
        if text is not None:
            path.touch(0o600)
            path.write_text(text)
    files = {"tls_cert": cert, "tls_key": key, "client_ca": cert, "tokens": tokens, name: wrong}
    options = {f"serving__{which}": str(path) for which, path in files.items()}
    config = small(topology="actors(1)", serving__address="grpc+tls://127.0.0.1:0", **options)
    with pytest.raises(InvalidConfig, match=str(wrong)):
        relive.train.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- a run's end ---------------------------------------------------------------------------------------------------


def test_runs_that_repeat_end_at_the_same_step(tmp_path: Path) -> None:
    """The limit is looked at with every update, not by the clock."""
    ends = [
        relive.train.train(small(deterministic=True, environment__seed=3), tmp_path / f"{turn}").num_steps
        for turn in range(3)
    ]
    assert len(set(ends)) == 1 and 600 <= ends[0] < 620


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """As a full disk: who writes more gets an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_finds_no_room_says_what_the_system_says(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"weights": torch.zeros(10)}, Progress())
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with file_size_limit(4096), pytest.raises(OSError, match="File too large"):
        save_checkpoint(tmp_path, {"weights": torch.zeros(100_000)}, Progress())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_full_disk_is_one_sentence_with_the_name_of_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    curve = [CurvePoint(float(step), step, step, float(step), None) for step in range(3)]
    draw_curve(tmp_path / "curve.png", "one", curve, None)
    before = (tmp_path / "curve.png").read_bytes()
    with file_size_limit(100):
        with pytest.raises(OSError, match="File too large: '.*curve.png'"):
            draw_curve(tmp_path / "curve.png", "another", curve, None)
        with pytest.raises(OSError, match="File too large: '.*checkpoint.pt'"):
            save_checkpoint(tmp_path, {"weights": torch.zeros(10)}, Progress())
    with file_size_limit(0), pytest.raises(OSError, match="File too large: '.*tensorboard'"):
        ProgressReporter(Console(), "title", tmp_path).__enter__()
    assert (tmp_path / "curve.png").read_bytes() == before and "Traceback" not in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "tensorboard"]


def test_signals_in_the_middle_of_each_other_deafen_nobody() -> None:
    """A handler that took a lock would take it twice: of bursts like these one in thirteen did."""
    for turn in range(60):
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what the ones behind the first then do
            with stop_signals() as stopping:
                os.write(tells, b"x")
                while not stopping():
                    pass
            os._exit(0)
        os.read(told, 1)
        os.close(told)
        os.close(tells)
        for _ in range(6):
            os.kill(child, signal.SIGINT)
            until = time.perf_counter() + (turn % 20) * 1e-6
            while time.perf_counter() < until:
                pass
        ends = time.monotonic() + 10.0
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > ends:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail(f"the process of burst {turn} does not end")
            time.sleep(0.001)


# ---- the tuner -----------------------------------------------------------------------------------------------------


def test_several_hosts_are_not_tuned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match=r"topology.*single host"):
        tune(small(topology="hosts(2)"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidConfig, match="launcher"):
        tune(small())
