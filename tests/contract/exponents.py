"""Rows of the table of meanings that speak of exponents that change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from processes.tools import eventually

import relive
from contract.tools import MakeTable, Suite, plain_spec, prioritized, transitions, write_steps
from relive import errors
from relive.core.request import DrawRequest

PRIORITIES = np.array([0.0, 1e-6, 0.3, 1.0, 2.5, 7.0, 1e3, 3e7], np.float32)


def masses(table: Any, keys: np.ndarray) -> dict[int, float]:
    """Probability by action, of what is drawn at all."""
    batch = table.sample(4000)
    return dict(zip(batch["action"].tolist(), batch.probabilities.tolist(), strict=True))


class ExponentsSuite(Suite):
    def test_changing_exponents(self, make_table: MakeTable) -> None:
        """All masses are those of a table made with the exponent, to the last bit, however often it changed before."""
        table = make_table(plain_spec(), 100, prioritized(0.6))
        assert table.priority_exponent() == 0.6
        with table.writer() as writer:
            keys = write_steps(writer, 0, len(PRIORITIES))
        table.update_priorities(keys, PRIORITIES)
        for exponent in (0.7, 1.0, 0.1, 0.4, 2.0, 0.8, 0.3):
            table.set_priority_exponent(exponent)
            assert table.priority_exponent() == exponent
            expected = PRIORITIES.astype(np.float64) ** exponent
            drawn = masses(table, keys)
            for action, probability in drawn.items():
                assert probability == pytest.approx(expected[action] / expected.sum(), rel=1e-7)
            assert 0 not in drawn
            table.check()
        with table.writer() as writer:  # with the largest priority ever, by the new exponent
            write_steps(writer, 8, 1)
        assert masses(table, keys)[8] == pytest.approx(expected[7] / (expected.sum() + expected[7]), rel=1e-7)
        assert table.config.index["default"].sampler == relive.Prioritized(0.6)

    def test_from_and_to_nothing(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized(1.0))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
        table.update_priorities(keys, [0.0, 1.0, 2.0, 3.0])
        table.delete(keys[3:])
        table.set_priority_exponent(0.0)
        assert sorted(masses(table, keys).items()) == [(0, 1 / 3), (1, 1 / 3), (2, 1 / 3)]
        table.check()
        table.set_priority_exponent(0)
        with pytest.raises(errors.InvalidConfig, match="not kept"):
            table.set_priority_exponent(0.5)
        assert table.priority_exponent() == 0.0

    def test_bad_exponents(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, {"a": prioritized(0.5), "b": transitions()})
        bad: tuple[Any, ...] = (-0.1, float("nan"), float("inf"), "1", None, True, [1.0, 2.0])
        for exponent in bad:
            with pytest.raises(errors.InvalidConfig):
                table.set_priority_exponent(exponent)
        for index in ("b", "c", 3):
            with pytest.raises(errors.InvalidConfig):
                table.set_priority_exponent(0.5, index=index)  # type: ignore[arg-type]
            with pytest.raises(errors.InvalidConfig):
                table.priority_exponent(index)  # type: ignore[arg-type]
        assert table.priority_exponent("a") == 0.5
        table.set_priority_exponent(0.25, index="a")
        assert table.priority_exponent() == 0.25

    def test_uses_given_back_have_the_new_mass(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized(1.0, max_times_sampled=1))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
        table.update_priorities(keys, [1.0, 4.0, 9.0])
        held = table.held_draws()
        drawn = held.draw(DrawRequest(0, 3), 1.0)
        assert table.num_items() == 0
        table.set_priority_exponent(0.5)
        drawn.hold.give_back()
        held.close()
        assert eventually(lambda: table.num_items() == 3)  # owners elsewhere are told, and not waited for
        draw = table.draw(3)
        mass = dict(zip(keys.tolist(), (1.0, 2.0, 3.0), strict=True))
        expected = [mass[key] / 6 for key in draw.item_keys.tolist()]
        # An item that is drawn after others are used up has its share of the rest: at least the last one.
        are_of_all = np.isclose(draw.probabilities, expected, rtol=1e-7, atol=0.0)
        assert are_of_all.any() and (draw.probabilities >= np.array(expected) * (1 - 1e-7)).all()
        table.check()
