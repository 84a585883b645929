"""The commands of the extras: their help, and the sentence about an extra that is missing."""

from __future__ import annotations

import copy
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the command line needs rich")

from relive.agents.registry import AGENTS  # noqa: E402
from relive.cli import entry  # noqa: E402
from relive.cli.commands import extra_named  # noqa: E402
from relive.errors import MissingPackage  # noqa: E402
from relive.errors.extras import install_command  # noqa: E402


def relive_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relive.cli", *arguments], capture_output=True, text=True, timeout=60,
        env={"COLUMNS": "160", "PATH": "", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_help() -> None:
    text = relive_command("train", "dqn", "--help").stdout
    for option in ("--env", "--actors", "--seed", "--run-dir", "--resume", "--max-minutes", "--device"):
        assert option in text
    for name in ("agent.gamma", "agent.network.hidden", "replay.updates_per_step", "0.995", "128,128", "threads"):
        assert name in text
    overview = relive_command("--help").stdout
    assert all(command in overview for command in ("train", "serve", "ls", "rm"))


def test_the_help_of_a_run_reads_at_80_columns_and_needs_no_extra() -> None:
    """Each option of --set has an explanation below it. The packages of the extras are hidden."""
    hidden = "import sys\nfor name in ('rich', 'torch', 'gymnasium', 'tomli_w'): sys.modules[name] = None\n"
    for agent in AGENTS:
        program = f"{hidden}import relive.cli\nsys.argv = ['relive', 'train', {agent!r}, '--help']\nrelive.cli.main()"
        environment = {"COLUMNS": "80", "PATH": "", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert not [line for line in done.stdout.splitlines() if len(line) > 80 and "=" not in line]
        lines = done.stdout.partition("options of --set")[2].splitlines()[1:]
        names = [at for at, line in enumerate(lines) if line.startswith("  ") and line[2] != " "]
        assert len(names) > 30 and all(lines[at + 1].startswith("      ") for at in names)


def test_a_run_without_an_address_needs_the_extra_train_alone(tmp_path: Path) -> None:
    """The packages of the other extras are hidden, as `make demo` does not install them."""
    pytest.importorskip("torch", reason="agents are written in torch")
    hidden = "import sys\nfor name in ('pyarrow', 'prometheus_client', 'ray', 'triton'): sys.modules[name] = None\n"
    options = ("limits.max_steps=300", "topology=inline", "update=handwritten", "replay.min_size=64")
    small = [word for option in options for word in ("--set", option)]
    command = ["relive", "train", "dqn", "--env", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *small]
    program = f"{hidden}import relive.cli\nsys.argv = {command!r}\nrelive.cli.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "needs" not in done.stderr and (tmp_path / "run" / "result.json").exists(), done.stdout + done.stderr


def test_the_options_of_the_help_are_those_of_the_classes() -> None:
    pytest.importorskip("torch", reason="agents are written in torch")
    script = Path(__file__).resolve().parents[2] / "scripts" / "write_options.py"
    if not script.exists():
        pytest.skip("the script lies beside the tests in the source tree only")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    run = ["train", "dqn", "--run-dir", str(tmp_path / "run")]
    for arguments, words in (
        (["--set", "agent.gama=0.9"], ("agent.gama", "did you mean 'agent.gamma'?")),
        (["--env", "Pendulum-v1"], ("action space of Pendulum-v1", "Discrete")),
    ):
        done = relive_command(*run, *arguments)
        assert done.returncode == 1 and done.stderr.startswith("relive: ") and "Traceback" not in done.stderr
        assert all(word in done.stderr for word in words), done.stderr
        assert list(tmp_path.iterdir()) == []


def test_an_empty_path_and_two_directories_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="agents are written in torch")
    done = relive_command("train", "dqn", "--run-dir", "")
    assert done.returncode == 2 and "expected a path" in done.stderr
    both = ("--resume", str(tmp_path / "a"), "--run-dir", str(tmp_path / "b"))
    done = relive_command("train", "dqn", *both)
    assert done.returncode == 1 and "none beside --resume" in done.stderr


def test_a_run_goes_on_with_its_own_agent_only(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="agents are written in torch")
    from relive.train.config import preset

    preset("dqn", "CartPole-v1").save(tmp_path / "config.json")
    other = next(name for name in AGENTS if name != "dqn")
    done = relive_command("train", other, "--resume", str(tmp_path))
    assert done.returncode == 1 and "relive train dqn --resume" in done.stderr


def test_missing_extras_are_named() -> None:
    """With a command that installs them for this copy of the library."""
    program = (
        "import sys\n"
        "for name in {hidden!r}: sys.modules[name] = None\n"
        "import relive.cli\n"
        "sys.argv = ['relive', *{arguments!r}]\n"
        "relive.cli.main()"
    )
    for hidden, arguments, extra in (
        (["rich"], ["train", "dqn"], "train"),
        (["torch"], ["train", "dqn"], "train"),
        (["gymnasium"], ["train", "dqn"], "train"),
        (["torch"], ["tune", "--agent", "dqn"], "train"),
        (["ray"], ["fleet", "status", "name"], "ray"),
        (["pyarrow", "pyarrow.flight"], ["serve", "table.toml"], "service"),
    ):
        code = program.format(hidden=hidden, arguments=arguments)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert install_command(extra) in done.stderr and hidden[-1] in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def in_a_shell(arguments: str, redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = f"{sys.executable} -m relive.cli {arguments} {redirection}"
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)


SHORT_RUN = (
    "train dqn --run-dir run --max-steps 300 --set replay.min_size=64 --set update=handwritten"
    " --set evaluation.num_final_episodes=1 --set acting.num_actors=1 --set topology="
)


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-"])
@pytest.mark.parametrize("command", ["ls", f"{SHORT_RUN}inline", f"{SHORT_RUN}actors"], ids=["ls", "inline", "actors"])
def test_an_output_that_is_closed_is_no_output(command: str, redirection: str, tmp_path: Path) -> None:
    if command != "ls":
        pytest.importorskip("torch", reason="agents are written in torch")
    done = in_a_shell(command, redirection, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert command == "ls" or (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("redirection", ["<&-", ">&- <&-", "2>&- <&- >&-", ""])
def test_no_file_gets_the_number_of_a_standard_one(redirection: str, tmp_path: Path) -> None:
    code = "from relive.cli import entry; entry._open_outputs(); to = open('number', 'w'); to.write(str(to.fileno()))"
    subprocess.run(f'{sys.executable} -c "{code}" {redirection}', shell=True, check=True, cwd=tmp_path)
    assert int((tmp_path / "number").read_text()) > 2


def test_a_program_may_copy_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    entry._open_outputs()
    copy.copy(sys.stdout).write("heard")
    assert sys.stdout.getvalue() == "heard"  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_command_changes_no_status(number: signal.Signals, tmp_path: Path) -> None:
    """Libraries end with the interpreter, for seconds."""
    code = (
        "import atexit, os, sys; from relive.cli import main; sys.argv[1:] = ['ls'];"
        f" atexit.register(os.kill, os.getpid(), {int(number)}); main()"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_an_error_of_the_output_names_it(tmp_path: Path) -> None:
    for python in (sys.executable, f"{sys.executable} -u"):
        done = subprocess.run(f"{python} -m relive.cli ls > /dev/full", shell=True, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "relive: [Errno 28] No space left on device: 'standard output'\n"


@pytest.mark.parametrize("linked", [True, False])
def test_ctrl_c_in_an_import_is_no_missing_package(linked: bool) -> None:
    """Packages turn any error of their own imports into an ImportError."""
    with pytest.raises(KeyboardInterrupt), extra_named("train", "train"):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise ImportError("numpy._core.multiarray failed to import") from interrupt if linked else None


def test_a_package_that_fails_without_a_name_is_not_missing() -> None:
    with pytest.raises(ImportError, match="undefined symbol") as caught, extra_named("train", "train"):
        raise ImportError("undefined symbol")
    assert not isinstance(caught.value, MissingPackage)
    with pytest.raises(MissingPackage, match="needs torch"), extra_named("train", "train"):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
