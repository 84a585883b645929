"""The GPU benchmark's own logic, tiny and by the interpreter; and what it says where there is no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu.tools import torch

gpu = pytest.importorskip("benchmarks.gpu", reason="benchmarks lie beside the tests in the source tree only")

ROOT = Path(__file__).resolve().parents[2]
TINY = gpu.Scale(
    row_bytes=(64, 1024), batch_bytes=2048, pool_bytes=16_384, num_leaves=(500,), num_drawn=20, num_calls=1
)


def test_it_measures_every_way_and_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.timing.LEAST_READINGS", 1)
    monkeypatch.setattr("benchmarks.gpu.WARM_UP", 0)
    values = gpu.measure(torch, "cpu", TINY)
    gpu.save(values, tmp_path)
    saved = json.loads((tmp_path / "gpu.json").read_text())
    assert "interpreter" in saved["card"]
    assert [(row["operation"], row["row_bytes"], row["batch"]) for row in saved["rows"]] == [
        ("zero-copy", 64, 32),
        ("pinned copy", 64, 32),
        ("gather, then copy", 64, 32),
        ("zero-copy", 1024, 2),
        ("pinned copy", 1024, 2),
        ("gather, then copy", 1024, 2),
        ("draw on the device", 0, 20),
        ("draw by the core", 0, 20),
    ]
    assert all(row["median_us"] > 0 for row in saved["rows"])
    assert all(row["gigabytes_per_s"] >= 0 for row in saved["rows"] if row["row_bytes"])
    assert saved["rows"][-1]["num_steps"] == 500
    assert "| zero-copy" in (tmp_path / "gpu.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU: the benchmark would run")
def test_without_a_gpu_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((ROOT / "benchmarks" / "results").iterdir())
    assert gpu.main() == 2
    said = capsys.readouterr()
    assert "no CUDA GPU" in said.err and said.out == ""
    assert sorted((ROOT / "benchmarks" / "results").iterdir()) == before
