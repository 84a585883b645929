"""A second signal just before the last checkpoint of a run: it is written all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")

PROGRAM = """
import signal, sys
from pathlib import Path
from relive.train import preset, train
from relive.train.learner import Learner
from relive.train.watching.checkpoint import load_checkpoint

def interrupted(learner):
    calls.append(learner._agent.num_updates)
    if len(calls) == 1:
        for _ in range(2 if sys.argv[3] == "error" else 1):  # the second signal
            signal.raise_signal(signal.SIGINT)
    save(learner)

def stopping(steps, updates):
    if updates >= 200 and not stopped:
        stopped.append(updates)
        if sys.argv[3] == "error":
            raise OSError("what the program raised")
        signal.raise_signal(signal.SIGINT)
    return False

if __name__ == "__main__":
    calls, stopped, save, folder = [], [], Learner.save, Path(sys.argv[1])
    Learner.save = interrupted
    options = {
        "topology": sys.argv[2], "replay.min_size": 100, "agent.batch_size": 16, "agent.network.hidden": (8,),
        "evaluation.num_episodes": 1, "evaluation.num_final_episodes": 1, "limits.max_steps": 10**6,
        "update": "handwritten", "checkpoint.table": "never", "acting.num_actors": 2,
    }
    try:
        train(preset("dqn", "CartPole-v1", options), folder, stop_when=stopping)
    except BaseException as error:
        print(type(error).__name__)
    print(load_checkpoint(folder)[0]["num_updates"] >= 200)
"""


@pytest.mark.forms(1)
@pytest.mark.parametrize("topology", ["inline", pytest.param("actors(2)", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("reason", "raised"), [("signal", "KeyboardInterrupt"), ("error", "OSError")])
def test_a_second_signal_before_the_last_save(tmp_path: Path, topology: str, reason: str, raised: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "run"), topology, reason]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [raised, "True"], done.stderr
