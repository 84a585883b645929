"""Compiles every kernel of relive.gpu for GPUs that need not be here, and says what came of it.

usage: python scripts/compile_kernels.py [--json] [80 90 ...]        compute capabilities: 80 is an A100, 90 an H100

Ends with status 1 where something does not compile, is empty, or would round otherwise than the core does. The table it
compiles for has packed columns, a stack of frames and rows of 1 MiB, and a return over three steps.
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
from relive.gpu.compile_check import Compiled, compile_launch, launches_of  # noqa: E402

ARCHITECTURES = (80, 90)
DERIVED = ("discount", "terminated", "truncated", "episode_step", "lane", "staleness")
FUSED = "fma.rn.f64"


@dataclasses.dataclass
class Row:
    """What one compiled variant shows."""

    kernel: str
    arch: int
    column: str
    cubin_bytes: int
    ptx_bytes: int
    is_elf: bool
    fuses_products: bool  # a sum that is not rounded as the core's
    vector_loads: int  # of 16 bytes, fetched anew
    volatile_loads: int
    seconds: float


def make_table() -> relive.Table:
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((84, 84), "uint8", kind="state"),
            "position": relive.ArraySpec((3,), "float32", kind="state"),
            "action": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32"),
            "core": relive.ArraySpec((1 << 18,), "float32", kind="start"),
        }
    )
    items = relive.Transitions(n_step=3, gamma=0.99, stack={"observation": 4})
    return relive.Table(spec, 20_000, {"by_priority": relive.Index(items, relive.Prioritized())}, max_lanes=8)


def row_of(made: Compiled, column: str, seconds: float) -> Row:
    return Row(
        kernel=made.name,
        arch=made.arch,
        column=column,
        cubin_bytes=len(made.cubin),
        ptx_bytes=len(made.ptx),
        is_elf=made.cubin[:4] == b"\x7fELF",
        fuses_products=FUSED in made.ptx,
        vector_loads=made.ptx.count("ld.global.cv.v2.b64"),
        volatile_loads=made.ptx.count("ld.volatile.global"),
        seconds=round(seconds, 2),
    )


def compile_all(architectures: list[int]) -> list[Row]:
    rows = []
    with make_table() as table:
        states = [f"next_{name}" for name in table.spec.state_columns]
        for launch in launches_of(table, [*table.spec.columns, *states, *DERIVED]):
            copy = launch.constants.get("COLUMN")
            column = "" if copy is None else f"{copy.num_bytes} B x {copy.stack}" + (" next" if copy.is_next else "")
            for arch in architectures:
                start = time.monotonic()
                rows.append(row_of(compile_launch(launch, arch), column, time.monotonic() - start))
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
                f"{row.kernel:14s} sm_{row.arch}  {row.column:16s} cubin {row.cubin_bytes:6d} B, "
                f"{row.vector_loads} loads of 16 bytes, {row.volatile_loads} volatile ({row.seconds} s)"
            )
    bad = [row for row in rows if not row.is_elf or row.ptx_bytes == 0 or row.fuses_products]
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
