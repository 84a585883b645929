"""A table of another process over loopback: samples beside dm-reverb's, large rows, appends, several clients."""

from __future__ import annotations

from typing import Any

from benchmarks import contestants, timing

CONTESTANTS = ("relive service", "Reverb")
ROWS = ((28 << 10, 128), (110 << 10, 32), (1 << 20, 8))  # bytes a row, rows a batch
ROWS_STORED = 256 << 20  # bytes of them in the table


def plan(quick: bool) -> list[dict[str, Any]]:
    """The contestants in turn, round after round."""
    num_steps = 10_000 if quick else 100_000
    return [
        {"contestant": contestant, "num_steps": num_steps, "quick": quick}
        for _ in range(1 if quick else 3)
        for contestant in CONTESTANTS
    ]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation of one contestant; its server is another process."""
    module = contestants.load(job["contestant"])
    num_calls = 300 if job["quick"] else 1500
    readings = []
    with module.open_hopper(job["num_steps"]) as operations:
        clients = operations.pop("sample, clients", None)
        for operation, (batch, call) in operations.items():
            if operation == "append, streamed":
                values = call()
            else:
                values = timing.time_calls(call, num_calls)
            # Batches made ahead come in bursts: what counts is how many come in a second.
            rates = {"calls_per_s": 1e6 * len(values) / sum(values)} if operation == "sample ahead" else {}
            readings.append({"operation": operation, "batch": batch, "readings_us": values, "rates": rates})
        for count in (1, 2, 4) if clients else ():
            rate = clients(count, 0.5 if job["quick"] else 2.0)
            rates = {"calls_per_s": rate, "rows_per_s": rate * 256}
            plural = "s" if count > 1 else ""
            readings.append(
                {"operation": f"sample, {count} client{plural}", "batch": 256, "readings_us": [], "rates": rates}
            )
    if job["contestant"] == "relive service":
        for row_bytes, batch in ROWS:
            readings += _rows(module, row_bytes, batch, job["quick"])
    return readings


def _rows(module: Any, row_bytes: int, batch: int, quick: bool) -> list[dict[str, Any]]:
    num_calls = 40 if quick else 150
    readings = []
    name = f"{row_bytes >> 10} kB rows" if row_bytes < 1 << 20 else "1 MB rows"
    with module.open_rows(row_bytes, ROWS_STORED // row_bytes) as (table, batches):
        with batches(batch, prefetch=4) as ahead:
            for operation, call in (("sample", lambda: table.sample(batch)), ("sample ahead", lambda: next(ahead))):
                values = timing.time_calls(call, num_calls, warm_up=10)
                median_s = sorted(values)[len(values) // 2] / 1e6
                mean_s = sum(values) / len(values) / 1e6
                rates = {"gb_per_s": batch * row_bytes / (mean_s if operation == "sample ahead" else median_s) / 1e9}
                readings.append(
                    {"operation": f"{operation}, {name}", "batch": batch, "readings_us": values, "rates": rates}
                )
    return readings
