"""Prioritized replay for the off-policy algorithms of Stable-Baselines3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias, final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn import functional

from relive.adapters.errors import UnseenLoss
from relive.adapters.sb3.buffers import DictReplayBuffer, ReplayBuffer
from relive.adapters.sb3.stored import Stored
from relive.checks.values import finite
from relive.config import samplers
from relive.errors import InvalidConfig
from relive.reading.batch import Batch

__all__ = ["Prioritized", "PrioritizedDictReplayBuffer", "PrioritizedReplayBuffer"]

Schedule: TypeAlias = Callable[[float], float]
_LOSSES = {functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss}


class _Weighted(Stored):
    """Draws by priority. `weights` has the importance weights of the last batch, float32[B, 1] on the device."""

    weights: torch.Tensor

    def __init__(
        self, *args: Any, alpha: float = 0.6, beta: float | Schedule = 0.4, epsilon: float = 1e-6, **options: Any
    ) -> None:
        self.alpha = finite("alpha", alpha, 0.0)
        self.beta = beta if callable(beta) else finite("beta", beta, 0.0)
        self.epsilon = finite("epsilon", epsilon, 0.0)
        self.progress_remaining = 1.0
        self._drawn: NDArray[np.int64] | None = None
        self._errors: list[torch.Tensor] = []
        super().__init__(*args, **options)

    def _sampler(self) -> Any:
        return samplers.Prioritized(self.alpha)

    def _draw(self, batch_size: int) -> Batch:
        self.apply_errors()
        batch = self.table.sample(batch_size, self._names())
        self._drawn = batch.item_keys
        beta = self.beta(self.progress_remaining) if callable(self.beta) else self.beta
        self.weights = self._tensor(batch.weights(beta)).reshape(-1, 1)
        return batch

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draws transitions by priority. The arguments and the result are those of ReplayBuffer.sample()."""
        samples = super().sample(batch_size, env)
        losses = _losses.get()
        if losses is None or losses.buffer is not self:
            return samples
        return samples._replace(rewards=samples.rewards.as_subclass(_Target))

    def note_errors(self, errors: torch.Tensor) -> None:
        """Takes TD errors [B] of the last batch. Those of several critics are averaged."""
        self._errors.append(errors)

    def apply_errors(self) -> None:
        """Sets the priorities of the last batch to |TD error| + epsilon, if errors were noted."""
        errors, self._errors = self._errors, []
        if errors and self._drawn is not None:
            total = torch.stack(errors).abs().mean(0).to("cpu", torch.float64).numpy()
            self.update_priorities(self._drawn, total + self.epsilon)

    def update_priorities(self, item_keys: NDArray[np.int64], priorities: Any) -> int:
        """Sets the priorities of transitions, for a training loop of one's own. Returns how many were still there.

        Args:
            item_keys: int64[B], as `drawn_keys` gives them.
            priorities: [B], finite, >= 0.
        """
        return self.table.update_priorities(item_keys, priorities)

    @property
    def drawn_keys(self) -> NDArray[np.int64] | None:
        """The keys of the last batch, int64[B]; None before the first."""
        return self._drawn


class PrioritizedReplayBuffer(_Weighted, ReplayBuffer):
    """ReplayBuffer that draws in proportion to (|TD error| + epsilon) ** alpha. For Prioritized.

    Args:
        alpha: exponent of the priorities, >= 0.
        beta: exponent of the importance weights: a number, or a function of the remaining progress (1 to 0), as
            learning_rate may be.
        epsilon: is added to each |TD error|.

    The other arguments are those of ReplayBuffer.
    """


class PrioritizedDictReplayBuffer(_Weighted, DictReplayBuffer):
    """DictReplayBuffer whose transitions are drawn by priority. The arguments are those of PrioritizedReplayBuffer."""


class Prioritized:
    """Makes an off-policy algorithm draw by priority, weigh its critic's loss, and set priorities from its TD errors.

        class PrioritizedSAC(Prioritized, SAC): ...

        model = PrioritizedSAC("MlpPolicy", env, replay_buffer_kwargs=dict(alpha=0.6, beta=0.4))

    The training step is the algorithm's own. During that step, mse_loss, smooth_l1_loss and huber_loss of
    torch.nn.functional are weighted if their targets have no gradient and were computed from the batch's rewards. With
    the importance weights w of the batch, such a loss becomes

        mean over i of w_i * loss(value_i, target_i)

    and the priority of i is the mean over critics of |value_i - target_i|, plus epsilon.

    The algorithm's n_steps and gamma go to the buffer.

    Raises:
        InvalidConfig: replay_buffer_class is no prioritized buffer of this module.
        UnseenLoss: the training step used a batch and none of these losses.
    """

    replay_buffer_class: Any
    replay_buffer_kwargs: dict[str, Any]
    replay_buffer: Any
    observation_space: Any
    n_steps: int
    gamma: float
    _current_progress_remaining: float

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            is_dict = isinstance(self.observation_space, spaces.Dict)
            self.replay_buffer_class = PrioritizedDictReplayBuffer if is_dict else PrioritizedReplayBuffer
        if not issubclass(self.replay_buffer_class, _Weighted):
            names = "None, PrioritizedReplayBuffer or PrioritizedDictReplayBuffer"
            raise InvalidConfig("replay_buffer_class of Prioritized", names, self.replay_buffer_class)
        if getattr(self, "n_steps", 1) > 1:
            given = {"n_steps": self.n_steps, "gamma": self.gamma}
            self.replay_buffer_kwargs = {**given, **self.replay_buffer_kwargs}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`n_steps=\d+` is ignored")  # the line above passes it on
            super()._setup_model()  # type: ignore[misc]

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """The algorithm's training step, with weighted losses."""
        self.replay_buffer.progress_remaining = self._current_progress_remaining
        losses = _WeighedLosses(self.replay_buffer)
        before = _losses.set(losses)
        try:
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)  # type: ignore[misc]
        finally:
            _losses.reset(before)
        if gradient_steps > 0 and not losses.num_seen:
            raise UnseenLoss(type(self).__name__, sorted(one.__name__ for one in _LOSSES))
        self.replay_buffer.apply_errors()


@final
class _WeighedLosses:
    """Weighs the losses of one training step."""

    def __init__(self, buffer: _Weighted) -> None:
        self.buffer = buffer
        self.num_seen = 0

    def loss(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """The result of a function of _LOSSES, one of whose arguments is a _Target."""
        args = tuple(_plain(part) for part in args)
        options = {name: _plain(part) for name, part in options.items()}
        value, target = (*args, *(options[name] for name in ("input", "target")[len(args) :]))[:2]
        if not value.requires_grad or target.requires_grad or not len(value) == len(self.buffer.weights):
            return func(*args, **options)
        self.num_seen += 1
        reduction = options.get("reduction", "mean")
        rest = {name: part for name, part in options.items() if name not in ("input", "target", "reduction")}
        errors = (value.detach() - target).reshape(len(value), -1).abs().mean(1)
        self.buffer.note_errors(errors)
        weights = self.buffer.weights.reshape(-1, *(1 for _ in value.shape[1:]))
        loss = weights * func(value, target, *args[2:], reduction="none", **rest)
        return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


# The training step that runs in this thread.
_losses: ContextVar[_WeighedLosses | None] = ContextVar("_losses", default=None)


@final
class _Target(torch.Tensor):
    """The rewards of a batch in a training step, and every tensor that is computed from them.

    A loss is known by this type of its target. A TorchFunctionMode would see each loss too, but it sees every other
    function as well, and costs 0.3 ms a step.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = {} if kwargs is None else kwargs
        losses = _losses.get()
        if losses is not None and func in _LOSSES:
            return losses.loss(func, args, options)
        return super().__torch_function__(func, types, args, options)  # type: ignore[no-untyped-call]


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, _Target) else value
