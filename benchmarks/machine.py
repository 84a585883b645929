"""Describes the machine on which figures are taken."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> dict[str, str | int | float]:
    """Processor, cores, caches, memory, kernel and load of this machine."""
    cpu = _fields("/proc/cpuinfo")
    memory = _fields("/proc/meminfo")
    usage = os.statvfs("/dev/shm")
    return {
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cpu_family_model": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)),
        "cache_per_core": cpu.get("cache size", "unknown"),
        "memory_gb": round(int(memory.get("MemTotal", "0 kB").split()[0]) / 1e6, 1),
        "dev_shm_gb": round(usage.f_blocks * usage.f_frsize / 1e9, 1),
        "kernel": platform.release(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _fields(path: str) -> dict[str, str]:
    """The first value of each `name : value` line."""
    found: dict[str, str] = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
