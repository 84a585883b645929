"""The key that tells draws of the same columns apart."""

import pytest

from relive.core.request import DrawRequest


def test_every_field_but_the_columns_tells_draws_apart() -> None:
    draw = DrawRequest(1, 4, "columns", "condition")
    assert draw._replace(selection="others").all_but_columns == draw.all_but_columns
    for name in set(DrawRequest._fields) - {"selection"}:
        assert draw._replace(**{name: 7}).all_but_columns != draw.all_but_columns
    assert draw.keys_only == draw._replace(selection=None)


@pytest.mark.parametrize("condition", [None, "reward > 0"])
def test_a_draw_of_keys_alone_is_itself(condition: str | None) -> None:
    draw = DrawRequest(0, 4, None, condition)
    assert draw.keys_only is draw
