"""IMPALA and PPO learn from windows of steps: padding changes no loss, and a continued run begins with new windows."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
import relive.checkpoint

for _module in ("torch", "gymnasium", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")


def rows_of(num_real: int, num_padded: int) -> dict[str, Any]:
    """Two windows whose lanes were cut, with values in the padding that no loss may see."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (2, num_real + num_padded)
    mask = (torch.arange(shape[1]) < num_real).expand(shape)
    rows = {name: torch.randn(*shape, 3, generator=generator) for name in ("observation", "next_observation")}
    rows |= {"reward": torch.randn(shape, generator=generator), "log_prob": torch.full(shape, -0.7)}
    rows |= {"action": torch.ones(shape, dtype=torch.int64), "discount": mask.float(), "mask": mask}
    ends = torch.zeros(shape, dtype=torch.bool)
    ends[:, num_real - 1] = True
    return rows | {"terminated": torch.zeros(shape, dtype=torch.bool), "truncated": ends}


def test_padding_changes_no_loss_of_impala() -> None:
    import torch
    from gymnasium.spaces import Box

    impala = importlib.import_module("impala")
    torch.manual_seed(0)
    network, padded = impala.Network(Box(-1.0, 1.0, (3,)), 2, 8), rows_of(5, 3)
    real = {name: values[:, :5] for name, values in padded.items()}
    _, *expected = impala.v_trace(network, real, impala.Settings())
    _, *losses = impala.v_trace(network, padded, impala.Settings())
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize(("batch_size", "envs_per_actor"), [(4, 4), (7, 4), (16, 4), (4, 16)])
def test_the_queue_of_impala_has_space_for_every_append_and_enough_for_every_batch(
    batch_size: int, envs_per_actor: int
) -> None:
    impala = importlib.import_module("impala")
    settings = impala.Settings(batch_size=batch_size, envs_per_actor=envs_per_actor, unroll=2)
    names = ("observation", "action", "reward", "log_prob")
    spec = relive.StepSpec({name: relive.ArraySpec((), "float32") for name in names})
    rows = {name: np.zeros(envs_per_actor) for name in names}
    drawn = 0
    with impala.make_table(settings, spec, f"test-impala-{os.getpid()}") as table:
        with table.writer(envs_per_actor) as writer:
            while drawn < 20 * batch_size:
                if table.num_items() < batch_size:
                    writer.append(**rows, timeout_s=0.0)
                else:
                    drawn += len(table.sample(batch_size, timeout_s=0.0).item_keys)


class Stopped(Exception):
    """Ends a run at the place that a test watches."""


def test_a_continued_impala_begins_without_the_windows_of_its_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    impala = importlib.import_module("impala")
    settings = impala.Settings()
    name = f"test-impala-{os.getpid()}"
    spec = relive.StepSpec(
        {"observation": relive.ArraySpec((4,), "float32", kind="state"), "action": relive.ArraySpec((), "int64")}
        | {name: relive.ArraySpec((), "float32") for name in ("reward", "log_prob")}
    )
    with impala.make_table(settings, spec, name) as table, table.writer(2) as writer:
        for _ in range(settings.unroll + 4):
            state = np.zeros((2, 4))
            values = {"action": np.zeros(2, np.int64), "reward": np.ones(2), "log_prob": np.zeros(2)}
            writer.append(observation=state, next_observation=state, **values)
        run = {"curve": [], "steps": 64, "facts": {}, "seconds": 1.0, "next_evaluation": 0}
        whole = {"learner": {"version": 3}, "run": run, "rng": torch.get_rng_state()}
        relive.checkpoint.save(tmp_path / "save", table=table, learner=whole)
    found = []

    def actors(_: object, __: int, arguments: tuple[object, str, object]) -> None:
        with relive.attach(arguments[1]) as seen:
            found.append(seen.num_items())
        raise Stopped

    monkeypatch.setattr(impala, "Actors", actors)
    with pytest.raises(Stopped):
        impala.main(["--resume", "--no-bar", "--run-dir", str(tmp_path)])
    assert found == [0]


def test_a_continued_ppo_trains_on_new_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save has a whole window, of a lane that is ahead of the others, and an open window of every lane."""
    ppo, frame = importlib.import_module("ppo"), importlib.import_module("frame")
    made, make_table, goes_on = [], ppo.make_table, frame.Run.goes_on
    monkeypatch.setattr(ppo, "make_table", lambda *told: made.append(make_table(*told)) or made[-1])
    arguments = ["--no-bar", "--run-dir", str(tmp_path), "--eval-every", "1000000", "--horizon", "16"]
    with monkeypatch.context() as patch:
        patch.setattr(frame.Run, "goes_on", lambda run, step: goes_on(run, step) and not made[0].num_items())
        step = ppo.main([*arguments, "--steps", "2000"]).steps
    assert step < 2000, "the run ended before a lane was ahead"

    update, rewards = ppo.update, []

    def watched(network: Any, optimizer: Any, batch: relive.Batch, settings: Any) -> float:
        rewards.append(batch["reward"])
        return float(update(network, optimizer, batch, settings))

    monkeypatch.setattr(ppo, "update", watched)
    assert ppo.main([*arguments, "--resume", "--steps", str(step + 400)]).steps >= step + 400
    assert len(rewards) > 1
    assert (np.concatenate(rewards) == 1.0).all(), "padding has the reward 0, a step of CartPole 1"


def test_a_minibatch_of_one_step_leaves_ppo_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    ppo = importlib.import_module("ppo")
    update, seen = ppo.update, []

    def watched(network: Any, optimizer: Any, batch: relive.Batch, settings: Any) -> float:
        loss = update(network, optimizer, batch, settings)
        seen.append(torch.nn.utils.parameters_to_vector(network.parameters()))
        return float(loss)

    monkeypatch.setattr(ppo, "update", watched)
    arguments = "--num-envs 1 --horizon 4 --minibatches 4 --hidden 8 --steps 8 --eval-episodes 1 --no-bar"
    ppo.main([*arguments.split(), "--run-dir", str(tmp_path)])
    assert seen and seen[-1].isfinite().all()


def test_off_policy_ppo_draws_no_more_when_too_few_windows_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows that were drawn `uses` times leave during the draws of an update. Seed 0 comes below `num_envs`."""
    ppo = importlib.import_module("ppo")
    monkeypatch.setattr(ppo, "update", lambda *_: 0.0)
    arguments = "--uses 4 --num-envs 2 --horizon 4 --steps 2000 --eval-every 1000000 --no-bar --seed 0"
    assert ppo.main([*arguments.split(), "--run-dir", str(tmp_path)]).ending == "steps"
