"""The sequence examples lose nothing by a kill: prompts come once, and ranks end together and continue."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from processes.tools import eventually

import relive
import relive.checkpoint
import relive.fleet

for _module in ("torch", "gymnasium", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")

ROOT = Path(__file__).resolve().parents[2]
SMALL_MODEL = "--lanes 16 --groups 2 --group-size 4 --width 16 --layers 1 --warm-reward 0 --replays 1 --no-bar"
GROUP_SIZE, RANKS = 4, 2  # of the settings below, and of the examples
SMALL_DATA = "--episodes 10 --window 4 --width 16 --layers 1 --batch-size 4 --eval-every 1000 --no-bar"


def started(name: str, folder: Path, arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments.split(), "--run-dir", str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for_save(program: subprocess.Popen[str], folder: Path) -> None:
    while not any((folder / name).exists() for name in ("save/CURRENT", "shards/CURRENT")):
        assert program.poll() is None, program.communicate()[0]
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that run its work (not the helpers of multiprocessing)."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            found.append(int(child))
    return found


def check_prompts(folder: Path) -> int:
    """Checks that every prompt that was begun is in one place. Returns the number of trained prompts."""
    told = relive.checkpoint.load_learner(folder / "save")["learner"]
    with relive.checkpoint.load(folder / "save").table as table:
        pages = [table.gather(keys, columns=["prompt"], index="new")["prompt"][:, 0] for keys in table.keys("new")]
    complete = [*told["trained"], *np.concatenate([*pages, np.zeros(0, int)]).tolist()]
    assert len(complete) == len(set(complete)), "a prompt was repeated"
    begun = set(range(-(-int(told["started"]) // GROUP_SIZE)))
    under_way = set(told["rows"]["prompt"][told["rows"]["length"] > 0].tolist())
    under_way |= {prompt for prompt, _, _ in told["unchecked"]}
    assert begun == set(complete) | under_way, "a prompt was skipped"
    return len(told["trained"])


@pytest.mark.thorough
def test_grpo_skips_and_repeats_no_prompt_after_kills(tmp_path: Path) -> None:
    trained = 0
    for resume in ("", " --resume"):
        program = started("grpo", tmp_path, f"{SMALL_MODEL} --steps 1000000 --save-s 0.1{resume}")
        wait_for_save(program, tmp_path)
        wanted = trained + 4
        while (trained := len(relive.checkpoint.load_learner(tmp_path / "save")["learner"]["trained"])) < wanted:
            assert program.poll() is None, program.communicate()[0]
            time.sleep(0.1)
        (checker,) = children(program.pid)
        os.kill(checker, signal.SIGKILL)  # the learner starts another one
        wanted = trained + 4
        while (trained := len(relive.checkpoint.load_learner(tmp_path / "save")["learner"]["trained"])) < wanted:
            assert program.poll() is None, program.communicate()[0]
            time.sleep(0.1)
        (checker,) = children(program.pid)
        program.kill()
        program.wait()
        place = Path(f"/proc/{checker}")
        assert eventually(lambda place=place: not place.exists()), "the checker outlives the learner"
        with contextlib.suppress(relive.errors.NoSuchTable):  # the checker closed it as its last user
            relive.remove(f"grpo-{program.pid}")
        assert check_prompts(tmp_path) >= wanted


@pytest.mark.thorough
def test_ranks_end_together_and_continue_after_a_kill_and_save_at_ctrl_c(tmp_path: Path) -> None:
    program = started("decision_transformer", tmp_path, f"{SMALL_DATA} --steps 1000000 --save-s 0.1")
    wait_for_save(program, tmp_path)
    os.kill(children(program.pid)[1], signal.SIGKILL)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 1 and "Continue with --resume" in said, said
    killed_at = step_of_loader(tmp_path)

    program = started("decision_transformer", tmp_path, f"{SMALL_DATA} --steps 1000000 --save-s 0.1 --resume")
    while step_of_loader(tmp_path) <= killed_at:
        assert program.poll() is None, program.communicate()[0]
        time.sleep(0.1)
    os.killpg(program.pid, signal.SIGINT)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 0 and "Stopped and saved" in said, said
    assert step_of_loader(tmp_path) > killed_at


@pytest.mark.thorough
def test_ctrl_c_for_the_main_process_counts_while_its_ranks_start(tmp_path: Path) -> None:
    program = started("decision_transformer", tmp_path, f"{SMALL_DATA} --steps 100000")
    while len(children(program.pid)) < RANKS:
        assert program.poll() is None, program.communicate()[0]
        time.sleep(0.01)
    os.kill(program.pid, signal.SIGINT)
    try:
        said, _ = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 0 and "Stopped and saved" in said, said


def step_of_loader(folder: Path) -> int:
    """The updates of a saved run. Checks that the loader's state is that of the same moment."""
    while True:
        with contextlib.suppress(relive.errors.NoSuchSave):  # the next save removed it as it was read
            saved = relive.checkpoint.from_bytes(relive.fleet.saved(folder / "shards").blob("learner"))
            break
    loader, steps = saved["learner"]["loader"], saved["run"]["steps"]
    assert loader["first"] // RANKS + loader["batch"] == steps, "the loader and the learner are of different moments"
    return int(steps)
