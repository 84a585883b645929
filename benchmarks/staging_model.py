"""Computes how often the disk is read for an item: `python -m benchmarks.staging_model`.

The model draws from 1,000 items uniformly and has memory for 250 of them. The newest items are always in memory. The
rest of the memory contains items that were read. Belady's rule over the planned draws chooses the item that is dropped.
Items without a planned draw are dropped first, in the order of their age.
"""

from __future__ import annotations

import random

ITEMS = 1000
BUDGET = 250
DRAWS = 20_000
NEVER = 1 << 30


def reads_per_item(staged: int, ahead: int, seed: int = 0) -> float:
    """Reads for each draw with `staged` of the budget for what is read and `ahead` draws known."""
    rng = random.Random(seed)
    draws = [rng.randrange(ITEMS) for _ in range(DRAWS + ahead)]
    next_use = [NEVER] * len(draws)
    last: dict[int, int] = {}
    for position in range(len(draws) - 1, -1, -1):
        next_use[position] = last.get(draws[position], NEVER)
        last[draws[position]] = position
    kept: dict[int, int] = {}
    reads = 0
    for position, item in enumerate(draws[:DRAWS]):
        if item < BUDGET - staged:
            continue
        if item not in kept:
            reads += 1
            if len(kept) >= staged:
                unplanned = (one for one, use in kept.items() if use > position + ahead)
                del kept[next(unplanned, None) or max(kept, key=lambda one: kept[one])]
        kept[item] = next_use[position]
    return reads / DRAWS


def main() -> None:
    splits = (32, 64, 125, 190)
    print("draws ahead  " + "".join(f"staged {staged:>4}  " for staged in splits))
    for ahead in (1, 64, 128, 256, 512, 1024):
        print(f"{ahead:>11}  " + "".join(f"{reads_per_item(staged, ahead):>11.3f}  " for staged in splits))


if __name__ == "__main__":
    main()
