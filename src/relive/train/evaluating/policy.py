"""Loads the policy of a run to act with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Parameters, Policy, Spaces
from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch
from relive.train.acting.environments import check_spaces, describe
from relive.train.config import TrainConfig, path_of
from relive.train.run_directory import CONFIG_FILE
from relive.train.watching.checkpoint import Progress, load_checkpoint


@final
class TrainedPolicy:
    """The policy that a run has learnt. One thread uses it.

    Attributes:
        config: Options of the run.
        spaces: Spaces of its environment.
        policy: The policy.
        parameters: Parameters of the policy: float32 arrays by name, read-only.
        num_steps: Environment steps of the run, on which the exploration depends.
    """

    def __init__(
        self, config: TrainConfig, spaces: Spaces, policy: Policy, parameters: Parameters, num_steps: int, seed: int
    ) -> None:
        self.config = config
        self.spaces = spaces
        self.policy = policy
        self.parameters = parameters
        self.num_steps = num_steps
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Any, *, explore: bool = False) -> Any:
        """Returns the action for one observation, or the actions for a batch of observations.

        Args:
            observations: One observation [...], or a batch [B, ...] with B >= 1; the shape tells which. It is not
                changed.
            explore: Explore as actors do after num_steps steps, instead of taking the best action.

        Returns:
            Actions of the environment, of the dtype of its space: for a Discrete space a number, or numbers [B]; for a
            Box an array within its bounds, [...] or [B, ...].

        Raises:
            ShapeMismatch: The observations have another shape.
            DtypeMismatch: The observations are no numbers.
        """
        try:
            array = np.asarray(observations)
        except ValueError:  # lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "fiub":
            raise DtypeMismatch("observation", str(self.spaces.observation.dtype), array.dtype)
        shape = self.spaces.observation_shape
        is_one = array.shape == shape
        if not is_one and (array.shape[1:] != shape or len(array) == 0):
            raise ShapeMismatch("observation", shape, array.shape)
        batch = array[None] if is_one else array
        if explore:
            actions = self.policy.explore(self.parameters, batch, self.num_steps, self._rng)
        else:
            actions = self.policy.best(self.parameters, batch)
        return actions[0] if is_one else actions


def load_policy(run_dir: str | Path, *, which: Literal["kept", "last"] = "kept", seed: int = 0) -> TrainedPolicy:
    """Loads the policy of a run, which may have ended, be stopped, or still be running.

    Args:
        run_dir: Directory of the run.
        which: "kept": the best policy of the evaluations in the environment of config.json, or the last one if there
            was no evaluation yet. "last": the policy of the newest checkpoint.
        seed: Seed of the exploration, an integer >= 0.

    Returns:
        The policy.

    Raises:
        InvalidConfig: The directory has no run, or no checkpoint, or `which` or `seed` is another value; or the
            environment has other spaces by now.

    Cost:
        It makes the environment for a moment, to learn its spaces.
    """
    if which not in ("kept", "last"):
        raise InvalidConfig("which", "'kept' or 'last'", which)
    if not isinstance(seed, int) or seed < 0:
        raise InvalidConfig("seed", "an integer >= 0", seed)
    folder = path_of("run_dir", run_dir)
    config = TrainConfig.load(folder / CONFIG_FILE)
    state, progress = load_checkpoint(folder)
    progress = progress.of(config.environment.env_id)
    spaces = describe(config.environment.env_id)
    check_spaces(spaces, progress.spaces)
    agent = config.agent.make(spaces, seed=config.environment.seed, device="cpu")
    if which == "kept" and progress.kept_parameters:
        parameters = _fitting(progress, agent.parameters())
    else:
        agent.load_state_dict(state)
        parameters = agent.evaluation_parameters()
    for value in parameters.values():
        value.flags.writeable = False
    return TrainedPolicy(config, spaces, agent.policy(), parameters, progress.num_steps, seed)


def _fitting(progress: Progress, own: Parameters) -> dict[str, NDArray[np.float32]]:
    """Returns the kept parameters. Raises InvalidConfig if config.json and the checkpoint have different networks."""
    kept = {name: value.shape for name, value in progress.kept_parameters.items()}
    shapes = {name: value.shape for name, value in own.items()}
    if kept != shapes:
        raise InvalidConfig("kept policy of a checkpoint", f"names and shapes {shapes}", str(kept))
    return progress.kept_parameters
