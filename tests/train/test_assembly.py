"""The parts of a run: which ones a topology returns, and that the environment is described once for all of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
gymnasium = pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from relive.train import preset  # noqa: E402
from relive.train.acting.actor_pool import ActorPool  # noqa: E402
from relive.train.acting.inline import InlineActors  # noqa: E402
from relive.train.assembly import Assembly  # noqa: E402
from relive.train.learners.group import LearnerGroup  # noqa: E402
from relive.train.learners.update_choice import UpdateChoice  # noqa: E402
from relive.train.learners.updates import DrawnUpdates, ServedUpdates  # noqa: E402
from relive.train.parts import Part  # noqa: E402
from relive.train.setup import open_session, prepare  # noqa: E402
from relive.train.watching.checkpoint import Progress  # noqa: E402


@pytest.mark.parametrize(
    ("topology", "acting", "learning", "helper", "asks"),
    [
        ("inline", InlineActors, DrawnUpdates, UpdateChoice, False),
        ("actors(2)", ActorPool, DrawnUpdates, UpdateChoice, False),
        ("learners(2, sync)", ActorPool, DrawnUpdates, LearnerGroup, False),
        ("learners(1, sync)", ActorPool, DrawnUpdates, Part, False),
        ("learners(2, async)", ActorPool, ServedUpdates, None, False),
        ("hosts(1)", ActorPool, DrawnUpdates, Part, False),
        ("central(8, 500)", ActorPool, DrawnUpdates, UpdateChoice, True),
        ("double(2)", ActorPool, DrawnUpdates, UpdateChoice, True),
    ],
)
def test_a_topology_returns_its_parts(
    topology: str, acting: type, learning: type, helper: type | None, asks: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """They are made without a process, and from one description of the environment."""
    made: list[str] = []
    make_vec = gymnasium.make_vec
    monkeypatch.setattr(
        gymnasium, "make_vec", lambda env_id, *a, **named: made.append(env_id) or make_vec(env_id, *a, **named)
    )
    config = preset("dqn", "CartPole-v1", {"topology": topology, "agent.batch_size": 8})
    with ExitStack() as stack:
        session = stack.enter_context(open_session(prepare(config), Progress(), tmp_path / "profile.json"))
        parts = Assembly(session, stack, lambda line: None, lambda way: None)
        assert type(parts.acting) is acting and type(parts.learning) is learning and parts.served is None
        assert (getattr(parts.acting, "_inference", None) is not None) == asks
        if isinstance(parts.learning, DrawnUpdates):
            assert helper is not None and type(parts.learning._helper) is helper
            assert (parts.learning._act is not None) == (acting is InlineActors)
    assert made == ["CartPole-v1"]


def test_the_first_learner_of_several_may_step_the_environments(tmp_path: Path) -> None:
    config = preset("dqn", "CartPole-v1", {"topology": "learners(2, sync)", "acting.inline": True})
    with ExitStack() as stack:
        session = stack.enter_context(open_session(prepare(config), Progress(), tmp_path / "profile.json"))
        parts = Assembly(session, stack, lambda line: None, lambda way: None)
        assert type(parts.acting) is InlineActors and isinstance(parts.learning, DrawnUpdates)
        assert type(parts.learning._helper) is LearnerGroup and parts.learning._act is not None
