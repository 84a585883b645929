"""Insert one step, insert 256 lanes, sample and update on Hopper-sized steps, over table sizes and batch sizes."""

from __future__ import annotations

from typing import Any

from benchmarks import contestants, timing, workload

NUM_LANES = 256
CONTESTANTS = ("relive", "relive shared", "relive uniform", "SB3 uniform", "Tianshou", "cpprb")


def plan(quick: bool) -> list[dict[str, Any]]:
    """One entry a process; entries that differ only in the contestant are run in turn, round after round."""
    sizes = (1_000_000,) if quick else (100_000, 1_000_000, 10_000_000)
    jobs = []
    for num_steps in sizes:
        rounds = 1 if quick else (5 if num_steps == 1_000_000 else 3)
        for _ in range(rounds):
            for contestant in CONTESTANTS:
                if contestant == "relive shared" and num_steps != 1_000_000:
                    continue
                jobs.append({"contestant": contestant, "num_steps": num_steps, "quick": quick})
    return jobs


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation of one contestant at one table size: a list of {operation, batch, readings_us}."""
    module = contestants.load(job["contestant"])
    scale = 0.2 if job["quick"] else 1.0
    readings = []

    def keep(operation: str, batch: int, values: list[float]) -> None:
        readings.append({"operation": operation, "batch": batch, "readings_us": values})

    buffer = module.open_hopper(job["contestant"], job["num_steps"], 1)
    for batch, num_calls in ((32, 2000), (256, 1500), (2048, 300)):
        num_calls = int(num_calls * scale)
        keep("sample", batch, timing.time_calls(lambda batch=batch: buffer.sample(batch), num_calls))
        if buffer.has_priorities:
            priorities = workload.random_priorities(batch)
            prepare = lambda batch=batch: buffer.sample(batch)[0]  # noqa: E731
            update = lambda keys, priorities=priorities: buffer.update(keys, priorities)  # noqa: E731
            keep("update", batch, timing.time_pairs(prepare, update, num_calls))
            both = lambda prepare=prepare, update=update: update(prepare())  # noqa: E731
            keep("sample and update", batch, timing.time_calls(both, num_calls))
    keep("insert 1", 1, timing.time_calls(buffer.append, int(20_000 * scale), calls_per_reading=20, warm_up=2000))
    buffer.close()

    buffer = module.open_hopper(job["contestant"], job["num_steps"], NUM_LANES)
    keep("insert 256 lanes", NUM_LANES, timing.time_calls(buffer.append, int(2000 * scale), warm_up=200))
    buffer.close()
    return readings
