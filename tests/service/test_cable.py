"""Links that go down, between two networks of this machine: clients that are gone, and clients that come back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).with_name("on_a_cable.py")
UNSHARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
TRIAL = "ip link add cable0 type veth peer name cable1 && unshare --net true"


def why_not() -> str:
    """Why this machine has no two networks for us; '' where it has."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)}"
    done = subprocess.run([*UNSHARE, "sh", "-c", TRIAL], capture_output=True, text=True, timeout=30)
    return done.stderr.strip() or "unshare failed" if done.returncode else ""


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    """What the program found; it runs once for all tests of this file."""
    reason = why_not()
    if reason:
        pytest.skip(f"a cable needs two network namespaces, which are not permitted here: {reason}")
    done = subprocess.run([*UNSHARE, sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    yield json.loads(done.stdout.splitlines()[-1])


def test_lanes_and_batches_behind_a_pulled_cable_are_free_within_20_s(told: dict[str, Any]) -> None:
    gone = told["gone"]
    assert gone["lanes"] == 3 and gone["in flight"] > 0
    assert set(gone["freed"]) == {"lanes", "batches"} and max(gone["freed"].values()) < 20.0, gone


@pytest.mark.parametrize("writer", ["streams", "waits"])
def test_a_writer_that_comes_back_within_5_s_loses_nothing(told: dict[str, Any], writer: str) -> None:
    assert told[writer] == {"stopped": True, "lost": "", "all are there": True}
