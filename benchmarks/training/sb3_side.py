"""`python -m benchmarks.training.sb3_side CASE SEED STEPS SIDE`: Stable-Baselines3 as it says; JSON of its window.

Denormals are flushed by torch.set_flush_denormal(True), which it does not set by itself. CPU of the updates is that of
the thread that is in `train`; with several threads the others' is in the CPU of a step alone.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

from benchmarks.training.cases import CASES, SIDES, Case, Window


def model_of(case: Case, seed: int) -> Any:
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(case.env_id, n_envs=case.num_envs, seed=seed)
    options: dict[str, Any] = {
        "learning_rate": case.learning_rate,
        "buffer_size": case.capacity,
        "learning_starts": case.learning_starts,
        "batch_size": case.batch_size,
        "gamma": case.gamma,
        "tau": case.target_rate,
        "train_freq": 1,  # each of all environments
        "gradient_steps": round(case.updates_per_step * case.num_envs),
        "policy_kwargs": {"net_arch": list(case.hidden)},
        "seed": seed,
        "device": "cpu",
    }
    if case.agent == "dqn":
        return sb3.DQN(
            "MlpPolicy", envs, max_grad_norm=case.max_gradient_norm,
            target_update_interval=round(case.target_period / case.updates_per_step), **options,
        )  # fmt: skip
    if case.agent == "sac":
        return sb3.SAC("MlpPolicy", envs, **options)
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

    num_actions = envs.action_space.shape[0]
    single = NormalActionNoise(np.zeros(num_actions), np.full(num_actions, 0.1))
    noise = VectorizedActionNoise(single, case.num_envs)
    return getattr(sb3, case.agent.upper())("MlpPolicy", envs, action_noise=noise, **options)


def main() -> None:
    began_s, seed = time.monotonic(), int(sys.argv[2])
    case = replace(CASES[sys.argv[1]], window_steps=int(sys.argv[3]))
    side = SIDES[sys.argv[4]]
    import torch

    if side.threads:
        torch.set_num_threads(side.threads)
    if side.flushes:
        torch.set_flush_denormal(True)
    from stable_baselines3.common.callbacks import BaseCallback

    model = model_of(case, seed)
    window, updating = Window(case, began_s), [0.0]
    train = model.train

    def timed(*arguments: Any, **options: Any) -> None:
        before_s = time.thread_time()
        train(*arguments, **options)
        updating[0] += time.thread_time() - before_s

    model.train = timed

    class Ticking(BaseCallback):
        def _on_step(self) -> bool:
            now = (time.monotonic(), time.process_time(), updating[0], self.num_timesteps, self.model._n_updates)
            return not window.tick(now)

    model.learn(total_timesteps=10**9, callback=Ticking(), log_interval=None)
    print(json.dumps({**window.result(), "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
