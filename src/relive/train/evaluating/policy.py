"""The policy of a run, loaded to act with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Parameters, Policy, Spaces
from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch
from relive.train.acting.environments import describe
from relive.train.config import CONFIG_FILE, TrainConfig, path_of
from relive.train.watching.checkpoint import Progress, load_checkpoint


@final
class TrainedPolicy:
    """Acts as a run learnt to. It belongs to one thread; what it explores with comes from the seed it was loaded with.

    config: the run's. spaces: of its environment. parameters: what it acts with, float32 arrays by name, read only.
    num_steps: environment steps of the run, which say how much it explores.
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
        """The action of one observation, or the actions [B, ...] of a batch [B, ...], B >= 1; the shape tells which.

        explore: as actors do after num_steps steps, in place of the best action. Actions are those of the environment:
        an int64 or int64 [B] for Discrete, arrays within their bounds for a Box. Nothing of what is given is changed.
        Raises ShapeMismatch for other shapes and DtypeMismatch for what is no number.
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
    """The policy of the run in `run_dir`, which may have ended, be stopped, or still be running.

    which: "kept", the best one that the evaluations of the run found (the last one where there was none yet); "last",
    that of the newest checkpoint. seed: of what it explores with.
    Makes the environment for a moment to learn its spaces. Raises InvalidConfig where the directory holds no run, or
    none with a checkpoint, and for another `which` or seed.
    """
    if which not in ("kept", "last"):
        raise InvalidConfig("which", "'kept' or 'last'", which)
    if not isinstance(seed, int) or seed < 0:
        raise InvalidConfig("seed", "an integer >= 0", seed)
    folder = path_of("run_dir", run_dir)
    config = TrainConfig.load(folder / CONFIG_FILE)
    state, progress = load_checkpoint(folder)
    spaces = describe(config.environment.env_id)
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
    """The kept parameters; InvalidConfig where config.json is of other networks than the checkpoint."""
    kept = {name: value.shape for name, value in progress.kept_parameters.items()}
    shapes = {name: value.shape for name, value in own.items()}
    if kept != shapes:
        raise InvalidConfig("kept policy of a checkpoint", f"names and shapes {shapes}", str(kept))
    return progress.kept_parameters
