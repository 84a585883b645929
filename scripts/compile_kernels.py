"""Compiles every kernel of relive.gpu without a GPU, and prints facts of the compiled code.

usage: python scripts/compile_kernels.py [--json] [80 90 ...]        compute capabilities: 80 is an A100, 90 an H100

The exit status is 1 if a kernel does not compile, has no code, rounds differently from the core, or reads words or rows
by loads that are not volatile. The script compiles for two tables that share only the format. The first has packed
columns, a stack of frames, rows of 1 MiB, and a return over three steps. The second is small and has no states.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time

os.environ.pop("TRITON_INTERPRET", None)

import relive  # noqa: E402
from relive.gpu.compile_check import Compiled, compile_launch, launches_of, region_loads  # noqa: E402

ARCHITECTURES = (80, 90)
DERIVED = ("discount", "terminated", "truncated", "episode_step", "lane", "staleness")
FUSED = "fma.rn.f64"


@dataclasses.dataclass
class Row:
    """The facts of one compiled launch."""

    kernel: str
    arch: int
    table: str
    variant: str  # of the compilation; launches that share a compilation have the same variant
    num_specialized: int  # parameters whose values would cause another compilation
    cubin_bytes: int
    ptx_bytes: int
    is_elf: bool
    fuses_products: bool  # whether a sum is rounded differently from the core's
    hinted_loads: int  # weak loads with a hint to fetch fresh bytes
    volatile_loads: int  # from the region
    wide_loads: int  # volatile loads that move 16 bytes
    cached_loads: int  # from the region, cached on purpose
    other_loads: int  # from the region, neither volatile nor cached on purpose
    seconds: float


def make_tables() -> dict[str, relive.Table]:
    items = relive.Transitions(n_step=3, gamma=0.99, stack={"observation": 4})
    spec = {
        "observation": relive.ArraySpec((84, 84), "uint8", kind="state"),
        "position": relive.ArraySpec((3,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
        "core": relive.ArraySpec((1 << 18,), "float32", kind="start"),
    }
    large = {
        "by_priority": relive.Index(items, relive.Prioritized()),
        "windows": relive.Index(relive.Sequences(8, burn_in=3, bootstrap=1, stack={"observation": 4})),
        "crossing": relive.Index(relive.Sequences(8, burn_in=3, at_end="cross")),
    }
    episodes = {
        "steps": relive.Index(relive.Transitions(n_step=5)),
        "whole": relive.Index(relive.Episodes(20)),
        "crossing": relive.Index(relive.Sequences(5, at_end="cross", time_major=True)),
    }
    small = relive.StepSpec({"token": relive.ArraySpec((5,), "int16"), "reward": relive.ArraySpec((), "float64")})
    return {
        "large": relive.Table(relive.StepSpec(spec), 20_000, large, max_lanes=8),
        "small": relive.Table(small, 1000, episodes, max_lanes=1),
    }


def row_of(made: Compiled, table: str, num_specialized: int, seconds: float) -> Row:
    loads = region_loads(made)
    volatile = [load for load in loads if load.startswith("ld.volatile.global")]
    cached = [load for load in loads if load.startswith("ld.global.ca.")]
    return Row(
        kernel=made.name,
        arch=made.arch,
        table=table,
        variant=made.variant,
        num_specialized=num_specialized,
        cubin_bytes=len(made.cubin),
        ptx_bytes=len(made.ptx),
        is_elf=made.cubin[:4] == b"\x7fELF",
        fuses_products=FUSED in made.ptx,
        hinted_loads=made.ptx.count("ld.global.cv"),
        volatile_loads=len(volatile),
        wide_loads=volatile.count("ld.volatile.global.v2.b64"),
        cached_loads=len(cached),
        other_loads=len(loads) - len(volatile) - len(cached),
        seconds=round(seconds, 2),
    )


def compile_all(architectures: list[int]) -> list[Row]:
    rows = []
    for name, table in make_tables().items():
        with table:
            states = [f"next_{column}" for column in table.spec.state_columns]
            for launch in launches_of(table, [*table.spec.columns, *states, *DERIVED]):
                for arch in architectures:
                    start = time.monotonic()
                    made = compile_launch(launch, arch)
                    rows.append(row_of(made, name, launch.num_specialized, time.monotonic() - start))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Compiles every kernel of relive.gpu without a GPU.")
    parser.add_argument("architectures", nargs="*", type=int, default=list(ARCHITECTURES))
    parser.add_argument("--json", action="store_true", help="one list of objects instead of a table")
    arguments = parser.parse_args()
    rows = compile_all(arguments.architectures)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        for row in rows:
            print(
                f"{row.kernel:13s} sm_{row.arch}  {row.table}  {row.variant[:8]}  cubin {row.cubin_bytes:6d} B, loads "
                f"from the region: {row.volatile_loads} volatile ({row.wide_loads} of 16 bytes), {row.cached_loads} "
                f"cached, {row.other_loads} others ({row.seconds} s)"
            )
    bad = [row for row in rows if not row.is_elf or row.ptx_bytes == 0 or row.fuses_products]
    bad += [row for row in rows if row.other_loads or row.hinted_loads]
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
