"""Tasks on chosen nodes of a Ray cluster, which do not outlive the call that started them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from relive.errors import DeadlineExceeded
from relive.fleet.draws.pace import Wait
from relive.fleet.on_ray.cluster import ask

# cluster comes first: its error names the extra.
# isort: split
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["ASK_S", "Task", "done_of", "run"]

Key = TypeVar("Key")

ASK_S = 2.0  # how long one question waits before it is asked again


class Task(NamedTuple):
    """A function that a node calls, and its arguments."""

    node: str  # its id in Ray
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


def run(tasks: Mapping[Key, Task], wait: Wait, is_over: Callable[[], bool] = lambda: False) -> dict[Key, Any]:
    """Runs all tasks at once, without a CPU of their own, and cancels those that go on at the end of the call.

    Args:
        tasks: the tasks by any key.
        wait: the wait of the call. Tasks that have not ended at the deadline have no answer.
        is_over: asked every two seconds. True ends the call before the deadline.

    Returns:
        The answers by the key of the task. A task that failed has its error (RayError) as the answer.

    Raises:
        DeadlineExceeded: the head of the cluster does not answer.
    """

    def begun() -> dict[Any, Key]:
        made = {}
        for key, task in tasks.items():
            where = NodeAffinitySchedulingStrategy(task.node, soft=False)
            function = ray.remote(task.work).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
            made[function.remote(*task.arguments)] = key
        return made

    keys, done = ask(wait, begun), list[Any]()
    try:
        while len(done) < len(keys):
            done = done_of(list(keys), min(wait.left_s, ASK_S), wait)
            if wait.is_over or is_over():
                break
    finally:
        with suppress(DeadlineExceeded, RayError):
            ask(Wait(0.0), lambda: [ray.cancel(one, force=True) for one in keys if one not in done])
    answers: dict[Key, Any] = {}
    for one in done:
        try:
            answers[keys[one]] = ask(wait, partial(ray.get, one))
        except RayError as error:
            answers[keys[one]] = error
    return answers


def done_of(asked: list[Any], seconds: float, wait: Wait) -> list[Any]:
    """Those of these answers that came in so many seconds. Raises DeadlineExceeded if Ray itself does not answer."""
    done: list[Any] = ask(wait, lambda: ray.wait(asked, num_returns=len(asked), timeout=seconds)[0], own_s=seconds)
    return done
