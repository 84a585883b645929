"""Every kernel compiles to machine code for A100 and H100 on a machine that has neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="relive.gpu needs triton, which has no wheel for this Python")

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {"note_words", "follow_links", "walk_windows", "recheck", "copy_rows", "fill_derived", "draw_slots"}
KERNELS |= {"take_leaves"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Compiled in a process without the interpreter, from an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "scripts/compile_kernels.py", "--json", "80", "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("arch", [80, 90])
def test_every_kernel_becomes_machine_code(rows: list[dict[str, Any]], arch: int) -> None:
    mine = [row for row in rows if row["arch"] == arch]
    assert {row["kernel"] for row in mine} == KERNELS
    assert all(row["is_elf"] and row["cubin_bytes"] > 1000 and row["ptx_bytes"] > 1000 for row in mine)


def test_sums_round_as_the_cores_do(rows: list[dict[str, Any]]) -> None:
    """No float64 product is fused into the sum after it."""
    assert not [row for row in rows if row["fuses_products"]]


def test_large_rows_move_16_bytes_a_lane(rows: list[dict[str, Any]]) -> None:
    for column in ("7056 B x 4", "7056 B x 4 next", "1048576 B x 1"):
        assert all(row["vector_loads"] > 0 for row in rows if row["column"] == column)
        assert [row["arch"] for row in rows if row["column"] == column] == [80, 90]


def test_page_words_are_read_past_the_caches(rows: list[dict[str, Any]]) -> None:
    for kernel in ("note_words", "follow_links", "walk_windows", "recheck", "take_leaves"):
        assert all(row["volatile_loads"] > 0 for row in rows if row["kernel"] == kernel), kernel
