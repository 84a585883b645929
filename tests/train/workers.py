"""What tests run in other processes: light to import."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

from relive.train.child import Child, Parent
from relive.train.memory.scoreboard import Scoreboard


def count(scoreboard: Scoreboard, actor: int) -> None:
    """300 calls of 4 steps, an episode each, and one wait."""
    for number in range(300):
        scoreboard.add_steps(actor, 4, number)
        scoreboard.add_episode(actor, float(number), 1)
    scoreboard.add_wait(actor, 0.5)


def echo_until_the_pipe_ends(pipe: Connection) -> None:
    pipe.send(os.environ.get("RELIVE_TEST_STREAMS"))
    try:
        while True:
            pipe.send(pipe.recv())
    except EOFError:
        pass


def never_end(task: object) -> None:
    time.sleep(600)


def tell_the_size(task: tuple[Connection, bytes]) -> None:
    pipe, content = task
    pipe.send(len(content))


def run_until_the_parent_is_gone(pipe: Connection) -> None:
    parent = Parent()
    pipe.send("begins")
    while not parent.is_gone:
        time.sleep(0.02)


if __name__ == "__main__":
    child = Child("relive-test", run_until_the_parent_is_gone)
    child.start(child.open_pipe())
    child.pipe.recv()
    print(child.pid, flush=True)
    time.sleep(600)
