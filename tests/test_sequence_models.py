"""benchmarks.sequence_models: a part of its contestants or ranks is reported too, and a silent process is ended."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from benchmarks import sequence_models

MACHINE = {"cpu": "a processor", "cores": 2, "load_before": 0.1}


def found(kinds: list[str], ranks: list[int]) -> dict[str, Any]:
    """Results as a measurement of these contestants and numbers of ranks has them."""
    step = {"step_us": 5_000.0, "parameters": 100, "from_one_window": False}
    batches = {f"20 steps, {number} ranks": {kind: {"us": {"ahead": 50.0}} for kind in kinds} for number in ranks}
    return {"machine": MACHINE, "rounds": 1, "left_out": {}, "batches": batches, "steps": {"20 steps, 0.1M": step}}


@pytest.mark.parametrize("ranks", [[1], [2], [1, 2]])
@pytest.mark.parametrize("kinds", [["Reverb"], ["relive, one table"], ["memory map", "TorchRL"], []])
def test_a_part_of_the_measurement_is_reported(kinds: list[str], ranks: list[int]) -> None:
    text = sequence_models.report(found(kinds, ranks))
    for kind in kinds:
        assert f"| {kind} |" in text
    assert "| 20 steps, 0.1M | 100 |" in text


def test_no_batches_are_reported_without_a_number_of_ranks() -> None:
    assert "| 20 steps, 0.1M | 100 |" in sequence_models.report(found([], []))


def test_a_process_that_does_not_answer_is_ended_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_models, "LIMIT_S", 0.1)
    silent = [sys.executable, "-c", "import signal; signal.pause()"]
    process = subprocess.Popen(silent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(RuntimeError, match="no answer within 0.1 s"), sequence_models.ended(process):
        sequence_models.line_of(process)
    assert process.poll() is not None
