"""A program: the honest client, which samples, appends and connects at a steady pace until its input ends.

usage: python -m benchmarks.door.honest FOLDER ADDRESS
It prints one line of JSON: [[moment of the monotonic clock, call, seconds; -1: it failed], ...]. The clock is that of
all processes of the machine, so a reader can take the calls of any part of the time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import relive
from benchmarks.door.place import OBSERVED, client_tls
from relive.errors import ReliveError

EVERY_S = {"sample": 0.01, "append": 0.01, "connect": 0.5}
STEP: dict[str, Any] = {
    "observation": np.zeros(OBSERVED, np.float32),
    "action": np.zeros(3, np.float32),
    "reward": np.float32(0.0),
}
Calls = list[tuple[float, str, float]]


def repeat(name: str, call: Callable[[], Any], ends: threading.Event, found: Calls) -> None:
    """Makes a call at its pace, and notes how long it took."""
    due = time.monotonic()
    while not ends.is_set():
        began = time.monotonic()
        try:
            call()
            found.append((began, name, time.monotonic() - began))
        except ReliveError as problem:
            sys.stderr.write(f"honest {name}: {problem}\n")
            found.append((began, name, -1.0))
        due = max(due + EVERY_S[name], time.monotonic() - EVERY_S[name])
        ends.wait(max(due - time.monotonic(), 0.0))


def main() -> None:
    """Calls on three threads, as a learner, an actor, and clients that come."""
    folder, address = Path(sys.argv[1]), f"{sys.argv[2]}/small"

    def opened() -> Any:
        return relive.connect(address, timeout_s=30.0, tls=client_tls(folder, address), token=folder / "honest.token")

    def connects() -> None:
        with opened() as another:
            len(another)

    found: Calls = []
    ends = threading.Event()
    with opened() as learner, opened() as actor, actor.writer() as writer:
        calls = {"sample": lambda: learner.sample(256), "append": lambda: writer.append(**STEP), "connect": connects}
        threads = [threading.Thread(target=repeat, args=(name, call, ends, found)) for name, call in calls.items()]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        ends.set()
        for thread in threads:
            thread.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
