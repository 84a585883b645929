"""The GPU benchmark's own logic, tiny and by the interpreter; and what it says where there is no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu.tools import DEVICE, torch

program = pytest.importorskip("benchmarks.gpu.__main__", reason="benchmarks lie beside the tests in the source tree")

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
WAYS = ["zero-copy", "pinned copy", "gather, then copy", "table in device memory", "torch index in device memory"]
KINDS = ["transitions", "Atari stacks", "windows"]


@pytest.mark.thorough
def test_it_measures_every_way_and_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu.device import SMALL

    monkeypatch.setattr("benchmarks.timing.LEAST_READINGS", 1)
    monkeypatch.setattr("benchmarks.gpu.device.WARM_UP", 0)
    values = program.measure(torch, DEVICE, SMALL)
    program.save(values, tmp_path)
    saved = json.loads((tmp_path / "gpu.json").read_text())
    rows = saved["rows"]
    assert ("interpreter" in saved["card"]) == (DEVICE == "cpu")
    assert [(row["operation"], row["row_bytes"], row["batch"]) for row in rows if "row_bytes" in row] == [
        *((way, 64, 32) for way in WAYS),
        *((way, 1024, 2) for way in WAYS),
    ]
    operations = {row["operation"] for row in rows}
    # A frame that two stacks of an item share counts once; so does a state between two steps of a window.
    distinct = {row["operation"]: row["distinct_bytes"] for row in rows if "distinct_bytes" in row}
    frame, others, steps = 84 * 84, 8 + 4, SMALL.window
    assert distinct["gather of Atari stacks"] == SMALL.batches[0] * (5 * frame + others)
    assert distinct["gather of windows"] == SMALL.windows * ((steps + 1) * frame + steps * others)
    assert {f"sample of {kind}" for kind in KINDS} | {"draw on the device", "draw by the core"} <= operations
    assert {"update of priorities from the device", "torch ring buffer in device memory"} <= operations
    assert all(row["median_us"] > 0 for row in rows)
    assert [row["num_steps"] for row in rows if row["operation"].startswith("draw")] == [500, 500]
    assert "| zero-copy" in (tmp_path / "gpu.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU: the benchmark would run")
def test_without_a_gpu_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(RESULTS.iterdir())
    assert program.main([]) == 2
    said = capsys.readouterr()
    assert "no CUDA GPU" in said.err and said.out == ""
    assert sorted(RESULTS.iterdir()) == before
