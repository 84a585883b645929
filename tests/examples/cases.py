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

HELPERS = {
    "frame",
    "processes",
    "curves",
    "episodes",
    "ranks",
    "sums",
    "transformer",
}  # the modules in examples/ that are no examples
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
    "dqn_per": Case("--steps 2000 --eval-every 1000", above=80.0),
    "sac": Case("--steps 1500 --eval-every 500 --learning-rate 3e-3 --target-rate 0.02 --batch-size 64", above=-950.0),
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
