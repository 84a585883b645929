"""Soft actor-critic with a learner in JAX: batches of numpy arrays go into one compiled update.

Paper: Haarnoja et al. 2018 (Soft Actor-Critic Algorithms and Applications). The formulas are those of sac.py:

    target       = R + discount * (min_k Q_target_k(s', a') - alpha * log pi(a'|s')),   a' ~ pi(.|s')
    critic loss  = mean sum_k (Q_k(s, a) - target)^2
    actor loss   = mean (alpha * log pi(a|s) - min_k Q_k(s, a)),                        a ~ pi(.|s)
    alpha loss   = -log(alpha) * mean (log pi(a|s) + target entropy)

`jax.jit` compiles the whole update: both critics, the actor, the temperature, three steps of Adam, the target. Batches
have one shape, so it is compiled once. The parameters are a tree of arrays: the learner needs jax and optax, and no
library of networks. The save of the run contains this tree as numpy arrays.

Deviations from the paper: those of sac.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import environments
import frame
import gymnasium
import numpy as np

import relive
from relive.adapters.gymnasium import record

jax, optax = (frame.package(name, name, "jax optax") for name in ("jax", "optax"))
jnp = jax.numpy


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of SAC."""

    env: str = "Pendulum-v1"
    steps: int = 6_000
    eval_every: int = 500
    hidden: int = 64
    capacity: int = 100_000
    min_size: int = 200
    batch_size: int = 64
    learning_rate: float = 3e-3
    gamma: float = frame.within(0, 1, 0.95)
    target_rate: float = 0.02


def layers(key: Any, *sizes: int) -> list[tuple[Any, Any]]:
    """Weights and biases of a network, uniform as torch.nn.Linear begins."""
    made = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        key, one, two = jax.random.split(key, 3)
        bound = inputs**-0.5
        made.append(
            (
                jax.random.uniform(one, (inputs, outputs), minval=-bound, maxval=bound),
                jax.random.uniform(two, (outputs,), minval=-bound, maxval=bound),
            )
        )
    return made


def mlp(network: list[tuple[Any, Any]], inputs: Any) -> Any:
    """Linear layers with ReLU between them."""
    for weight, bias in network[:-1]:
        inputs = jax.nn.relu(inputs @ weight + bias)
    weight, bias = network[-1]
    return inputs @ weight + bias


def policy(actor: Any, observations: Any, key: Any) -> tuple[Any, Any]:
    """Actions [B, A] in [-1, 1] and their log-probabilities [B]."""
    mean, log_std = jnp.split(mlp(actor, observations), 2, -1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    noise = jax.random.normal(key, mean.shape)
    before = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.9189385
    log_prob = log_prob - 2.0 * (0.6931472 - before - jax.nn.softplus(-2.0 * before))
    return jnp.tanh(before), log_prob.sum(-1)


def values(critics: Any, observations: Any, actions: Any) -> Any:
    """The values [2, B] of both critics."""
    inputs = jnp.concatenate([observations, actions], -1)
    return jnp.stack([mlp(critic, inputs)[:, 0] for critic in critics])


@jax.jit
def mean_action(actor: Any, observations: Any) -> Any:
    """The action without noise."""
    return jnp.tanh(jnp.split(mlp(actor, observations), 2, -1)[0])


@jax.jit
def noisy_action(actor: Any, observations: Any, key: Any) -> Any:
    """An action with noise."""
    return policy(actor, observations, key)[0]


def begin(settings: Settings, num_inputs: int, num_actions: int) -> tuple[dict[str, Any], Any]:
    """The learner's tree of arrays, and the optimizer of each part."""
    keys = jax.random.split(jax.random.key(settings.seed), 3)
    hidden = settings.hidden
    learned = {
        "actor": layers(keys[0], num_inputs, hidden, hidden, 2 * num_actions),
        "critics": [layers(key, num_inputs + num_actions, hidden, hidden, 1) for key in keys[1:]],
        "log_alpha": jnp.zeros(()),
    }
    optimizer = optax.adam(settings.learning_rate)
    steps = {name: optimizer.init(part) for name, part in learned.items()}
    return {"learned": learned, "targets": learned["critics"], "steps": steps}, optimizer


@partial(jax.jit, static_argnums=(0, 1, 2))
def update(optimizer: Any, target_rate: float, num_actions: int, state: Any, rows: Any, key: Any) -> tuple[Any, Any]:
    """One step of all parts. Returns the new state and the critics' loss."""
    learned, (now, later) = state["learned"], jax.random.split(key)
    alpha = jnp.exp(learned["log_alpha"])
    actions, log_prob = policy(learned["actor"], rows["next_observation"], now)
    value = values(state["targets"], rows["next_observation"], actions).min(0) - alpha * log_prob
    target = rows["reward"] + rows["discount"] * value

    def critic_loss(critics: Any) -> Any:
        return ((values(critics, rows["observation"], rows["action"]) - target) ** 2).mean(1).sum()

    def actor_loss(actor: Any) -> tuple[Any, Any]:
        chosen, log_prob = policy(actor, rows["observation"], later)
        return (alpha * log_prob - values(critics, rows["observation"], chosen).min(0)).mean(), log_prob.mean()

    loss, gradient = jax.value_and_grad(critic_loss)(learned["critics"])
    changes, critic_step = optimizer.update(gradient, state["steps"]["critics"])
    critics = optax.apply_updates(learned["critics"], changes)
    gradient, entropy = jax.grad(actor_loss, has_aux=True)(learned["actor"])
    changes, actor_step = optimizer.update(gradient, state["steps"]["actor"])
    actor = optax.apply_updates(learned["actor"], changes)
    change, alpha_step = optimizer.update(-(entropy - num_actions), state["steps"]["log_alpha"])
    steps = {"actor": actor_step, "critics": critic_step, "log_alpha": alpha_step}
    targets = jax.tree.map(lambda slow, fast: slow + target_rate * (fast - slow), state["targets"], critics)
    learned = {"actor": actor, "critics": critics, "log_alpha": learned["log_alpha"] + change}
    return {"learned": learned, "targets": targets, "steps": steps}, loss


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("jax_sac", settings)
    saved = run.load()

    def make_env() -> gymnasium.Env[Any, Any]:
        return environments.make_bounded(settings.env)

    env = make_env()
    num_inputs, num_actions = env.observation_space.shape[0], env.action_space.shape[0]
    if saved:
        table = saved.table
    else:
        spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space, float64_as="float32")
        index = relive.Index(relive.Transitions(gamma=settings.gamma), limiter=relive.MinSize(settings.min_size))
        table = relive.Table(spec, settings.capacity, index, seed=settings.seed)
    state, optimizer = begin(settings, num_inputs, num_actions)
    shape = jax.tree.structure(state)
    if saved:
        state = jax.tree.unflatten(shape, [jnp.asarray(leaf) for leaf in saved.learner["leaves"]])
    run.result.random_return = frame.random_return(make_env)
    recorded = record(env, table)
    recorded.action_space.seed(settings.seed + run.step)
    observation, _ = recorded.reset(seed=settings.seed + run.step)
    columns = ["observation", "action", "reward", "discount", "next_observation"]

    step, keys = run.step, jax.random.key(settings.seed + run.step)
    with run.course(lambda: (table, {"leaves": [np.asarray(leaf) for leaf in jax.tree.leaves(state)]})):
        while run.goes_on(step):
            keys, key, other = jax.random.split(keys, 3)
            if step < settings.min_size:
                action = recorded.action_space.sample()
            else:
                action = np.asarray(noisy_action(state["learned"]["actor"], observation[None], key))[0]
            observation, _, terminated, truncated, _ = recorded.step(action)
            step += 1
            if terminated or truncated:
                observation, _ = recorded.reset()
            if table.num_items() >= settings.min_size:
                rows = dict(table.sample(settings.batch_size, columns=columns))
                state, loss = update(optimizer, settings.target_rate, num_actions, state, rows, other)
                if step % 100 == 0:  # a conversion waits for the device
                    run.log(critic_loss=float(loss))
            if run.evaluation_is_due(step):
                actor = state["learned"]["actor"]
                run.evaluated(
                    frame.evaluate(lambda seen, a=actor: mean_action(a, seen), make_env, settings.eval_episodes)
                )
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
