"""The gain of an adapter: the same Stable-Baselines3 program with its own buffer and with relive's, in pairs.

`make bench-plugins`, or `python -m benchmarks.plugins [--pairs N] [--steps N]`. Each run is a process of its own in the
environment of Stable-Baselines3. The two runs of a pair follow each other and have the same seed; their order changes
from pair to pair. For each case the page gives:

- the share of the time that `add` and `sample` of the library's buffer take;
- the bound on the ratio of end-to-end times that this share sets: 1 / (1 - share) (Amdahl);
- the ratio of end-to-end times, as the median over pairs, with the quartiles;
- the mean return of the last 20 episodes of each side, for each seed.

Times are seconds of the process on the processor, of one thread, so that other programs disturb them little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine, peers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "plugins.json"
CASES = ("dqn", "dqn_prioritized", "sac")
SIDES = ("library", "relive")


def main() -> int:
    """Runs all cases, and writes the results."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3 with its own buffers and with relive's")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--worker", nargs=3, metavar=("CASE", "SIDE", "SEED"))
    arguments = parser.parse_args()
    if arguments.worker:
        case, side, seed = arguments.worker
        print(json.dumps(measured(case, side, int(seed), arguments.steps)))
        return 0
    problem = peers.set_up("sb3")
    if problem is not None:
        print(f"no environment of Stable-Baselines3: {problem}")
        return 1
    cases = {case: paired(case, arguments.pairs, arguments.steps) for case in arguments.cases.split(",")}
    told = {"machine": machine.describe(), "steps": arguments.steps, "pairs": arguments.pairs, "cases": cases}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def paired(case: str, pairs: int, steps: int) -> dict[str, Any]:
    """The figures of one case over all pairs."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for seed in range(pairs):
        for side in SIDES if seed % 2 == 0 else reversed(SIDES):
            runs[side].append(in_process(case, side, seed, steps))
    shares = [one["replay_s"] / one["total_s"] for one in runs["library"]]
    ratios = [one["total_s"] / two["total_s"] for one, two in zip(runs["library"], runs["relive"], strict=True)]
    calls = {side: statistics.median(one["replay_s"] for one in runs[side]) for side in SIDES}
    share = statistics.median(shares)
    told = {
        "share_of_replay": share,
        "bound": 1 / (1 - share),
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "replay_s": calls,
        "returns": {side: [one["mean_return"] for one in runs[side]] for side in SIDES},
    }
    print(
        f"{case}: replay {share:.1%}, bound {told['bound']:.3f}, measured {told['ratio']:.3f}, replay {calls}",
        flush=True,
    )
    return told


def in_process(case: str, side: str, seed: int, steps: int) -> dict[str, float]:
    """One run in the environment of Stable-Baselines3."""
    from scripts import test_adapters

    line = [str(peers.python_of("sb3")), "-m", "benchmarks.plugins", "--steps", str(steps)]
    place = ROOT / "build" / "linked"
    if not place.exists():
        test_adapters.linked_package()
    variables = {**os.environ, "PYTHONPATH": f"{place}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*line, "--worker", case, side, str(seed)], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measured(case: str, side: str, seed: int, steps: int) -> dict[str, float]:
    """One run in this process: the times of the whole and of the buffer's calls, and the mean return."""
    import numpy as np
    import stable_baselines3 as sb3
    from stable_baselines3.common.buffers import ReplayBuffer

    from relive.adapters import sb3 as ours

    class PrioritizedDQN(ours.Prioritized, sb3.DQN):  # type: ignore[misc, name-defined]
        """DQN with prioritized replay."""

    is_ours, options = side == "relive", {"device": "cpu", "seed": seed}
    if case == "sac":
        kind, env, steps = sb3.SAC, "Pendulum-v1", steps // 10
    else:
        kind = PrioritizedDQN if is_ours and case == "dqn_prioritized" else sb3.DQN
        env = "CartPole-v1"
        options.update(learning_rate=2.3e-3, batch_size=64, learning_starts=1000, train_freq=4, gradient_steps=1)
        options.update(target_update_interval=500, exploration_fraction=0.16, policy_kwargs={"net_arch": [256, 256]})
    if kind is not PrioritizedDQN:
        options["replay_buffer_class"] = ours.ReplayBuffer if is_ours else ReplayBuffer
    model = kind("MlpPolicy", env, buffer_size=100_000, **options)
    spent = timed(model.replay_buffer)
    began = time.process_time()
    model.learn(steps)
    total_s = time.process_time() - began
    returns = [episode["r"] for episode in model.ep_info_buffer][-20:]
    return {"total_s": total_s, "replay_s": sum(spent), "mean_return": float(np.mean(returns))}


def timed(buffer: Any) -> list[float]:
    """Adds the seconds of each add and sample to the list that is returned."""
    spent = [0.0]
    for name in ("add", "sample"):
        call = getattr(buffer, name)

        def wrapped(*arguments: Any, _call: Any = call, **options: Any) -> Any:
            began = time.process_time()
            made = _call(*arguments, **options)
            spent[0] += time.process_time() - began
            return made

        setattr(buffer, name, wrapped)
    return spent


if __name__ == "__main__":
    sys.exit(main())
