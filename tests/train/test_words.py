"""Bells and rows of gradients: what is said is heard, in order; the bits that everyone gets; races made one order."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")

from relive._core import await_rings, ring  # noqa: E402
from relive.train.learners.gradient_rows import Bells, GradientRows  # noqa: E402
from relive.train.memory.shared_block import SharedBlock  # noqa: E402


def two_of(kind: type, *sizes: int) -> tuple[SharedBlock, list]:
    """A block, and what two processes make of it."""
    block = SharedBlock(kind.num_bytes(*sizes))
    return block, [kind(block, *sizes) for _ in range(2)]


def test_words_are_heard_once_each_with_what_was_written_before_them() -> None:
    _, (leader, follower) = two_of(Bells, 3)
    assert follower.hear(0, 0.0, 0.0) is None
    leader.counting = [0, 2]
    leader.ring(0, 7)
    assert follower.hear(0, 0.0, 0.0) == 7 and follower.counting == [0, 2]
    assert follower.hear(0, 0.001, 0.01) is None, "once"
    follower.ring(2, 2**32 - 1)
    assert leader.hear(1, 0.0, 0.0) is None and leader.hear(2, 0.0, 0.0) == 2**32 - 1


@pytest.mark.parametrize("spin_s", [0.0, 10.0])
def test_a_sleeper_is_woken_and_a_spinner_sees(spin_s: float) -> None:
    _, (leader, follower) = two_of(Bells, 2)
    heard: list[int | None] = []

    def follow() -> None:
        for _ in range(200):
            heard.append(follower.hear(0, spin_s, 30.0))
            follower.ring(1)

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(200):
        leader.ring(0, number)
        assert leader.hear(1, spin_s, 30.0) == 0
    thread.join()
    assert heard == list(range(200))


def test_a_count_goes_round() -> None:
    bell = np.zeros(2, np.uint32)
    bell[0] = 2**32 - 1
    assert await_rings(bell, 2**32 - 1, 0.0, 0.0) and not await_rings(bell, 0, 0.0, 0.001)
    ring(bell)
    assert bell[0] == 0 and await_rings(bell, 0, 0.0, 0.0)


def test_what_is_no_bell_is_refused() -> None:
    words = np.zeros((2, 2), np.uint32)
    frozen = np.zeros(2, np.uint32)
    frozen.setflags(write=False)
    apart = np.zeros(4, np.uint32)[::2]
    for given in ("bell", [0, 0], np.zeros(2, np.int64), np.zeros(3, np.uint32), words, apart, frozen):
        with pytest.raises(ValueError, match="uint32"):
            ring(given)
        with pytest.raises(ValueError, match="uint32"):
            await_rings(given, 0, 0.0, 0.0)


def test_everyone_gets_the_same_mean_of_those_who_count() -> None:
    _, rows = two_of(GradientRows, 3, 8)
    gradients = [torch.randn(5, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    rows[0].put(0, gradients[0])
    rows[1].put(2, gradients[2])
    means = [torch.zeros(5), torch.zeros(5)]
    for mine, mean in zip(rows, means, strict=True):
        mine.mean([0, 2], mean)
    assert torch.equal(means[0], means[1])
    torch.testing.assert_close(means[0], (gradients[0] + gradients[2]) / 2)
    alone = torch.zeros(5)
    rows[0].mean([2], alone)
    assert torch.equal(alone, gradients[2])


def test_who_is_quick_does_not_disturb_who_still_adds() -> None:
    """The next round's row is another one: one learner has put its next gradient before the other adds this round."""
    _, (quick, slow) = two_of(GradientRows, 2, 4)
    for number in range(1, 4):
        quick.put(0, torch.full((4,), 2.0 * number))
        slow.put(1, torch.full((4,), 4.0 * number))
        mean, late = torch.zeros(4), torch.zeros(4)
        quick.mean([0, 1], mean)
        quick.put(0, torch.full((4,), 99.0))
        slow.mean([0, 1], late)
        assert torch.equal(mean, torch.full((4,), 3.0 * number)) and torch.equal(late, mean)
        quick._current ^= 1  # that round was only begun for the race's sake
