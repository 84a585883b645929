"""A process of its own that keeps things and answers over a pipe, one question after another."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Asked", "answer_until_closed"]

PATIENCE_S = 60.0


def answer_until_closed(pipe: Connection, answer: Callable[..., Any]) -> None:
    """Sends the result of answer(what, *arguments), or the error that it raises, until the pipe closes."""
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(answer(what, *arguments))
        except Exception as problem:
            pipe.send(problem)


class Asked:
    """The process, from outside. run(pipe, *arguments): what it does, answer_until_closed() in the end."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, what: str, *arguments: Any) -> Any:
        """The answer, or the error it raised there."""
        self._pipe.send((what, arguments))
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError(f"{what}: no answer from the process that was asked")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join(PATIENCE_S)

    def close(self) -> None:
        """Ends the process; waits for it."""
        self._pipe.close()
        self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.kill()
            raise TimeoutError("the process that was asked did not end")
