"""`python -m benchmarks.training.floor CASE`: the matrix products of one update alone, JSON of their microseconds.

No update of these networks in float32 takes less on this core, whatever is around them: torch.mm over memory made
once, in one thread, denormals flushed, for the rows of one learner and for those of one of two. Products whose
narrowest side is below 16 are left out: they are a hundredth of the whole. No side of the bench shares this code.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from benchmarks.training.cases import CASES, Case

_ROUNDS = 60
# Passes over the hidden layers of an update, each one product a pair of layers that lie beside each other: forward
# ones, gradients of inputs, gradients of weights. SAC's actor learns from the lower of two critics: a row goes
# backward through one of them.
PASSES = {
    "dqn": 2 + 1 + 1,  # Q'(s'), Q(s); backward of Q
    "ddpg": (2 + 1 + 2) + (1 + 1 + 1 + 2),  # mu'(s'), Q'(s'), Q, its backward; mu, Q, its inputs, mu's backward
    "td3": (3 + 2 + 4) + (1 + 1 + 1 + 2) / 2,  # the same with two critics; the actor in every second update
    "sac": (3 + 2 + 4) + (1 + 2 + 1 + 2),
}


def floor_us(case: Case, rows: int) -> float:
    """Microseconds of the matrix products of one update over so many rows."""
    total = 0.0
    for wide, narrow in zip(case.hidden[:-1], case.hidden[1:], strict=True):
        inputs, weights, outputs = torch.randn(rows, wide), torch.randn(wide, narrow), torch.zeros(rows, narrow)
        times = []
        for _ in range(_ROUNDS):
            began_s = time.thread_time()
            torch.mm(inputs, weights, out=outputs)
            times.append(time.thread_time() - began_s)
        total += float(np.median(times))
    return 1e6 * total * PASSES[case.agent]


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    case = CASES[sys.argv[1]]
    print(json.dumps({"one": floor_us(case, case.batch_size), "two": floor_us(case, case.batch_size // 2)}))


if __name__ == "__main__":
    main()
