"""The examples that play MinAtar run, learn, store bool observations, and continue. `make curves` has the returns."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import relive.checkpoint
from examples.cases import MINATAR_CASES

for _module in ("torch", "gymnasium", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")

needs_minatar = pytest.mark.skipif(
    importlib.util.find_spec("minatar") is None, reason="MinAtar is missing: pip install '.[examples]'"
)


@needs_minatar
@pytest.mark.parametrize("case", MINATAR_CASES)
def test_an_example_runs_and_continues_on_breakout(case: str, tmp_path: Path) -> None:
    name, *arguments = MINATAR_CASES[case].split()
    options = ["--env", "MinAtar/Breakout-v1", *arguments, "--no-bar", "--run-dir", str(tmp_path)]
    result = importlib.import_module(name).main(options)
    print(f"{case}: {result.steps} steps, {result.seconds:.1f} s")
    assert result.ending == "steps" and len(result.curve) == 1 and 0.0 <= result.random_return < 3.0
    saved = relive.checkpoint.load(tmp_path / "save")
    spec = saved.table.spec.columns["observation"]
    assert spec.dtype == np.dtype(bool) and spec.shape == (10, 10, 4)
    first = saved.learner["learner"]["optimizer"]["state"][0]["step"]
    assert first > 0, "no update"
    saved.table.close()

    further = importlib.import_module(name).main([*options, "--resume", "--steps", str(result.steps + 64)])
    assert further.steps >= result.steps + 64 and further.curve[:1] == result.curve
    saved = relive.checkpoint.load(tmp_path / "save")
    assert saved.learner["learner"]["optimizer"]["state"][0]["step"] > first, "the continued run makes no update"
    saved.table.close()


@needs_minatar
def test_ape_x_runs_and_continues_on_breakout(tmp_path: Path) -> None:
    """In one process, with its save of shards."""
    main = importlib.import_module("ape_x").main
    options = "--num-actors 0 --min-size 64 --batch-size 8 --hidden 16 --eval-every 160 --eval-episodes 1 --no-bar"
    options = ["--env", "MinAtar/Breakout-v1", *options.split(), "--run-dir", str(tmp_path)]
    result = main([*options, "--steps", "160"])
    assert result.ending == "steps" and len(result.curve) == 1 and result.facts["updates"] > 0
    further = main([*options, "--resume", "--steps", "224"])
    assert further.steps >= 224 and further.facts["updates"] > result.facts["updates"]


@needs_minatar
def test_an_episode_has_a_limit_and_the_minimal_actions() -> None:
    envs = importlib.import_module("environments")
    env = envs.make_env("MinAtar/Breakout-v1")
    assert env.action_space.n == 3 and env.observation_space.dtype == bool
    assert env.spec.max_episode_steps == envs.MAX_EPISODE_STEPS
    assert env.unwrapped.game.sticky_action_prob == 0.1
    env.close()


def test_a_missing_package_ends_the_program_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.delitem(sys.modules, "minatar.gym", raising=False)
    with pytest.raises(SystemExit, match=r"needs MinAtar. Run: pip install '.\[examples\]'"):
        importlib.import_module("environments").make_env("MinAtar/Breakout-v1")
    importlib.import_module("environments").make_env("CartPole-v1").close()


@pytest.mark.parametrize("env, says", [("CartPol-v1", "Did you mean"), ("FrozenLake-v1", "observations Discrete")])
@pytest.mark.parametrize("example", ["c51_iqn", "impala", "sac"])
def test_an_environment_that_does_not_fit_ends_the_program_with_a_sentence(
    example: str, env: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=f"^{env} .*{says}"):
        importlib.import_module(example).main(["--env", env, "--no-bar", "--run-dir", str(tmp_path)])


def test_the_body_takes_images_and_vectors_with_any_leading_axes() -> None:
    import torch
    from gymnasium.spaces import Box

    make_body = importlib.import_module("environments").make_body
    images = torch.randint(2, (3, 5, 10, 10, 4)).bool()
    body = make_body(Box(0.0, 1.0, (10, 10, 4), bool), 64, 32)
    features = body(images)
    assert features.shape == (3, 5, 32)
    torch.testing.assert_close(features[1], body(images[1].to(torch.uint8)))
    assert make_body(Box(0.0, 1.0, (4,)), 64, 32)(torch.zeros(3, 5, 4)).shape == (3, 5, 32)


def test_the_parameters_of_networks_of_vectors_have_the_names_of_earlier_saves() -> None:
    from gymnasium.spaces import Box

    ape_x, c51_iqn, frame, impala = map(importlib.import_module, ("ape_x", "c51_iqn", "frame", "impala"))
    space = Box(0.0, 1.0, (4,))
    networks = {
        "ape_x": lambda: ape_x.make_network(ape_x.Settings(env="CartPole-v1", hidden=8)),
        "c51_iqn": lambda: c51_iqn.Dqn(space, 2, c51_iqn.Settings(hidden=8)).body,
        "impala": lambda: impala.Network(space, 2, 8).policy,
    }
    for name, make in networks.items():
        before = frame.mlp(4, 8, 8, 2).state_dict()
        assert list(make().state_dict()) == list(before), name
