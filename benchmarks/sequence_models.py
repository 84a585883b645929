"""A decision transformer's step and its batches: relive beside other libraries. benchmarks/results/sequence_models.json

usage: python -m benchmarks.sequence_models [--rounds 3] [--only KIND ...]

Every contestant gives batches of 64 windows, of 20 and of 1,024 steps, to one rank and to two ranks at once, each a
process with one thread. The contestants alternate, round after round. Batches are timed by the clock, medians; steps by
the processor time of their thread, because a machine that others use lengthens them. The ranks exchange no gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import peers, windows
from benchmarks.machine import describe

RESULTS = Path(__file__).parent / "results"
SIZES = ("0.1M", "1M", "10M")
KINDS = {
    "relive, one table": "windows_relive",
    "relive, two shards, mapped": "windows_relive",
    "relive, two shards, service": "windows_relive",
    "memory map": "windows_memory_map",
    "TorchRL": "windows_torchrl",
    "Reverb": "windows_reverb",
}
ENVIRONMENTS = {"TorchRL": "torchrl", "Reverb": "reverb"}
LIMIT_S = 900  # of a contestant in a round, and of a step


def python_of(kind: str) -> str:
    """The interpreter of a contestant."""
    peer = ENVIRONMENTS.get(kind)
    return str(peers.python_of(peer)) if peer else sys.executable


def start(kind: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a process of benchmarks.sequence_worker in the environment of a contestant."""
    command = [python_of(kind), "-m", "benchmarks.sequence_worker", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line of a process. Raises RuntimeError with its last words if it has ended."""
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError((process.stderr.read().strip().splitlines() or ["it ended without a word"])[-1])
    return line


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Ends these processes at the end of the block, or after LIMIT_S: then the block ends with a RuntimeError."""
    too_late = threading.Event()

    def end() -> None:
        too_late.set()
        for process in processes:
            process.kill()

    timer = threading.Timer(LIMIT_S, end)
    timer.start()
    try:
        yield
    except (RuntimeError, OSError) as error:
        if too_late.is_set():
            raise RuntimeError(f"no answer within {LIMIT_S} s") from error
        raise
    finally:
        timer.cancel()
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in processes:
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()


def measure(kind: str, length: int, ranks: int) -> list[dict[str, Any]]:
    """The readings of one contestant in one round, one dict a rank."""
    host = start(kind, "host", KINDS[kind], kind, str(length))
    with ended(host):
        place = json.loads(line_of(host))
        running = [start(kind, "rank", KINDS[kind], kind, str(length), place, str(rank)) for rank in range(ranks)]
        with ended(*running):
            for process in running:
                line_of(process)  # "ready"
            for process in running:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            return [json.loads(line_of(process)) for process in running]


def summary(readings: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds and ranks."""
    ways = {way for reading in readings for way in reading["ways"]}
    told = {"us": {way: median(median(reading["ways"][way]) for reading in readings) for way in sorted(ways)}}
    if not readings[0]["steps"]:
        return told
    wait_us, step_us = (median(median(reading[name]) for reading in readings) for name in ("waits", "steps"))
    return told | {"wait_us": wait_us, "step_us": step_us, "share": wait_us / (wait_us + step_us)}


def measure_all(
    rounds: int, kinds: list[str], lengths: list[int], ranks_of: list[int], sizes: list[str]
) -> dict[str, Any]:
    """All rounds. A contestant that fails is left out with its reason."""
    found: dict[str, Any] = {"machine": describe(), "rounds": rounds, "versions": {}, "left_out": {}, "batches": {}}
    for length in lengths:
        for ranks in ranks_of:
            readings: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
            for number in range(rounds):
                for kind in kinds:
                    print(f"{kind}: windows of {length}, {ranks} ranks, round {number + 1}", flush=True)
                    try:
                        told = measure(kind, length, ranks)
                    except RuntimeError as error:
                        found["left_out"][f"{kind}, {length} steps, {ranks} ranks"] = str(error)
                        continue
                    found["versions"][kind] = told[0]["versions"]
                    readings[kind] += told
            shape = f"{length} steps, {ranks} ranks"
            found["batches"][shape] = {kind: summary(one) for kind, one in readings.items() if one}
    found["steps"] = {}
    for length in lengths:
        for size in sizes:
            print(f"step of {size}, windows of {length}", flush=True)
            process = start("", "step", str(length), size)
            with ended(process):
                found["steps"][f"{length} steps, {size}"] = json.loads(line_of(process))
    return found


def best_way(one: dict[str, Any]) -> float:
    """Microseconds of a batch by the faster way of a contestant."""
    return float(min(one["us"].values()))


def report(found: dict[str, Any]) -> str:
    """The results as markdown."""
    machine = found["machine"]
    lines = ["# A decision transformer and its batches", ""]
    lines += [f"{machine['cpu']}, {machine['cores']} cores, load before the run {machine['load_before']}; "
              f"{found['rounds']} rounds. Written by `make bench-sequence-models`.", ""]  # fmt: skip
    for shape, kinds in found["batches"].items():
        lines += [f"## Batches of {windows.BATCH} windows: {shape}", ""]
        lines += ["| contestant | on request, us | ahead, us | in the loop, us | step of 0.1M, ms | data's share |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        for kind, one in kinds.items():
            cells = [f"{one['us'][way]:,.0f}" if way in one["us"] else "" for way in ("on request", "ahead")]
            if "share" in one:
                cells += [f"{one['wait_us']:,.0f}", f"{one['step_us'] / 1e3:,.1f}", f"{100 * one['share']:.2f}%"]
            else:
                cells += ["", "", "no torch in its environment"]
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
        lines += ["", *ratios(kinds), ""]
    lines += [
        "## The step alone, one thread",
        "",
        "| shape | parameters | ms | data's share, relive | others, best | Reverb |",
    ]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for shape, step in found["steps"].items():
        kinds = batches_of(found, shape.split()[0])
        parts = [100 * us / (us + step["step_us"]) for us in compared(kinds)]
        shares = ["" if part != part else f"{part:.3f}%" for part in parts]
        timed = f"{step['step_us'] / 1e3:,.0f}" + (" (64 times one window)" if step["from_one_window"] else "")
        lines.append(f"| {shape} | {step['parameters']:,} | {timed} | " + " | ".join(shares) + " |")
    lines += ["", "The share is data / (data + step), with nothing drawn while the model computes: an upper bound."]
    for kind, reason in found["left_out"].items():
        lines.append(f"Left out: {kind}: {reason}")
    return "\n".join(lines) + "\n"


def batches_of(found: dict[str, Any], length: str) -> dict[str, Any]:
    """The contestants' batches of a length, by the first number of ranks that was measured. Empty: none was."""
    return next((kinds for shape, kinds in found["batches"].items() if shape.startswith(f"{length} steps,")), {})


def compared(kinds: dict[str, Any]) -> list[float]:
    """Microseconds of a batch: relive's best, the best of the others, Reverb. NaN: not measured."""
    own = [best_way(one) for kind, one in kinds.items() if kind.startswith("relive")]
    others = [best_way(one) for kind, one in kinds.items() if not kind.startswith("relive")]
    reverb = [best_way(kinds["Reverb"])] if "Reverb" in kinds else []
    return [min(group, default=float("nan")) for group in (own, others, reverb)]


def ratios(kinds: dict[str, Any]) -> list[str]:
    """How many times the time of relive each other contestant takes. Empty: only one side was measured."""
    if len({kind.startswith("relive") for kind in kinds}) < 2:
        return []
    own = min((best_way(one), kind) for kind, one in kinds.items() if kind.startswith("relive"))
    said = [f"{kind} {best_way(one) / own[0]:.2f}" for kind, one in kinds.items() if not kind.startswith("relive")]
    return [f"Times the batch of {own[1]} ({own[0]:,.0f} us), where no compute hides the data: {', '.join(said)}."]


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--lengths", type=int, nargs="*", default=list(windows.LENGTHS))
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--report", action="store_true", help="write the tables again, from the JSON")
    options = parser.parse_args()
    path = RESULTS / "sequence_models.json"
    if options.report:
        found = json.loads(path.read_text())
    else:
        problems = peers.set_up_all({ENVIRONMENTS[kind] for kind in options.only if kind in ENVIRONMENTS})
        kinds = [kind for kind in options.only if ENVIRONMENTS.get(kind) not in problems]
        found = measure_all(options.rounds, kinds, options.lengths, options.ranks, options.sizes)
        path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(report(found))
    print(report(found))


if __name__ == "__main__":
    main()
