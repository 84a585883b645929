"""Measures TLS against plaintext: large rows, small rows and connects, both sides in turn."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import relive
from benchmarks.door.place import FRAME_BYTES, ServerProcess, client_tls

BATCH = 128  # rows of 28 kB
SMALL = 256
LIMITS = {"large rows": 1 / 0.45, "256 small rows": 1.6, "connect": 4.0}  # the most that TLS may cost, in times


def compared(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Times of each call on both sides; the ratio is the median of the ratios within rounds."""
    found: dict[str, dict[str, list[float]]] = {name: {"plain": [], "tls": []} for name in LIMITS}
    with contextlib.ExitStack() as stack:
        sides = {}
        for side in ("plain", "tls"):
            server = ServerProcess(folder, tls=side == "tls")
            stack.callback(server.close)
            sides[side] = calls_of(folder, server.address, stack)
        for number in range(rounds):
            for side in ("plain", "tls") if number % 2 else ("tls", "plain"):
                for name, call in sides[side].items():
                    found[name][side].append(typical(call, seconds))
    return {name: summary(name, both) for name, both in found.items()}


def calls_of(folder: Path, address: str, stack: contextlib.ExitStack) -> dict[str, Callable[[], Any]]:
    """The measured calls of one server."""
    tls, token = client_tls(folder, address), folder / "honest.token"

    def opened(table: str) -> Any:
        return relive.connect(f"{address}/{table}", tls=tls, token=token)

    frames, small = stack.enter_context(opened("frames")), stack.enter_context(opened("small"))
    return {
        "large rows": lambda: frames.sample(BATCH),
        "256 small rows": lambda: small.sample(SMALL),
        "connect": lambda: opened("small").close(),
    }


def typical(call: Callable[[], Any], seconds: float) -> float:
    """The median of as many calls as fit, in microseconds."""
    for _ in range(3):
        call()
    ends, times = time.perf_counter() + seconds, []
    while time.perf_counter() < ends or len(times) < 10:
        began = time.perf_counter()
        kept = call()
        times.append(1e6 * (time.perf_counter() - began))
    del kept
    return round(statistics.median(times), 1)


def summary(name: str, both: dict[str, list[float]]) -> dict[str, Any]:
    """Medians of the rounds, their spread, and the ratio."""
    ratios = [tls / plain for plain, tls in zip(both["plain"], both["tls"], strict=True)]
    told: dict[str, Any] = {f"{side}_us": statistics.median(times) for side, times in both.items()}
    told |= {"spread_us": {side: [min(times), max(times)] for side, times in both.items()}}
    told |= {"ratio": round(statistics.median(ratios), 2), "at_most": round(LIMITS[name], 2)}
    if name == "large rows":
        told["gb_per_s"] = {s: round(BATCH * FRAME_BYTES / told[f"{s}_us"] / 1e3, 3) for s in both}
    return told
