"""Messages and errors of the service, without a network."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import test_errors

from relive import errors
from relive.config.spec import ArraySpec, StepSpec
from relive.service.wire import framing
from relive.service.wire.packing import PackedArray, Packing


def test_a_message_comes_back_as_it_went() -> None:
    for size in range(0, 40, 7):
        body = np.arange(size, dtype=np.uint8)
        header, back = framing.decode(framing.encode({"op": "x" * size, "n": size}, body.tobytes()[:3], body[3:]))
        assert header == {"op": "x" * size, "n": size} and back.tolist() == body.tolist()


@pytest.mark.parametrize("error", test_errors.EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_cross_with_class_fields_and_sentence(error: errors.ReliveError) -> None:
    header, _ = framing.decode(framing.encode({"error": framing.error_to(error)}))
    back = framing.error_from(header["error"])
    assert type(back) is type(error)
    assert repr(vars(back)) == repr(vars(error)) and str(back) == str(error)


def test_foreign_errors_become_a_message() -> None:
    back = framing.error_from(framing.error_to(IndexError("lane 7 of 2")))
    assert isinstance(back, errors.BadMessage) and "lane 7 of 2" in str(back)
    assert isinstance(framing.error_from({"type": "NewerError", "fields": {"what": 1}}), errors.ReliveError)
    assert isinstance(framing.error_from(None), errors.BadMessage)


def test_arrays_fill_a_body_exactly() -> None:
    body = np.arange(24, dtype=np.uint8)
    first, second = framing.arrays_of(body[3:23], (np.float32, (2,)), (np.uint8, (3, 4)))
    assert first.flags.aligned and second.shape == (3, 4)
    for wanted in ([(np.float32, (7,))], [(np.int64, (2**60,))], []):
        with pytest.raises(errors.BadMessage):
            framing.arrays_of(body, *wanted)
    with pytest.raises(errors.BadMessage):
        framing.arrays_of(body, (np.bool_, (24,)))


def test_packing_is_where_arrays_are() -> None:
    packing = Packing(
        [
            PackedArray("a", np.dtype("f4"), (3,)),
            PackedArray("b", np.dtype("u1"), ()),
            PackedArray("c", np.dtype("i8"), ()),
        ]
    )
    block = np.zeros(packing.num_bytes(5), np.uint8)
    a, b, c = packing.arrays(block, 5)
    assert (a.shape, b.shape, c.shape) == ((5, 3), (5,), (5,)) and packing.num_bytes(5) == 64 + 64 + 64
    c[:] = -1
    assert block[128:168].tolist() == [255] * 40
    assert packing.lies_in_one_block([a, b, c], 5) and not packing.lies_in_one_block([a, c, b], 5)
    assert packing.item_bytes(0) == 12 + 1 + 8


def test_rows_are_counted_from_their_header_alone() -> None:
    from relive.service.wire.rows import RowLayout

    spec = StepSpec({"o": ArraySpec((2,), "float32", kind="state"), "r": ArraySpec((), "float32")})
    layout = RowLayout(spec, 3)
    op = {"op": "extend", "rows": 4, "states": 5, "lanes": 2, "names": ["o", "r", "priority"]}
    assert layout.num_bytes(op) == 2 * 4 + 5 * 2 * 8 + 4 * 2 * 4 + 4 * 2 * 8
    for change in ({"rows": -1}, {"rows": True}, {"states": 6}, {"lanes": 4}, {"names": ["o", "o"]}, {"names": ["x"]}):
        with pytest.raises(errors.BadMessage):
            layout.num_bytes(op | change)
