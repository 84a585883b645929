"""The name of a shared table goes when the program that made it ends, whatever its children did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import multiprocessing, sys, time
import relive

def actor(name):
    with relive.attach(name).writer() as writer:
        while True:
            writer.append(x=1)

if __name__ == "__main__":
    name, method = sys.argv[1:]
    spec = relive.StepSpec({"x": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 1000, storage=relive.SharedMemory(name)) as table:
        multiprocessing.get_context(method).Process(target=actor, args=(name,), daemon=True).start()
        while len(table) < 10:
            time.sleep(0.01)
"""
USER = "import relive, sys; table = relive.attach(sys.argv[1]); print('there', flush=True); input()"
MAKER = "import relive, sys; table = relive.Table(relive.StepSpec({'x': relive.ArraySpec((), 'int64')}), 100, storage="
MAKER += "relive.SharedMemory(sys.argv[1])); print('made', flush=True); input()"


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_daemon_process_that_is_ended_at_the_end_leaves_no_file(tmp_path: Path, shm_name: Any, method: str) -> None:
    name = shm_name()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    subprocess.run([sys.executable, program, name, method], check=True, timeout=60)
    assert not os.path.exists(f"/dev/shm/relive-{name}")


def test_a_table_that_another_program_uses_stays(shm_name: Any) -> None:
    """So does its name: the last user removes it."""
    name = shm_name()

    def started(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline()
        return process

    maker = started(MAKER)
    user = started(USER)
    assert maker.communicate("\n", timeout=30) == ("", None) and maker.returncode == 0
    assert os.path.exists(f"/dev/shm/relive-{name}")
    assert user.communicate("\n", timeout=30) == ("", None) and user.returncode == 0
    assert not os.path.exists(f"/dev/shm/relive-{name}")
