"""Runs the jobs of a study one after another, each a process; what is finished stays, and is not run again.

A job's result is one JSON file, FOLDER/KEY.json, written as a whole when the job has ended well, with the job's own
description in it. A file of another description (other settings) is run again. So a study may be stopped at any time;
the same command goes on with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_END_S = 30.0


@dataclass(frozen=True)
class Job:
    """A programme that prints its result as JSON in its last line. about: all that its result depends on, for JSON."""

    key: str
    command: tuple[str, ...]
    about: dict[str, Any] = field(default_factory=dict)


def finished(job: Job, folder: Path) -> dict[str, Any] | None:
    """The result of a job, None where there is none, or one of another description."""
    try:
        kept = json.loads((folder / f"{job.key}.json").read_text(encoding="utf-8"))
        result = kept["result"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if kept.get("about") == _as_read(job.about) and isinstance(result, dict) else None


def _as_read(about: dict[str, Any]) -> Any:
    return json.loads(json.dumps(about))


def run_jobs(jobs: Sequence[Job], folder: Path, timeout_s: float = 7200.0) -> list[str]:
    """Runs what is not finished, in order; the keys of those that failed, which the others do not wait for.

    A job that fails, or takes longer than timeout_s, leaves no file. KeyboardInterrupt ends the one that runs; it is
    asked to by SIGTERM, so that it may clear up, and killed where it has not ended half a minute later.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for number, job in enumerate(jobs, 1):
        where = f"[{number}/{len(jobs)}] {job.key}"
        if finished(job, folder) is not None:
            continue
        began_s = time.monotonic()
        problem, result = _run(job, timeout_s)
        if result is None:
            failed.append(job.key)
            print(f"{where} failed: {problem}", flush=True)
            continue
        _keep(folder / f"{job.key}.json", {"about": job.about, "result": result})
        print(f"{where} {time.monotonic() - began_s:.0f} s", flush=True)
    return failed


def _run(job: Job, timeout_s: float) -> tuple[str, dict[str, Any] | None]:
    # A session of its own: a terminal's Ctrl-C reaches the study, which asks the job to end, once.
    process = subprocess.Popen(
        job.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"longer than {timeout_s:.0f} s", None
    finally:
        _end(process)
    lines = out.strip().splitlines()
    if process.returncode != 0 or not lines:
        said = (errors or out).strip().splitlines()
        return said[-1] if said else f"exit status {process.returncode}", None
    try:
        result = json.loads(lines[-1])
    except ValueError as problem:
        return str(problem), None
    return "", result if isinstance(result, dict) else None


def _end(process: subprocess.Popen[str]) -> None:
    """Terminates a process that is still running. Kills the process if it still runs _END_S seconds later."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _keep(path: Path, value: dict[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def python() -> str:
    """The one that runs relive's side."""
    return sys.executable
