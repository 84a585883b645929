"""The functional updates of DQN (vectors), DDPG, TD3 and SAC; see `relive.agents.functional`.

Each builds a `Functional` over an agent's memory. Formulas, names and their order are those of the agent's file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad
from torch.nn.functional import softplus

from relive.agents.agent import Items
from relive.agents.batches import priorities_of
from relive.agents.boxes import LOG_STD_MAX, LOG_STD_MIN
from relive.agents.functional import Flat, Functional, Named, followed, network, stepped

if TYPE_CHECKING:
    from relive.agents.ddpg import DDPG
    from relive.agents.dqn import DQN
    from relive.agents.sac import SAC
    from relive.agents.td3 import TD3

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def _values(outputs: Tensor, dueling: bool) -> Tensor:
    if not dueling:
        return outputs
    advantage = outputs[:, 1:]
    return advantage - advantage.mean(dim=1, keepdim=True) + outputs[:, :1]


def of_dqn(agent: DQN) -> Functional:
    """DQN's. The target network follows in `finish`."""
    config, flat, optimizer = agent.config, Flat(agent.online), agent.optimizer
    dueling, low = config.network.dueling, config.precision == "bfloat16"
    rate = torch.zeros((), device=agent.device)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        state, (target, rate, observation, action, reward, discount, following, weight) = tensors[:4], tensors[4:]
        online = flat.named(state[0])
        theirs = _values(network(flat.named(target), "q", following, low), dueling)
        if config.double:
            mine = _values(network(online, "q", following, low), dueling)
            bootstrap = theirs.gather(1, mine.argmax(dim=1, keepdim=True))
        else:
            bootstrap = theirs.amax(dim=1, keepdim=True)
        goal = reward + discount * bootstrap

        def loss(named: Named) -> tuple[Tensor, Tensor]:
            error = goal - _values(network(named, "q", observation, low), dueling).gather(1, action)
            size = error.abs()
            huber = torch.where(size < 1.0, 0.5 * error * error, size - 0.5)
            return (weight * huber).mean(), error

        gradient, error = grad(loss, has_aux=True)(online)
        return *stepped(flat.vector(gradient), state, rate, optimizer), error

    def load(batch: Items) -> tuple[Tensor, ...]:
        agent.load(batch)
        rate.fill_(config.optimizer.learning_rate_at(agent.num_updates))
        return agent.target.values, rate, *agent.batch_tensors()

    def finish(outputs: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
        return agent.finished(outputs[0])

    return Functional({"all": step}, lambda: "all", optimizer.stepped_tensors, load, finish)


# ---- actor-critics ---------------------------------------------------------------------------------------------------


class _Critics:
    """What the steps of actor-critics share: critics by name, their loss, and what is loaded and finished."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.config, self.low = agent, agent.config, agent.low
        self.flat, self.actor = Flat(agent.critics.online), Flat(agent.actor)
        self.count = len(agent.critics.networks)
        self.optimizer, self.actor_optimizer = agent.critics.optimizer, agent.optimizer
        self.rates = torch.zeros(2, device=agent.device)

    def values(self, named: Named, state: Tensor, action: Tensor) -> list[Tensor]:
        pair = torch.cat([state, action], dim=1)
        return [network(named, f"q{critic}", pair, self.low) for critic in range(self.count)]

    def learnt(
        self, critics: tuple[Tensor, ...], goal: Tensor, batch: tuple[Tensor, ...], rates: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The critics' new state, and their errors from before."""
        state, action, _, _, _, weight = batch

        def loss(named: Named) -> tuple[Tensor, tuple[Tensor, ...]]:
            errors = tuple(value - goal for value in self.values(named, state, action))
            return sum(((weight * error * error).mean() / 2.0 for error in errors), goal.new_zeros(())), errors

        gradient, errors = grad(loss, has_aux=True)(self.flat.named(critics[0]))
        return stepped(self.flat.vector(gradient), critics, rates[0], self.optimizer), errors

    def load(self, batch: Items) -> tuple[Tensor, ...]:
        """(rates, state, action, reward, discount, next state, weight)."""
        agent, config = self.agent, self.config
        agent.batch.load(batch)
        self.rates[0] = config.critic.learning_rate_at(agent.num_updates)
        self.rates[1] = config.actor.learning_rate_at(agent.num_updates)
        mine = agent.batch
        return self.rates, mine.state, mine.action, mine.reward, mine.discount, mine.next_state, mine.weight

    def finish(self, errors: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
        for mine, error in zip(self.agent.critics.errors, errors, strict=True):
            mine.copy_(error)
        self.agent.num_updates += 1
        return priorities_of(self.agent.critics.errors) if self.config.prioritized else None


def of_deterministic(
    agent: DDPG | TD3,
    *,
    delay: int = 1,
    smoothing: tuple[float, float] = (0.0, 0.0),
    draw: Callable[[], Tensor] | None = None,
) -> Functional:
    """DDPG's and TD3's: the actor learns in every `delay`-th update; `draw` is noise on the target's actions, times
    smoothing[0], cut at smoothing[1].
    """
    shared, mu = _Critics(agent), agent.mu
    rate = agent.config.target_rate

    def step(*tensors: Tensor, climbs: bool) -> tuple[Tensor, ...]:
        critics, actor, (target, target_actor) = tensors[:4], tensors[4:8], tensors[8:10]
        rates, *columns = tensors[10:17]
        state, _, reward, discount, following, _ = columns
        action = torch.tanh(network(shared.actor.named(target_actor), "actor", following, shared.low))
        if draw is not None:
            noise = (tensors[17] * smoothing[0]).clamp(-smoothing[1], smoothing[1])
            action = (action + noise).clamp(-1.0, 1.0)
        values = shared.values(shared.flat.named(target), following, action)
        goal = reward + discount * (values[0] if len(values) == 1 else torch.minimum(*values))
        critics, errors = shared.learnt(critics, goal, tuple(columns), rates)
        if climbs:
            named = shared.flat.named(critics[0])

            def loss(mine: Named) -> Tensor:
                chosen = torch.tanh(network(mine, "actor", state, shared.low))
                return -network(named, "q0", torch.cat([state, chosen], dim=1), shared.low).mean()

            gradient = grad(loss)(shared.actor.named(actor[0]))
            actor = stepped(shared.actor.vector(gradient), actor, rates[1], shared.actor_optimizer)
            target, target_actor = followed(target, critics[0], rate), followed(target_actor, actor[0], rate)
        return *critics, *actor, target, target_actor, *errors

    def load(batch: Items) -> tuple[Tensor, ...]:
        noise = () if draw is None else (draw(),)
        return *shared.load(batch), *noise

    state = (
        *shared.optimizer.stepped_tensors,
        *shared.actor_optimizer.stepped_tensors,
        agent.critics.target.values,
        mu.target.values,
    )
    steps = {"all": lambda *tensors: step(*tensors, climbs=True)}
    if delay > 1:
        steps["critics"] = lambda *tensors: step(*tensors, climbs=False)
    return Functional(
        steps, lambda: "all" if (agent.num_updates + 1) % delay == 0 else "critics", state, load, shared.finish
    )


def of_sac(agent: SAC) -> Functional:
    """SAC's, the temperature included where it is learnt."""
    shared, config, size = _Critics(agent), agent.config, agent.box.size
    temperature = agent.temperature_optimizer
    rate = torch.full((), config.alpha_learning_rate, device=agent.device)
    first, second = (torch.zeros(config.batch_size, size, device=agent.device) for _ in range(2))

    def sample(named: Named, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        outputs = network(named, "actor", state, shared.low)
        log_std = outputs[:, size:].clamp(LOG_STD_MIN, LOG_STD_MAX)
        before = outputs[:, :size] + log_std.exp() * noise
        terms = 2.0 * (before + softplus(before * -2.0)) - log_std - 0.5 * noise * noise
        constant = size * (_LOG_SQRT_2PI + 2.0 * math.log(2.0))
        return torch.tanh(before), terms.sum(dim=1, keepdim=True) - constant

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        critics, actor, heat, target = tensors[:4], tensors[4:8], tensors[8:12], tensors[12]
        rates, *columns = tensors[13:20]
        heat_rate, next_noise, noise = tensors[20:]
        state, _, reward, discount, following, _ = columns
        alpha = heat[0].exp() if config.alpha is None else torch.full_like(heat[0], config.alpha)
        alpha = alpha[0]
        action, log_probability = sample(shared.actor.named(actor[0]), following, next_noise)
        lower = torch.minimum(*shared.values(shared.flat.named(target), following, action))
        goal = reward + discount * (lower - alpha * log_probability)
        critics, errors = shared.learnt(critics, goal, tuple(columns), rates)
        named = shared.flat.named(critics[0])

        def loss(mine: Named) -> tuple[Tensor, Tensor]:
            chosen, log_probability = sample(mine, state, noise)
            return (alpha * log_probability - torch.minimum(*shared.values(named, state, chosen))).mean(), (
                log_probability
            )

        gradient, log_probability = grad(loss, has_aux=True)(shared.actor.named(actor[0]))
        actor = stepped(shared.actor.vector(gradient), actor, rates[1], shared.actor_optimizer)
        entropy = -log_probability.mean()
        if config.alpha is None:
            slope = torch.zeros_like(heat[0])
            slope = torch.cat([(entropy - agent.target_entropy).reshape(1), slope[1:]])
            heat = stepped(slope, heat, heat_rate, temperature)
        target = followed(target, critics[0], config.target_rate)
        return *critics, *actor, *heat, target, *errors, entropy

    def load(batch: Items) -> tuple[Tensor, ...]:
        inputs = shared.load(batch)
        first.copy_(agent.draw_noise())
        second.copy_(agent.draw_noise())
        return *inputs, rate, first, second

    def finish(outputs: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
        agent.entropy = outputs[2]
        return shared.finish(outputs[:2])

    state = (
        *shared.optimizer.stepped_tensors,
        *shared.actor_optimizer.stepped_tensors,
        *temperature.stepped_tensors,
        agent.critics.target.values,
    )
    return Functional({"all": step}, lambda: "all", state, load, finish)
