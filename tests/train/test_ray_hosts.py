"""The end of a run whose other hosts are on nodes of a Ray cluster: without a cluster, by a clock that tests set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="learners are written in torch")
pytest.importorskip("ray", reason="hosts on nodes of a cluster need Ray")

from relive.errors import InvalidConfig  # noqa: E402
from relive.train.config import preset  # noqa: E402
from relive.train.errors import HostGone  # noqa: E402
from relive.train.learners import meeting, ray_hosts  # noqa: E402
from relive.train.learners.ray_hosts import OtherHosts, with_other_hosts  # noqa: E402
from relive.train.run import _hosts_started  # noqa: E402
from relive.train.watching.saves import LAST_SAVE_S  # noqa: E402


class Cluster:
    """Stands for Ray and for its clock: the host `answer` ends at a time, and each look at it takes 50 s."""

    def __init__(self, ends: dict[str, float], answer: str | None) -> None:
        self.now_s, self.ends, self.answer = 0.0, ends, answer
        self.told: list[str] = []

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, owing: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        self.now_s += 50.0
        ended = [one for one in owing if self.ends[one] <= self.now_s][:1]
        return ended, [one for one in owing if one not in ended]

    def get(self, answer: str) -> str | None:
        self.told.append(f"{answer} answers")
        return self.answer

    def kill(self, handle: str, no_restart: bool) -> None:
        self.told.append(f"{handle} is killed")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Cluster, list[str], Any]]:
    """Returns the cluster, the lines that are said, and the block in which the run goes on."""

    def begin(ends_s: float, answer: str | None = None, have_met: bool = True) -> tuple[Cluster, list[str], Any]:
        cluster = Cluster({"host 1": ends_s}, answer)
        others = OtherHosts("group", {"host 1": 1}, ["host 1"])
        others.have_met = have_met
        place = SimpleNamespace(told=nullcontext, count=2, address="here", port=1)
        for name, stand_in in {
            "ray": cluster, "time": cluster, "remove_placement_group": lambda group: cluster.told.append("removed"),
            "explained": lambda call: nullcontext(), "join": lambda address, wait: None,
            "_placed": lambda *told: "group", "_started": lambda *told: (place, others),
        }.items():  # fmt: skip
            monkeypatch.setattr(ray_hosts, name, stand_in)
        said: list[str] = []
        config = preset("dqn", "CartPole-v1", {"topology": "hosts(2)", "cluster.kind": "ray"})
        return cluster, said, with_other_hosts(config, tmp_path, False, False, lambda: False, said.append)

    return begin


def test_the_last_save_of_another_host_has_as_long_as_its_own_rule_gives_it(begun: Any) -> None:
    cluster, said, block = begun(LAST_SAVE_S)
    with block:
        pass
    assert cluster.told == ["host 1 answers", "host 1 is killed", "removed"]
    assert "waiting for the last save of other hosts (1)" in said[1] and len(said) == 2


def test_a_host_that_is_ended_in_its_last_save_is_named_and_ends_the_run_with_an_error(begun: Any) -> None:
    cluster, said, block = begun(float("inf"))
    with pytest.raises(HostGone, match="host 1: it did not end by itself"), block:
        pass
    assert cluster.told == ["host 1 is killed", "removed"]
    assert "host 1 was ended after" in said[2] and "newest save that all hosts have" in said[2]


def test_an_error_of_another_host_is_that_of_the_run_unless_the_first_host_has_its_own(begun: Any) -> None:
    failure = "OSError: no space"
    with pytest.raises(HostGone, match="host 1: OSError: no space"), begun(0.0, failure)[2]:
        pass
    _, said, block = begun(0.0, failure)
    with pytest.raises(ArithmeticError), block:
        raise ArithmeticError
    assert said[-1] == "host 1: OSError: no space"


def test_after_a_second_signal_a_host_that_is_cut_is_named_and_no_error_follows(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, said, block = begun(float("inf"))
    with block:
        monkeypatch.setattr(ray_hosts, "in_a_hurry", lambda: True)
    assert cluster.told == ["host 1 is killed", "removed"] and "host 1 was ended after 0 s" in said[1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArithmeticError])
def test_hosts_that_have_not_met_have_nothing_to_save_and_are_ended_at_once(
    begun: Any, tmp_path: Path, error: type[BaseException]
) -> None:
    """By Ctrl-C, or by an error of the first host, while it waits for them."""
    cluster, said, _ = begun(float("inf"), have_met=False)
    config = preset("dqn", "CartPole-v1", {"topology": "hosts(2)", "cluster.kind": "ray"})
    with pytest.raises(error), ExitStack() as stack:
        with _hosts_started(stack, config, tmp_path, False, False, lambda: False, said.append):
            raise error
    assert cluster.told == ["host 1 is killed", "removed"]
    assert cluster.now_s == 0.0 and len(said) == 1


def test_no_host_is_started_while_torch_still_waits_for_those_of_an_earlier_run(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, said, block = begun(60.0)
    ends = threading.Event()
    call = meeting._Apart(ends.wait)
    ends_s = call.began_s + 300.0
    monkeypatch.setattr(meeting, "_joining", meeting._Joining("here:1, as host 0 of 2", call, ends_s))
    with pytest.raises(InvalidConfig, match=r"here:1.*a wait of \d+ s"), block:
        pass
    assert cluster.told == [] and said == []
    ends.set()
    call.wait(60.0)
    with begun(60.0)[2]:
        assert meeting._joining is None


def test_hosts_that_have_met_are_waited_for(begun: Any, tmp_path: Path) -> None:
    cluster, said, _ = begun(60.0, have_met=False)
    config = preset("dqn", "CartPole-v1", {"topology": "hosts(2)", "cluster.kind": "ray"})
    with ExitStack() as stack:
        with _hosts_started(stack, config, tmp_path, False, False, lambda: False, said.append):
            assert cluster.told == []
        assert cluster.told == []
    assert cluster.told == ["host 1 answers", "host 1 is killed", "removed"]
