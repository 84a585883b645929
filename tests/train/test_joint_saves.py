"""Saves of several hosts: every cut at one update, whatever time each host needs to open and to write its save."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="training needs torch")

from relive.train.watching.joint_saves import JointSaves, newest_common


class Host:
    """A host whose saves take a random number of updates to open and to write."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.joint, self.rng = JointSaves(is_first=number == 0), rng
        self.left: int | None = None  # updates until the save is open, or written
        self.is_cut = False
        self.cuts: list[int] = []
        self.written: list[int] = []

    def look(self, is_due: bool) -> None:
        if self.left is None:
            if self.joint.begins(is_due):
                self.left, self.is_cut = self.rng.randrange(6), False
            return
        self.left = max(0, self.left - 1)
        if self.left == 0 and not self.is_cut:
            self.joint.can_cut(self._cut)
        elif self.left == 0:
            self.written.append(self.cuts[-1])
            self.left = None

    def _cut(self) -> None:
        self.cuts.append(self.update)
        self.is_cut, self.left = True, self.rng.randrange(6)


@pytest.mark.parametrize("seed", range(20))
def test_all_hosts_cut_at_one_update(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [Host(number, rng) for number in range(rng.choice((2, 3, 5)))]
    for update in range(400):
        for host in hosts:
            host.update = update
            if rng.random() < 0.7:  # the look is made now and then
                host.look(is_due=rng.random() < 0.3)
        words = [host.joint.word() for host in hosts]
        largest = [max(column) for column in zip(*words, strict=True)]
        for host in hosts:
            host.joint.hear(*largest)
        assert len({tuple(host.cuts) for host in hosts}) == 1
        common = min(len(host.written) for host in hosts)
        assert all(len(host.cuts) <= common + 1 for host in hosts), "the save before is complete on all of them"
    assert len(hosts[0].cuts) > 5


def test_the_newest_name_that_all_have() -> None:
    assert newest_common([["c", "b", "a"], ["b", "a"], ["d", "b", "a"]]) == "b"
    assert newest_common([["c"], ["b"]]) is None and newest_common([[], ["b"]]) is None
