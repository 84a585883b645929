"""A served table as a dataset of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
import relive.service

torch = pytest.importorskip("torch", reason="torch is not installed here")


def test_a_remote_table_loads_in_workers_and_says_that_it_draws_anew() -> None:
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    table = relive.Table(spec, 100, timeout_s=30.0)
    with table.writer() as writer:
        writer.extend(action=np.arange(50), truncated=True)
    with relive.service.serve({"one": table}, "grpc://127.0.0.1:0") as server:
        with relive.connect(server.address + "/one") as remote:
            loader = torch.utils.data.DataLoader(
                relive.loader(remote, 4), batch_size=None, num_workers=2, multiprocessing_context="spawn"
            )
            batches: Any = iter(loader)
            for _ in range(5):
                batch = next(batches)
                assert batch["action"].shape == (4,) and (batch["item_keys"] >= 0).all()
            del batches
            again = relive.loader(remote, 4)
            again.load_state_dict(again.state_dict())
            assert again.restored == "redrawn" and next(iter(again))["num_live_items"] == 50
