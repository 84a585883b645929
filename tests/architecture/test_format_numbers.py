"""The numbers of the region format and of SplitMix64 are written in the core alone; Python asks the core for them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from relive import _core

SOURCE = Path(__file__).resolve().parents[2] / "src" / "relive"
FORMAT, RANDOM = _core.region_format(), _core.random_format()
RANDOM_NUMBERS = {RANDOM[name] for name in ("golden", "first_factor", "second_factor", "permutation_from")}
FORMAT_NUMBERS = {FORMAT[name] for name in ("leaf_bits", "most_uses", "truncated_bit", "discount_bit", "step_mask")}
FORMAT_NUMBERS |= {FORMAT["most_uses"] + 1, FORMAT["generation_shift"], FORMAT["policy_version_at"]}
READERS = [SOURCE / "gpu", SOURCE / "fleet" / "onesided"]  # they read regions by the format alone


def numbers_in(path: Path) -> set[int]:
    literals = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    return {value for value in literals if isinstance(value, int)}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_repeats_a_number_of_the_core(path: Path) -> None:
    mine = numbers_in(path)
    assert not mine & RANDOM_NUMBERS
    if any(path.is_relative_to(folder) for folder in READERS):
        assert not mine & FORMAT_NUMBERS


def test_a_repeated_number_is_seen(tmp_path: Path) -> None:
    copy = tmp_path / "copy.py"
    copy.write_text(f"key = shard << {FORMAT['leaf_bits']} | word * {hex(RANDOM['golden'])}\n")
    assert numbers_in(copy) == {FORMAT["leaf_bits"], RANDOM["golden"]}
