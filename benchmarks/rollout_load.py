"""The rollouts that benchmarks.rollouts writes and reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ROLLOUTS, TOKENS, GROUP = 1024, 2000, 8
GROUPS = ROLLOUTS // GROUP
WRITERS, READERS = 16, 2
GROUPS_A_BATCH = 4
ROW_BYTES = TOKENS * (8 + 4 + 1) + 4

Array = np.ndarray[Any, Any]


@dataclass
class Rows:
    """Rollouts by their numbers, and their columns [rows, TOKENS]. The first token of a rollout is its number."""

    numbers: Array
    tokens: Array
    log_probs: Array
    mask: Array

    @classmethod
    def of(cls, numbers: Array) -> Rows:
        tokens = np.arange(TOKENS)[None, :] + numbers[:, None]
        log_probs = np.random.default_rng(int(numbers[0])).standard_normal(tokens.shape).astype(np.float32)
        return cls(numbers, tokens, log_probs, np.ones(tokens.shape, np.bool_))


def of_writer(writer: int, rows_a_call: int) -> list[Array]:
    """The numbers of the rollouts that a writer gives, call by call. The members of a group come from 8 writers."""
    numbers = np.arange(writer, ROLLOUTS, WRITERS)
    return np.split(numbers, range(rows_a_call, len(numbers), rows_a_call))
