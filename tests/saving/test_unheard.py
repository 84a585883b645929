"""A save that fails behind the program, and whose error no call of wait() raises, is told by a logger."""

from __future__ import annotations

import errno
import gc
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import relive
from relive.saving.folder import Segment

PROGRAM = """
import errno, sys
import relive
from relive.saving.folder import Segment

def fails(self, block):
    raise OSError(errno.EIO, "the disk")

table = relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100)
with table.writer() as writer:
    for k in range(50):
        writer.append(x=k)
    Segment.append = fails
    saving = table.save(sys.argv[1], wait=False)
"""


@pytest.fixture
def table() -> Any:
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100) as table:
        with table.writer() as writer:
            for k in range(50):
                writer.append(x=k)
            yield table


def fails(segment: Segment, block: object) -> None:
    raise OSError(errno.EIO, "the disk")


def failed(table: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A save that has failed behind the caller."""
    monkeypatch.setattr(Segment, "append", fails)
    saving = table.save(folder, wait=False)
    saving.wait_for_end()
    return saving


def test_a_save_that_is_gone_before_its_error_was_heard_is_told(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saving = failed(table, tmp_path, monkeypatch)
    saving._thread.join()
    assert not caplog.records
    del saving
    gc.collect()
    (told,) = caplog.records
    assert (told.name, told.levelno) == ("relive.saving", logging.ERROR)
    assert "the disk" in told.getMessage() and str(tmp_path) in told.getMessage()


def test_an_error_that_wait_raised_is_not_told_again(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saving = failed(table, tmp_path, monkeypatch)
    with pytest.raises(OSError, match="the disk"):
        saving.wait()
    del saving
    gc.collect()
    assert not caplog.records


def test_a_save_that_was_cancelled_is_not_told(table: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saving = table.begin_save(tmp_path)
    saving.make_cut(None, 5.0)
    saving.cancel()
    saving.finish({}, 1)
    assert repr(saving).endswith("failed)") and not (tmp_path / "CURRENT").exists()
    del saving
    gc.collect()
    assert not caplog.records


def test_a_process_that_ends_tells_of_a_save_that_failed(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert "a save into" in line and "the disk" in line and str(tmp_path) in line
