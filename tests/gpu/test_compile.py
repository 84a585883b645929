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
KERNELS = {"note_words", "resolve", "recheck", "copy_columns", "chain_swaps", "draw_slots", "take_leaves"}
KERNELS |= {"resolve_across", "fill_rows", "fill_versions", "copy_words"}


pytestmark = pytest.mark.thorough  # a minute of processor, for what changes with the kernels and with Triton alone


@pytest.fixture(scope="module", params=[80, 90])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Compiled for one architecture, in a process without the interpreter, from an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "scripts/compile_kernels.py", "--json", str(request.param)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    made = list(json.loads(done.stdout))
    assert {row["arch"] for row in made} == {request.param}
    return made


def test_every_kernel_becomes_machine_code(rows: list[dict[str, Any]]) -> None:
    assert {row["kernel"] for row in rows} == KERNELS
    assert all(row["is_elf"] and row["cubin_bytes"] > 1000 and row["ptx_bytes"] > 1000 for row in rows)


def test_sums_round_as_the_cores_do(rows: list[dict[str, Any]]) -> None:
    """No float64 product is fused into the sum after it."""
    assert not [row for row in rows if row["fuses_products"]]


def test_large_rows_move_16_bytes_a_lane(rows: list[dict[str, Any]]) -> None:
    copies = [row for row in rows if row["kernel"] == "copy_columns"]
    assert copies and all(row["wide_loads"] > 0 for row in copies)


def test_words_and_rows_are_read_by_volatile_loads_alone(rows: list[dict[str, Any]]) -> None:
    """No load from the region is a weak one that hopes for fresh bytes; the descent through the tree is cached."""
    for row in rows:
        assert (row["hinted_loads"], row["other_loads"]) == (0, 0), row["kernel"]
        assert (row["volatile_loads"] > 0) == (row["kernel"] != "chain_swaps"), row["kernel"]
        assert (row["cached_loads"] > 0) == (row["kernel"] == "draw_slots"), row["kernel"]


def test_tables_of_every_layout_share_what_is_compiled(rows: list[dict[str, Any]]) -> None:
    """Another capacity, page length, stack, n-step, other columns, other items: nothing is compiled again.

    Sixteen compilations an architecture: eleven kernels, of which three have two variants, and `resolve` has four.
    """
    assert not any(row["num_specialized"] for row in rows), "nor is anything for a batch of another size"
    variants = {table: {row["variant"] for row in rows if row["table"] == table} for table in ("large", "small")}
    assert variants["large"] == variants["small"] and len(variants["large"]) == 16
