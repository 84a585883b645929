"""Topologies: their texts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive.errors import InvalidConfig  # noqa: E402
from relive.train import (  # noqa: E402
    Actors,
    CentralInference,
    DoubleBuffered,
    Inline,
    Learners,
    Topology,
    TrainConfig,
    load_config,
    preset,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inline", Inline()), ("actors", Actors()), ("actors(4)", Actors(4)), ("learners(2, sync)", Learners(2)),
        ("learners(3)", Learners(3, "sync")), (" learners( 2 ,sync ) ", Learners(2)),
        ("central", CentralInference()), ("central(9, 70)", CentralInference(9, 70)), ("double(3)", DoubleBuffered(3)),
        ("double", DoubleBuffered()), ("learners(5, async)", Learners(5, "async")),
        ("learners(2,async)", Learners(2, "async")),
    ],
)  # fmt: skip
def test_a_text_is_a_topology(text: str, value: Topology, tmp_path: Path) -> None:
    assert Topology.parse(text) == value and Topology.parse(str(value)) == value
    config = preset("dqn", "CartPole-v1", {"topology": text, "agent.batch_size": 12})
    assert (
        config.topology == value == preset("dqn", "CartPole-v1", {"topology": value, "agent.batch_size": 12}).topology
    )
    config.save(tmp_path / "config.json")
    assert json.loads((tmp_path / "config.json").read_text())["topology"] == str(value)
    assert TrainConfig.load(tmp_path / "config.json") == config == load_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    "given",
    ["central(8)", "central()", "central(0, 5)", "central(8, sync)", "central(8, -1)", "central(8, 99999999)",
     "double()", "double(0)", "double(2, 3)", "learners(2, 2)", "actors(2, 3)", "central(3, 5)", "", "in line",
     "inline()", "inline(2)", "actors()", "actors(0)", "actors(-1)", "actors(2, sync)", "learners", 3,
     "learners()", "learners(0)", "learners(0, async)", "learners(2, asynch)",
     "learners(async)", "learners(2, sync", "learners(9999999)", None, True, ["a"]],
)  # fmt: skip
def test_what_is_no_topology_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfig):
        preset("dqn", "CartPole-v1", {"topology": given})


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        preset("dqn", "CartPole-v1", {"topology": "learners(3, sync)", "agent.batch_size": 16})
    assert caught.value.what == "agent.batch_size" and "3 learners" in str(caught.value)
    settings = {"topology": "learners(3, sync)", "agent.batch_size": 18, "acting.num_actors": 5}
    assert preset("dqn", "CartPole-v1", settings).num_actors == 5
    assert preset("dqn", "CartPole-v1", {"topology": "actors(3)", "acting.num_actors": 5}).num_actors == 3
    settings = {"topology": "learners(3, async)", "agent.batch_size": 16}
    assert preset("dqn", "CartPole-v1", settings).gradient_staleness == 6, "and each learner has a batch of its own"


def test_environments_that_do_not_go_into_a_batch_or_into_groups_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="num_envs_per_actor = 4") as caught:
        preset("dqn", "CartPole-v1", {"topology": CentralInference(3, 10)})
    assert caught.value.what == "max_batch of the topology"
    with pytest.raises(InvalidConfig, match="num_envs_per_actor"):
        preset("dqn", "CartPole-v1", {"topology": "double", "environment.num_envs_per_actor": 1})
    settings = {"topology": "double(3)", "acting.num_actors": 5, "environment.num_envs_per_actor": 2}
    assert preset("dqn", "CartPole-v1", settings).num_actors == 3
    for wrong in (0, -1, 2**21):
        with pytest.raises(InvalidConfig, match="max_batch"):
            CentralInference(wrong)


@pytest.mark.parametrize("given", [-1, 0.5, "some", True])
def test_a_staleness_that_cannot_be_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfig, match="max_gradient_staleness"):
        preset("dqn", "CartPole-v1", {"learning.max_gradient_staleness": given})


@pytest.mark.parametrize("topology", ["inline", "actors", "learners(2, sync)", "hosts(2)", "central", "double"])
def test_an_option_that_the_topology_does_not_read_is_refused(topology: str) -> None:
    options: dict[str, object] = {"topology": topology, "agent.batch_size": 32}
    with pytest.raises(InvalidConfig, match=r"learning\.max_gradient_staleness.*none where topology = "):
        preset("dqn", "CartPole-v1", {**options, "learning.max_gradient_staleness": 3})
    read = {**options, "topology": "learners(2, async)", "learning.max_gradient_staleness": 3}
    assert preset("dqn", "CartPole-v1", read).gradient_staleness == 3


def test_more_learners_than_cores_are_told_of() -> None:
    lines = [
        preset("dqn", "CartPole-v1", {"topology": topology, "agent.batch_size": 16}).topology.crowding(2)
        for topology in (Inline(), Actors(64), Learners(2), Learners(4), Learners(4, "async"))
    ]
    assert lines[:3] == [None, None, None]
    assert lines[3] is not None and lines[3].startswith("4 learners on 2 cores") and "learners(2, sync)" in lines[3]
    assert lines[4] is not None and lines[4].startswith("4 learners on 2 cores") and "learners(2, async)" in lines[4]
