"""How fast a run will be, from what its parts cost: the tuner's model. No clock, no process, no random number.

  unknown     x, environment steps a second; updates a second are r x, r = updates_per_step: the limiter sees to it
  an actor    steps e environments in turn_s(e): the environments, the policy, the insert. One of n actors has n-th of
              the steps, and takes over every publication, of which there are r x / publish_period a second:
                w_a = x turn_s(e) / (e n) + (r x / publish_period) take_s              seconds of work a second
  a learner   draws B items, learns from its slice of B / L rows, and meets the others at each of g gradients, whose
              rows it adds up (sync is 0 for one learner):
                u   = sample_s(B) + update_s(B / L) + g (sync_s + (L - 1) add_s) + publish_s / publish_period
                w_l = r x u          the other L - 1 learners: r x (u - sample_s(B) - publish_s / publish_period)
              where batches are gathered by a thread of their own, its work is beside u and not in it
  crowding    work takes longer while the other cores are busy too (shared caches, memory, halves of one core):
                f_p = 1 + (slow - 1) min(1, sum of the others' shares / (cores - 1)),  share_p = w_p f_p
              slow is what was measured, for acting and for learning, with both at once
  limits      acting:   an actor's share is at most 1              learning: the leader's is
              cores:    the sum of all shares is at most the cores
              x is the largest that keeps all three.
  inline      the leader acts too: w_a of all actors is its work, with turns and updates as they were measured in turns
              in one process, where each finds the caches as the other left them:
                turn_s(e) is turns_here(e), sample_s and update_s are slow_here(e) times as long

What it cannot see: waits for the table's lock beyond those of one actor and one learner, what a core loses when it is
handed from one process to another, memory that more cores than were measured would want at once, and the time that
evaluations, checkpoints and callbacks take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import final

from relive.agents.config import require
from relive.train.topology import Actors, Inline, Learners, Topology

_HALVINGS = 50
_ROUNDS = 30
_NEAR = 0.03  # predictions so close are alike: the simpler setting is chosen
_MOST_ENVS = 16
MOST_CORES = 1024

Curve = tuple[tuple[int, float], ...]  # (size, seconds) by size, two at least where it is to be followed beyond one


def at(curve: Curve, size: float) -> float:
    """The curve's value: straight between its points, and straight on beyond them, never below 0 nor falling."""
    if len(curve) == 1:
        return curve[0][1]
    first, last = curve[0], curve[1]
    for point in curve[2:]:
        if size <= last[0]:
            break
        first, last = last, point
    slope = (last[1] - first[1]) / (last[0] - first[0])
    if size > curve[-1][0]:
        slope = max(0.0, slope)  # what was measured of more was less by chance
    return max(0.0, last[1] + slope * (size - last[0]))


@final
@dataclass(frozen=True)
class Costs:
    """What the parts of a run cost on a machine, in seconds; medians of the rounds of one calibration.

    cores: those that it was measured on. turns: of an actor, by its environments: all that it does in one. turns_here:
    the same between updates, in the process that learns; slow_here: times that a draw and its update take between such
    turns, by their environments. parts: the shares of environment, inference and insert in a turn, by environments.
    samples: of a draw with its columns and of giving priorities back, by items. updates: by rows. gradients: that
    learners meet at in one update. sync_s: the waits of a gradient that two share; None: not measured. add_s: adding
    one more row to it. publish_s, take_s: a publication, for the learner and for an actor. slow_acting, slow_learning:
    times that both take while the other runs. spread: the median of the parts' interquartile ranges over the rounds, as
    a share of the median.
    """

    cores: int
    turns: Curve
    turns_here: Curve
    slow_here: Curve
    parts: Mapping[int, Mapping[str, float]]
    samples: Curve
    updates: Curve
    gradients: float
    sync_s: float | None
    add_s: float
    publish_s: float
    take_s: float
    slow_acting: float
    slow_learning: float
    spread: float

    def __post_init__(self) -> None:
        for name in ("turns", "turns_here", "slow_here", "samples", "updates"):
            curve: Curve = getattr(self, name)
            sizes = [size for size, _ in curve]
            require(bool(sizes) and sizes == sorted(set(sizes)), f"sizes of {name}", "one at least, rising", sizes)
            require(all(seconds > 0 for _, seconds in curve), f"seconds of {name}", "> 0", curve)
        require(min(self.slow_acting, self.slow_learning) >= 1, "slow-downs", ">= 1", (self.slow_acting,))


@final
@dataclass(frozen=True)
class Setting:
    """What is chosen: the processes of a run, the environments of each actor, the batch of all learners.

    inline: there are no actor processes, the first learner steps the actors in turn.
    """

    num_actors: int
    num_envs: int
    batch_size: int
    num_learners: int = 1
    inline: bool = False

    @property
    def topology(self) -> Topology:
        """As the configuration of a run says it."""
        if self.num_learners > 1:
            return Learners(self.num_learners)
        return Inline() if self.inline else Actors(self.num_actors)

    @property
    def num_processes(self) -> int:
        """That compute."""
        return self.num_learners + (0 if self.inline else self.num_actors)

    @property
    def options(self) -> dict[str, object]:
        """{path: value} of a run's options."""
        return {
            "topology": self.topology,
            "acting.num_actors": self.num_actors,
            "acting.inline": self.inline and self.num_learners > 1,
            "environment.num_envs_per_actor": self.num_envs,
            "agent.batch_size": self.batch_size,
        }

    def __str__(self) -> str:
        topology = self.topology
        actors = ""
        if isinstance(topology, Learners):
            actors = " that act" if self.inline else f" of {self.num_actors} actors"
        envs = "environment" if self.num_envs == 1 else "environments"
        return f"{topology}{actors}, {self.num_envs} {envs} each, batch {self.batch_size}"


@final
@dataclass(frozen=True)
class Work:
    """What does not depend on the setting: updates a step, updates a publication, whether a thread gathers ahead."""

    updates_per_step: float
    publish_period: int
    gathers_ahead: bool = False


class Limit(Enum):
    """What keeps a run from being faster."""

    ACTING = "acting"
    LEARNING = "learning"
    CORES = "cores"


@final
@dataclass(frozen=True)
class Prediction:
    """Of one setting on so many cores. busy: cores at work, on average.

    beyond: why it reaches further than what was measured; "" where it does not.
    """

    setting: Setting
    cores: int
    steps_per_s: float
    updates_per_s: float
    limit: Limit
    busy: float
    beyond: str = ""


@final
@dataclass(frozen=True)
class _Load:
    """Seconds of work for one environment step: of one actor process, of the leader, of another learner, of a thread.

    acting: of the leader's, what acting takes. counts: how many there are of each.
    """

    seconds: tuple[float, float, float, float]
    counts: tuple[int, int, int, int]
    acting: float

    @property
    def total(self) -> float:
        return sum(one * count for one, count in zip(self.seconds, self.counts, strict=True))


def _load(costs: Costs, setting: Setting, work: Work) -> _Load:
    publications = work.updates_per_step / work.publish_period  # for each step
    num_steps = setting.num_envs * setting.num_actors
    turns, slow = (costs.turns_here, at(costs.slow_here, setting.num_envs)) if setting.inline else (costs.turns, 1.0)
    actor = at(turns, setting.num_envs) / num_steps + publications * costs.take_s
    drawn = slow * at(costs.samples, setting.batch_size)
    learnt = slow * at(costs.updates, setting.batch_size / setting.num_learners)
    if setting.num_learners > 1:
        learnt += costs.gradients * ((costs.sync_s or 0.0) + (setting.num_learners - 1) * costs.add_s)
    ahead = drawn if work.gathers_ahead and not setting.inline else 0.0
    leader = learnt + drawn - ahead + costs.publish_s / work.publish_period
    ratio, others = work.updates_per_step, setting.num_learners - 1
    mine = actor * setting.num_actors if setting.inline else 0.0
    seconds = (0.0 if setting.inline else actor, ratio * leader + mine, ratio * learnt, ratio * ahead)
    return _Load(seconds, (0 if setting.inline else setting.num_actors, 1, others, 1), mine)


def _shares(costs: Costs, load: _Load, steps_per_s: float, cores: int) -> tuple[float, float, float]:
    """Of an actor, of the leader, and the sum of all, at so many steps a second: crowding's fixed point."""
    mine, counts = [part * steps_per_s for part in load.seconds], load.counts
    slow = [costs.slow_acting, costs.slow_learning, costs.slow_learning, costs.slow_learning]
    shares = list(mine)
    for _ in range(_ROUNDS):
        total = sum(share * count for share, count in zip(shares, counts, strict=True))
        shares = [
            work * (1.0 + (times - 1.0) * min(1.0, max(0.0, total - share) / (cores - 1))) if cores > 1 else work
            for work, times, share in zip(mine, slow, shares, strict=True)
        ]
    return shares[0], shares[1], sum(share * count for share, count in zip(shares, counts, strict=True))


def predict(costs: Costs, setting: Setting, work: Work, cores: int | None = None) -> Prediction:
    """How fast a run of this setting is on so many cores; None: those that the costs were measured on."""
    cores = costs.cores if cores is None else cores
    require(1 <= cores <= MOST_CORES, "cores", f"in [1, {MOST_CORES}]", cores)
    load = _load(costs, setting, work)
    rate, limit, busy = _fastest(costs, load, cores)
    if limit is Limit.LEARNING and load.acting > load.seconds[1] / 2:
        limit = Limit.ACTING  # the leader's: it spends more on that
    beyond = _beyond(costs, setting, cores)
    return Prediction(setting, cores, rate, rate * work.updates_per_step, limit, busy, beyond)


def _fastest(costs: Costs, load: _Load, cores: int) -> tuple[float, Limit, float]:
    """The largest rate that keeps the limits, by halving; the one it meets first; the cores at work."""

    def fullest(rate: float) -> tuple[float, Limit, float]:
        actor, leader, total = _shares(costs, load, rate, cores)
        kept = [(actor, Limit.ACTING), (leader, Limit.LEARNING), (total / cores, Limit.CORES)]
        fill, limit = max(kept, key=lambda one: one[0])
        return fill, limit, total

    low, high = 0.0, 1.0 / max(*load.seconds, load.total / cores)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fullest(middle)[0] <= 1.0 else (low, middle)
    _, limit, busy = fullest(low)
    return low, limit, min(busy, float(cores))


def _beyond(costs: Costs, setting: Setting, cores: int) -> str:
    if cores > costs.cores:
        return f"{cores} cores: measured on {costs.cores}"
    if setting.num_learners > 1 and costs.sync_s is None:
        return "several learners: not measured"
    if setting.num_learners > 2:
        return f"{setting.num_learners} learners: measured with 2"
    return ""


def candidates(cores: int, batch_sizes: Sequence[int], most_envs: int = _MOST_ENVS) -> Iterator[Setting]:
    """The settings that are looked at: one process, and up to a process a core and one more.

    most_envs: of an actor. Environments come in powers of two, as do processes beyond four. Learners divide the batch.
    """
    envs = [number for number in _steps_up(most_envs) if number <= most_envs]
    for batch_size, num_envs in product(batch_sizes, envs):
        for num_learners in _counts(cores):
            if batch_size % num_learners == 0:
                yield Setting(1, num_envs, batch_size, num_learners, inline=True)
        for num_learners, num_actors in product(_counts(cores), _counts(cores)):
            fits = num_actors + num_learners <= cores + 1 and batch_size % num_learners == 0
            if fits or num_actors == num_learners == 1:
                yield Setting(num_actors, num_envs, batch_size, num_learners)


def _steps_up(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def _counts(cores: int) -> list[int]:
    return sorted({*range(1, min(4, cores) + 1), *_steps_up(cores), cores})


def envs_that_fit(min_size: int) -> int:
    """Environments an actor may have before a round of them is more than the limiter lets by: a power of two.

    The limiter lets each side get ahead by a tenth of min_size or by four rounds, whichever is more; more environments
    than that would change how old the data is that a run learns from.
    """
    return max(number for number in _steps_up(_MOST_ENVS) if number <= max(1, min_size // 40))


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The best first. Those within 3% of the best one left are alike: the one with the fewest processes comes first.

    Then the one with the fewest learners, then with the fewest environments.
    """
    left, order = list(predictions), []
    while left:
        best = max(one.steps_per_s for one in left)
        alike = [one for one in left if one.steps_per_s >= (1.0 - _NEAR) * best]
        alike.sort(key=_simplicity)
        order.append(alike[0])
        left.remove(alike[0])
    return order


def _simplicity(one: Prediction) -> tuple[int, int, int]:
    setting = one.setting
    return setting.num_processes, setting.num_learners, setting.num_envs


def best_of_each_kind(order: Sequence[Prediction]) -> list[Prediction]:
    """Of a ranked list the first of each topology and number of actors."""
    found: dict[object, Prediction] = {}
    for one in order:
        found.setdefault((str(one.setting.topology), one.setting.num_actors, one.setting.inline), one)
    return list(found.values())
