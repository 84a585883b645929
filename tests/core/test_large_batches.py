"""Batches that no cache holds are written past the caches: every byte is as gathered a few rows at a time."""

from __future__ import annotations

import numpy as np
import pytest

from core.tools import last_of, make_core, make_index
from relive.core.request import DrawRequest

NUM_STEPS = 400
BATCH = 2200


def refuse(name: str, value: object, leading: tuple[int, ...]) -> None:
    raise AssertionError(name)


@pytest.mark.forms(3)
@pytest.mark.core_alone
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("num_bytes", [4096, 2049, 7061])
def test_a_batch_too_large_for_caches_is_the_same_batch(num_bytes: int, stack: int) -> None:
    columns = [("picture", "|u1", (num_bytes,), "state"), ("action", "<i8", (), "step")]
    index = make_index(stack={"picture": stack} if stack > 1 else {})
    table = make_core(columns=columns, indexes=[index], capacity=NUM_STEPS)
    pictures = np.random.default_rng(num_bytes).integers(0, 256, (NUM_STEPS + 1, num_bytes), np.uint8)
    writer = table.open_writer(1, True, refuse)
    step = {"picture": pictures, "action": np.arange(NUM_STEPS), "truncated": last_of(NUM_STEPS)}
    writer.extend({**step, "terminated": np.zeros(NUM_STEPS, bool)}, None, None, 10.0)
    names = ["picture", "next_picture", "action"]
    plan = table.select(0, names)
    many, keys, _, _ = table.draw(DrawRequest(0, BATCH, plan), 1.0)
    assert many[0].nbytes >= 4 * 2**20
    for begin in range(0, BATCH, 100):
        few, present = table.gather(plan, keys[begin : begin + 100], None)
        assert present.all()
        for name, large, small in zip(names, many, few, strict=True):
            np.testing.assert_array_equal(large[begin : begin + 100], small, err_msg=name)
    newest = many[0] if stack == 1 else many[0][:, -1]
    np.testing.assert_array_equal(newest, pictures[many[2]])
    again, present = table.gather(plan, keys, None)
    assert present.all()
    np.testing.assert_array_equal(again[1], many[1])
    writer.close()
    table.close()
