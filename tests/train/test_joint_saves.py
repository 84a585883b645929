"""Saves of several hosts: every cut at one update, whatever time each host needs to open and to write its save."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")

import relive
from relive.train import preset
from relive.train.watching.checkpoint import Progress, joint_names, save_checkpoint
from relive.train.watching.joint_saves import JointSaves, newest_common
from relive.train.watching.saves import Checkpoints, State


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


# ---- the folder of a host ------------------------------------------------------------------------------------------


def session(run: Path, begins_at: str | None, name: str, saves: Sequence[int]) -> None:
    """A session that goes on from a save of all hosts, and saves after each of these numbers of updates."""
    joint = JointSaves(is_first=True)
    names = joint_names(run, is_first=True)
    joint.session, joint.kept = name, [one for one in names.values() if begins_at is None or one <= names[begins_at]]
    with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 100) as table:
        table.writer().append(a=1)
        for updates in saves:
            checkpoints = Checkpoints(run, preset("dqn", "CartPole-v1", {}), table, print, joint)
            assert checkpoints.finish(lambda now=updates: state(now)) is not None
            checkpoints.close()


def state(num_updates: int) -> State:
    return State({"num_updates": num_updates}, Progress(elapsed_s=float(num_updates)), num_updates)


def test_a_common_save_stays_however_often_hosts_end_before_the_next_one(tmp_path: Path) -> None:
    session(tmp_path, None, "s", [1, 2, 3])
    for turn in range(5):  # another host dies before it has saved anything
        session(tmp_path, "s-2", f"lost{turn}", [4])
        assert list(joint_names(tmp_path, is_first=True)) == [f"lost{turn}-4", "s-2", "s-1"]
    session(tmp_path, "s-2", "t", [5, 6, 7])
    assert list(joint_names(tmp_path, is_first=True)) == ["t-7", "t-6", "t-5"]


def test_a_damaged_save_is_none_that_the_host_has(tmp_path: Path) -> None:
    session(tmp_path, None, "s", [1, 2, 3])
    names = joint_names(tmp_path, is_first=True)
    for damaged, left in (("s-2", ["s-3", "s-1"]), ("s-3", ["s-1"])):
        blob = tmp_path / "save" / "beside" / str(names[damaged]) / "learner"
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        blob.write_bytes(data)
        assert list(joint_names(tmp_path, is_first=True)) == left


def test_a_save_that_is_older_than_the_learner_of_the_first_host_does_not_count(tmp_path: Path) -> None:
    session(tmp_path, None, "s", [1, 2, 3])
    save_checkpoint(tmp_path, {"num_updates": 2}, Progress(elapsed_s=2.5))
    assert list(joint_names(tmp_path, is_first=True)) == ["s-3"]
    save_checkpoint(tmp_path, {"num_updates": 9}, Progress(elapsed_s=9.0))
    assert list(joint_names(tmp_path, is_first=True)) == []
    assert list(joint_names(tmp_path, is_first=False)) == ["s-3", "s-2", "s-1"]
