"""The short run of each example, and the mark that the run must reach.

The contract of the frame. An example `examples/NAME.py`:

- has 120 to 250 lines, begins with a docstring (paper, formula, deviations) and imports relive's public names only;
- has a frozen dataclass `Settings(frame.Settings)` and `main(arguments=None) -> frame.Result`;
- fills `result.random_return` and calls `run.evaluated(return)` at least once;
- saves and continues: `run.load()`, `run.course(lambda: (table, learner_state))`, `run.goes_on(step)`;
- has a page docs/examples/NAME.md with the block `<!-- curve NAME: this block is written by make curves -->`;
- has a `Case` below. Its run takes some seconds on one core, and is limited by steps, so that a busy machine changes
  nothing. `above` lies between the return of random actions and the return that the run reaches.

A longer study of the same example is one line in examples/curves.py.
"""

from __future__ import annotations

from dataclasses import dataclass

# The modules in examples/ that are no examples.
HELPERS = {
    "actors",
    "curves",
    "environments",
    "episodes",
    "folders",
    "frame",
    "options",
    "ranks",
    "sums",
    "transformer",
}
SHORTEST, LONGEST = 120, 250  # lines of an example


@dataclass(frozen=True)
class Case:
    """A short run.

    Attributes:
        arguments: the command line.
        above: the best evaluation of the run must be above this return.
        needs: modules outside of the project's environment. The test is skipped, with the reason, without them.
        more: steps that the continued run makes after the end of the first.
    """

    arguments: str
    above: float
    needs: tuple[str, ...] = ()
    more: int = 200


CASES = {
    "agent57_family": Case(
        "--steps 4000 --eval-every 1000 --steps-per-update 8 --env MiniGrid-Empty-8x8-v0 --num-policies 2"
        " --gamma-min 0.8 --max-steps 60",
        above=8.0,
        needs=("minigrid",),
    ),
    "ape_x": Case(
        "--env CartPole-v1 --steps 6000 --eval-every 500 --eval-episodes 5 --hidden 64 --learning-rate 0.001"
        " --samples-per-insert 32",
        above=50.0,
    ),
    "c51_iqn": Case("--steps 2400 --eval-every 600 --hidden 64 --algorithm c51", above=60.0),
    "dqn_per": Case("--steps 2600 --eval-every 500", above=60.0),
    "her_sac": Case("--steps 4000 --eval-every 1000 --radius 0.15", above=0.3),
    "impala": Case("--steps 24000 --eval-every 3000 --learning-rate 3e-3", above=60.0),
    "jax_sac": Case("--steps 1500", above=-800.0, needs=("jax", "optax")),
    "masac": Case("--steps 2400 --eval-every 800", above=-35.0, needs=("mpe2", "pettingzoo")),
    "offline": Case("--steps 600 --eval-every 200 --data-episodes 30 --batch-size 128", above=-900.0),
    "ppo": Case("--steps 2600 --eval-every 1000", above=100.0),
    "qmix": Case("--steps 1000 --eval-every 500", above=7.5),
    "r2d2": Case("--steps 4000 --eval-every 1000", above=-0.3),
    "r2d3": Case(
        "--steps 2400 --eval-every 600 --demo-share 0.5 --env MiniGrid-Empty-5x5-v0 --max-steps 20 --gamma 0.9"
        " --target-every 25 --length 8 --burn-in 2 --hidden 32",
        above=0.4,
        needs=("minigrid",),
    ),
    "sac": Case("--steps 1500", above=-800.0),
    "served": Case("--steps 6000 --eval-every 500 --hidden 64 --batch-size 64", above=50.0, needs=("pyarrow",)),
    "tiers": Case("--steps 8000 --eval-every 1000", above=0.0),
    "decision_transformer": Case(
        "--steps 40 --eval-every 20 --episodes 60 --window 8 --width 32 --layers 1 --learning-rate 3e-3",
        above=60.0,
        more=20,
    ),
    "grpo": Case(
        "--steps 3000 --eval-every 500 --lanes 64 --groups 4 --width 32 --layers 1 --learning-rate 3e-3", above=0.07
    ),
    "mat": Case("--steps 2400 --eval-every 800", above=-27.0, needs=("mpe2",), more=200),
}

# Short runs on MinAtar Breakout, which test_environments.py continues: {name of the case: example and command line}.
_C51_IQN = "c51_iqn --steps 160 --min-size 64 --batch-size 8 --hidden 16 --eval-every 160 --eval-episodes 1"
MINATAR_CASES = {
    "iqn": f"{_C51_IQN} --algorithm iqn",
    "c51": f"{_C51_IQN} --algorithm c51",
    "dqn": f"{_C51_IQN} --algorithm dqn",
    "impala": "impala --steps 320 --hidden 16 --num-actors 1 --eval-every 320 --eval-episodes 1",
}
