"""GRPO: a language model of a million parameters learns sums from a checker, with replay of groups.

Papers: Shao et al. 2024 (DeepSeekMath: GRPO), Yu et al. 2025 (DAPO: the wider upper clip, no KL term).

    A_i    = (r_i - mean(r)) / (std(r) + 1e-4)                   over the rollouts i of one prompt, its group
    ratio  = p_now(token) / p_then(token)                        p_then is stored with the token
    loss   = -mean_tokens min(ratio A, clip(ratio, 1 - low, 1 + high) A)
    P(group) ~ mean_i |A_i| * decay^staleness                    draws of replay

Every `groups` new groups are trained once, and then `replays` batches of earlier groups are. A rollout stops after
`budget` tokens and goes on after the next updates, so its tokens have several versions. A process of its own checks the
answers, so a reward arrives later than its tokens. A step is a generated token.

Deviations from the papers: the model first learns from examples until one answer in ten is right; the learning rate
falls to zero; the rewards are 0 and 1, so mean_i |A_i| is 2 sqrt(variance of r), which the table knows of a group.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import frame
import numpy as np
import torch
from sums import END, TEXT, Checker, Job, Sums
from torch import nn
from transformer import CausalTransformer

import relive


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of GRPO."""

    steps: int = 240_000  # generated tokens
    digits: int = 1  # of the two numbers of a sum
    lanes: int = 128  # rollouts under way
    group_size: int = frame.at_least(2, 8)
    groups: int = 64  # of an update; fewer make noisier steps
    budget: int = 2  # tokens of a rollout between two updates
    replays: int = frame.at_least(0, 2)  # updates with earlier groups after each update with new ones; 0: no replay
    decay: float = 0.9  # of a group's probability for each update since
    max_staleness: int = frame.at_least(0, 24)  # updates
    clip_low: float = 0.2
    clip_high: float = 0.28
    width: int = 128
    layers: int = 5
    learning_rate: float = 5e-4
    warm_reward: float = frame.within(0, 0.5, 0.1)  # of the examples' policy
    judge_s: float = 0.02  # the checker's time for its work of one round


class Model(nn.Module):
    """Logits [B, T, tokens] of texts [B, T] of at most `length` tokens."""

    def __init__(self, settings: Settings, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(TEXT), settings.width), nn.Embedding(length, settings.width)
        self.blocks = CausalTransformer(settings.width, settings.layers, heads=4)
        self.head = nn.Linear(settings.width, len(TEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]]))


class Learner:
    """The model, its optimizer, and one update of either kind."""

    def __init__(self, settings: Settings, state: dict[str, Any]) -> None:
        self.settings, self.sums = settings, Sums(settings.digits, settings.seed)
        self.model = Model(settings, self.sums.length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.learning_rate, weight_decay=0.0)
        self.version = state.get("version", 0)
        if state:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    def state(self) -> dict[str, Any]:
        """Everything that a continued run needs."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "version": self.version}

    def _step(self, loss: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def next_tokens(self, tokens: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples the token after each text [M, T] of these lengths. Returns tokens and their log probabilities."""
        seen = self.model(torch.as_tensor(tokens[:, : lengths.max()]))
        scores = seen[torch.arange(len(seen)), torch.as_tensor(lengths) - 1].log_softmax(-1)
        chosen = torch.multinomial(scores.exp(), 1)
        return chosen[:, 0].numpy(), scores.gather(1, chosen)[:, 0].numpy()

    def warm_up(self) -> None:
        """Learns from examples until the samples are right as often as `warm_reward` says."""
        prompt_length, solved = self.sums.prompt_length, self.sums.solved_prompts(128)
        while self.sums.mean_reward(self.next_tokens) < self.settings.warm_reward:
            for rows in (torch.from_numpy(next(solved)) for _ in range(4)):
                output = self.model(rows[:, :-1])[:, prompt_length - 1 :]
                self._step(nn.functional.cross_entropy(output.flatten(0, 1), rows[:, prompt_length:].flatten()))

    def update(self, batch: relive.Batch) -> float:
        """One step on groups [B, G, T]."""
        rows = batch.to_torch()
        tokens, mask = rows["token"].flatten(0, 1).long(), rows["mask"] & rows["is_answer"]
        reward = (rows["reward"] * rows["mask"]).sum(-1)  # [B, G]
        advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        now = self.model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        then, mask = rows["log_prob"].flatten(0, 1)[:, 1:], mask.flatten(0, 1)[:, 1:]
        ratio, gain = (now - then)[mask].exp(), advantage.flatten()[:, None].expand_as(mask)[mask]
        clipped = ratio.clamp(1.0 - self.settings.clip_low, 1.0 + self.settings.clip_high)
        self.version += 1
        return self._step(-torch.minimum(ratio * gain, clipped * gain).mean())


class Rollouts:
    """The rollouts under way, one in each lane of a writer. A lane's tokens are kept until its rollout ends."""

    def __init__(self, settings: Settings, table: relive.Table, state: dict[str, Any]) -> None:
        self.settings, self.sums = settings, Sums(settings.digits, settings.seed)
        self.writer, self.lanes = table.writer(num_lanes=settings.lanes), np.arange(settings.lanes)
        kinds = {"tokens": np.int64, "log_probs": np.float32, "versions": np.int64, "keys": np.int64}
        self.rows = {name: np.zeros((settings.lanes, self.sums.length), kind) for name, kind in kinds.items()}
        self.rows |= {name: np.zeros(settings.lanes, np.int64) for name in ("length", "prompt")}
        self.started = 0  # rollouts; rollout k answers prompt k // group_size
        if state:  # a load has ended the lanes: their rollouts begin again with the tokens that they have
            self.started, self.rows = state["started"], state["rows"]
            for at in range(self.sums.length):
                self.write(np.flatnonzero(self.rows["length"] > at), at)

    def write(self, lanes: np.ndarray, at: int | np.ndarray) -> None:
        """Appends the tokens at a position of these lanes, each with the version that made it."""
        place = np.broadcast_to(at, lanes.shape)
        versions = self.rows["versions"][lanes, place]
        for version in np.unique(versions):
            ids, where = lanes[versions == version], place[versions == version]
            token, is_answer = self.rows["tokens"][ids, where], where >= self.sums.prompt_length
            ends = is_answer & (token == END) | (where == self.sums.length - 1)
            self.writer.set_policy_version(int(version))
            self.rows["keys"][ids, where] = self.writer.append(
                token=token, log_prob=self.rows["log_probs"][ids, where], is_answer=is_answer,
                prompt=self.rows["prompt"][ids], terminated=ends, lanes=ids,
            )  # fmt: skip

    def go_on(self, learner: Learner) -> list[Job]:
        """Adds a token to each rollout. Returns the rollouts that ended."""
        rows, lanes, length = self.rows, self.lanes, self.rows["length"]
        free = np.flatnonzero(length == 0)
        for lane in free:
            rows["prompt"][lane] = self.started // self.settings.group_size
            rows["tokens"][lane, : self.sums.prompt_length] = self.sums.prompt(int(rows["prompt"][lane]))
            self.started += 1
        rows["versions"][free], length[free] = learner.version, self.sums.prompt_length
        for at in range(self.sums.prompt_length):
            self.write(free, at)
        rows["tokens"][lanes, length], rows["log_probs"][lanes, length] = learner.next_tokens(rows["tokens"], length)
        rows["versions"][lanes, length] = learner.version
        self.write(lanes, length)
        ends = np.flatnonzero((rows["tokens"][lanes, length] == END) | (length == self.sums.length - 1))
        length += 1
        parts = [(int(rows["prompt"][lane]), lane, length[lane]) for lane in ends.tolist()]
        length[ends] = 0
        return [(at, rows["tokens"][lane, :end].copy(), rows["keys"][lane, :end].copy()) for at, lane, end in parts]


def make_table(settings: Settings, name: str) -> relive.Table:
    """Two indexes of groups over the same tokens: new groups, each drawn once, and earlier groups, drawn by |A|."""
    spec = {"token": relive.ArraySpec((), "uint8"), "is_answer": relive.ArraySpec((), "bool")}
    spec |= {"log_prob": relive.ArraySpec((), "float32"), "reward": relive.ArraySpec((), "float32", late=True)}
    spec["prompt"] = relive.ArraySpec((), "int64", kind="episode")
    length = Sums(settings.digits, settings.seed).length
    groups = relive.Episodes(length, group_by="prompt", group_size=settings.group_size, max_groups=1_024)
    by_size = relive.PromptGroups("variance", of="reward", priority_exponent=0.5)
    indexes = {
        "new": relive.Index(groups, relive.Fifo(), max_times_sampled=1),
        "earlier": relive.Index(groups, by_size, max_staleness=settings.max_staleness),
    }
    capacity, storage = 1_024 * settings.group_size * length, relive.SharedMemory(name)
    return relive.Table(relive.StepSpec(spec), capacity, indexes, storage=storage, seed=settings.seed)


def sample(table: relive.Table, settings: Settings, index: str) -> relive.Batch | None:
    """A batch of groups, or None if there is none at the moment."""
    try:
        return table.sample(settings.groups, index=index, timeout_s=0.0)
    except (relive.DeadlineExceeded, relive.errors.WaitsForItself):
        return None


def let_age(table: relive.Table, settings: Settings) -> None:
    """Gives every earlier group the priority (mean |A| * decay^staleness)^2, up to a factor; its exponent is 1/2."""
    for keys in table.keys("earlier"):
        rows = table.gather(keys, columns=["reward", "staleness", "mask"], index="earlier")
        variance = (rows["reward"] * rows["mask"]).sum(-1).var(-1)
        age_factor = settings.decay ** (2.0 * rows["staleness"].max(-1))
        table.update_priorities(keys, variance * age_factor, index="earlier")


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run, name = frame.Run("grpo", settings), f"grpo-{os.getpid()}"
    saved = run.load(relive.SharedMemory(name))
    told = saved.learner if saved else {}
    learner = Learner(settings, told.get("learner", {}))
    if not saved:
        run.result.random_return = learner.sums.mean_reward(learner.next_tokens)
        learner.warm_up()
    recent, trained = deque(told.get("recent", []), 1_000), told.get("trained", [])
    with saved.table if saved else make_table(settings, name) as table:
        rollouts, step = Rollouts(settings, table, told), run.step
        checker = Checker(name, learner.sums, settings.judge_s, 2 * settings.lanes, told.get("unchecked", []))

        def state() -> tuple[relive.Table, dict[str, Any]]:
            under_way = {"started": rollouts.started, "rows": rollouts.rows, "unchecked": [*checker.unchecked.values()]}
            return table, {"learner": learner.state(), "recent": [*recent], "trained": trained} | under_way

        with run.course(state):
            while run.goes_on(step):
                learner.optimizer.param_groups[0]["lr"] = settings.learning_rate * (1.0 - step / settings.steps)
                ended = [job for _ in range(settings.budget) for job in rollouts.go_on(learner)]
                recent += checker.exchange(ended)
                step += settings.budget * settings.lanes
                while (batch := sample(table, settings, "new")) is not None:
                    loss = learner.update(batch)
                    table.set_policy_version(learner.version)
                    trained += batch["prompt"][:, 0].tolist()
                    for _ in range(settings.replays):
                        let_age(table, settings)
                        if (batch := sample(table, settings, "earlier")) is not None:
                            learner.update(batch)
                    run.log(loss=loss, version=learner.version)
                if run.evaluation_is_due(step) and recent:
                    run.evaluated(float(np.mean(recent)))
            run.result.facts = {"updates": learner.version, "restarts": checker.restarts}
        checker.close()
    return run.result


if __name__ == "__main__":
    main()
