"""Sums as a task for a language model: numbered prompts, and a checker in a process of its own that rewards answers."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import relive

TEXT = "0123456789+=."  # the tokens; the dot ends an answer
END = TEXT.index(".")
Job = tuple[int, np.ndarray, np.ndarray]  # prompt, tokens and keys of an ended rollout


@dataclass(frozen=True)
class Sums:
    """Prompts such as 07+15=, each with a number that fixes it."""

    digits: int
    seed: int

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt."""
        return 2 * self.digits + 2

    @property
    def length(self) -> int:
        """Tokens of the longest rollout: the prompt, the answer, the dot."""
        return self.prompt_length + self.digits + 2

    def numbers(self, prompt: int) -> tuple[int, int]:
        """The two numbers of a prompt."""
        first, second = np.random.default_rng([self.seed, prompt]).integers(0, 10**self.digits, 2)
        return int(first), int(second)

    def prompt(self, prompt: int) -> list[int]:
        """The tokens of a prompt."""
        first, second = self.numbers(prompt)
        return [TEXT.index(letter) for letter in f"{first:0{self.digits}}+{second:0{self.digits}}="]

    def solved(self, prompt: int) -> list[int]:
        """The tokens of a prompt and of its answer, up to `length`."""
        answer = f"{sum(self.numbers(prompt))}".ljust(self.digits + 2, ".")
        return self.prompt(prompt) + [TEXT.index(letter) for letter in answer]

    def reward(self, prompt: int, tokens: np.ndarray) -> float:
        """1 if the tokens after the prompt are the answer and a dot, else 0."""
        said = "".join(TEXT[token] for token in tokens[self.prompt_length :])
        return float(said.startswith(f"{sum(self.numbers(prompt))}."))

    def solved_prompts(self, batch: int) -> Iterator[np.ndarray]:
        """Batches of solved prompts that no rollout gets, int64 [batch, length]."""
        for first in count(2**41, batch):
            yield np.array([self.solved(number) for number in range(first, first + batch)])

    def mean_reward(self, next_tokens: Callable[[np.ndarray, np.ndarray], Any], samples: int = 256) -> float:
        """The mean reward of a policy's answers to prompts that no rollout gets."""
        numbers = range(2**40, 2**40 + samples)
        tokens = np.full((samples, self.length), END)
        tokens[:, : self.prompt_length] = [self.prompt(number) for number in numbers]
        for at in range(self.prompt_length, self.length):
            tokens[:, at] = next_tokens(tokens, np.full(samples, at))[0]
        return float(np.mean([self.reward(number, row) for number, row in zip(numbers, tokens, strict=True)]))


def check(name: str, sums: Sums, seconds: float, link: Connection) -> None:
    """The checker's process: completes the rewards of ended rollouts, and reports these rewards."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner ends the checker
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with relive.attach(name) as table:
        while True:
            try:
                jobs: list[Job] = link.recv()
                time.sleep(seconds)
                rewards = {int(keys[-1]): sums.reward(prompt, tokens) for prompt, tokens, keys in jobs}
                for _, tokens, keys in jobs:
                    late = np.zeros(len(tokens), np.float32)
                    late[-1] = rewards[int(keys[-1])]
                    try:
                        table.complete(keys, reward=late)
                    except relive.errors.AlreadyCompleted:  # by a checker that was killed before it reported
                        continue
                link.send(rewards)
            except (EOFError, ConnectionError):  # the learner has ended
                return


class Checker:
    """The learner's side of the checker. A checker that was killed is started again with all unanswered work.

    Args:
        name: the table's shared memory.
        sums: the task.
        seconds: the checker's time for its work of one round.
        most: rollouts that may wait for their rewards. With more, `exchange` waits for the checker.
        unchecked: ended rollouts of the run that is continued.
    """

    def __init__(self, name: str, sums: Sums, seconds: float, most: int, unchecked: list[Job]) -> None:
        self._work, self._most = (name, sums, seconds), most
        self.unchecked = {int(job[2][-1]): job for job in unchecked}
        self.restarts = -1
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, other = context.Pipe()
        self.process = context.Process(target=check, args=(*self._work, other), daemon=True)
        resource_tracker.ensure_running()  # its start, which the first process would make, unblocks SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the checker begins with it blocked
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.close()
        self.restarts += 1
        if self.unchecked:
            self._link.send(list(self.unchecked.values()))

    def exchange(self, jobs: list[Job]) -> list[float]:
        """Hands over ended rollouts, and returns the rewards that have arrived."""
        rewards: list[float] = []
        self.unchecked |= {int(job[2][-1]): job for job in jobs}
        try:
            if jobs:
                self._link.send(jobs)
            while self._link.poll(None if len(self.unchecked) > self._most else 0.0):
                answered = self._link.recv()
                rewards += answered.values()
                for key in answered:
                    self.unchecked.pop(key, None)
        except (EOFError, ConnectionError):
            self._start()
        return rewards

    def close(self) -> None:
        """Ends the checker."""
        self._link.close()
        self.process.join()
