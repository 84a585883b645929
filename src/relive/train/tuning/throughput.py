"""Predicts how fast a run will be from the costs of its parts: the model of the tuner. It reads no clock.

  unknown     x, environment steps a second. The limiter makes r x updates a second, r = updates_per_step.
  an actor    steps e environments in step_s(e): the environments, the policy, the insert. One of n actors takes one
              n-th of the steps, and reads every publication; there are r x / publish_period of them a second:
                w_a = x step_s(e) / (e n) + (r x / publish_period) take_s              seconds of work a second
  a learner   draws B items, learns from its slice of B / L rows, and combines each of g gradients with the others,
              whose rows it adds up (sync_s is 0 for one learner):
                u   = sample_s(B) + update_s(B / L) + g (sync_s + (L - 1) add_s) + publish_s / publish_period
                w_l = r x u          the other L - 1 learners: r x (u - sample_s(B) - publish_s / publish_period)
              If a thread gathers batches ahead, its work counts by itself and not in u.
  crowding    Work takes longer while other cores are busy as well (shared caches, memory, two threads of one core):
                f_p = 1 + (slow - 1) min(1, sum of the others' shares / (cores - 1)),  share_p = w_p f_p
              slow was measured for acting and for learning, with both at once.
  limits      acting:   the share of an actor is at most 1         learning: the share of the leader is at most 1
              cores:    the sum of all shares is at most the number of cores
              x is the largest rate within all three limits.
  inline      The leader acts as well, so that w_a of all actors is its work. Steps and updates were measured
              alternately in one process, where each finds the caches as the other left them:
                step_s(e) is steps_here(e), sample_s and update_s take slow_here(e) times as long

The model leaves out: waits for the table's lock beyond those of one actor and one learner; the loss when a core
switches between processes; memory that more cores than were measured would need at once; and the time of evaluations,
checkpoints and callbacks.
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
_NEAR = 0.03  # predictions that differ by less are alike: the simpler setting is chosen
_MOST_ENVS = 16
MOST_CORES = 1024

Curve = tuple[tuple[int, float], ...]  # (size, seconds) by size; one point is a constant


def at(curve: Curve, size: float) -> float:
    """Returns the value of a curve: linear between its points and beyond them, but never below 0 and never falling."""
    if len(curve) == 1:
        return curve[0][1]
    first, last = curve[0], curve[1]
    for point in curve[2:]:
        if size <= last[0]:
            break
        first, last = last, point
    slope = (last[1] - first[1]) / (last[0] - first[0])
    if size > curve[-1][0]:
        slope = max(0.0, slope)  # a larger size that took less time did so by chance
    return max(0.0, last[1] + slope * (size - last[0]))


@final
@dataclass(frozen=True)
class Costs:
    """The costs of the parts of a run on a machine, in seconds: medians over the rounds of one calibration.

    Attributes:
        cores: Cores of the measurement.
        steps: A step of all environments of an actor with everything that belongs to it, by number of environments.
        steps_here: The same between updates, in the process that learns.
        slow_here: Factor by which a draw and its update take longer between such steps, by number of environments.
        parts: Shares of environment, inference and insert in a step, by number of environments.
        samples: A draw with its columns and the return of its priorities, by items.
        updates: An update, by rows.
        gradients: Gradients of one update that learners combine.
        sync_s: Waits at a gradient that two learners share; None: not measured.
        add_s: Adding one more row to a gradient.
        publish_s: A publication, for the learner.
        take_s: A publication, for an actor.
        slow_acting: Factor by which acting takes longer while learning runs.
        slow_learning: Factor by which learning takes longer while acting runs.
        spread: Median of the interquartile ranges of the parts over the rounds, as a share of the median.
    """

    cores: int
    steps: Curve
    steps_here: Curve
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
        for name in ("steps", "steps_here", "slow_here", "samples", "updates"):
            curve: Curve = getattr(self, name)
            sizes = [size for size, _ in curve]
            require(bool(sizes) and sizes == sorted(set(sizes)), f"sizes of {name}", "one at least, rising", sizes)
            require(all(seconds > 0 for _, seconds in curve), f"seconds of {name}", "> 0", curve)
        require(min(self.slow_acting, self.slow_learning) >= 1, "slow-downs", ">= 1", (self.slow_acting,))


@final
@dataclass(frozen=True)
class Setting:
    """The settings that the tuner chooses.

    Attributes:
        num_actors: Actors.
        num_envs: Environments of each actor.
        batch_size: Batch of all learners together.
        num_learners: Learners.
        inline: No actor processes: the first learner steps the actors between updates.
    """

    num_actors: int
    num_envs: int
    batch_size: int
    num_learners: int = 1
    inline: bool = False

    @property
    def topology(self) -> Topology:
        """The topology of a run with this setting."""
        if self.num_learners > 1:
            return Learners(self.num_learners)
        return Inline() if self.inline else Actors(self.num_actors)

    @property
    def num_lanes(self) -> int:
        """Environments of all actors together. Each has a lane of the table."""
        return self.num_actors * self.num_envs

    @property
    def num_processes(self) -> int:
        """Processes that compute."""
        return self.num_learners + (0 if self.inline else self.num_actors)

    @property
    def options(self) -> dict[str, object]:
        """The options of a run with this setting, {path: value}."""
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
    """The facts of a run that do not depend on the setting.

    Attributes:
        updates_per_step: Updates for each environment step.
        publish_period: Updates for each publication of parameters.
        gathers_ahead: Whether a thread gathers batches ahead.
    """

    updates_per_step: float
    publish_period: int
    gathers_ahead: bool = False


class Limit(Enum):
    """The limit that a run meets first."""

    ACTING = "acting"
    LEARNING = "learning"
    CORES = "cores"


@final
@dataclass(frozen=True)
class Prediction:
    """The predicted speed of a setting.

    Attributes:
        setting: The setting.
        cores: Cores.
        steps_per_s: Environment steps a second.
        updates_per_s: Updates a second.
        limit: The limit that the run meets first.
        busy: Cores at work, on average.
        beyond: Why the prediction goes beyond the measurements; "": it does not.
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
    """Seconds of work for one environment step.

    Attributes:
        seconds: Seconds of one actor process, of the leader, of another learner, and of the thread that gathers ahead.
        counts: How many there are of each.
        acting: The part of the leader's seconds that is acting.
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
    steps, slow = (costs.steps_here, at(costs.slow_here, setting.num_envs)) if setting.inline else (costs.steps, 1.0)
    actor = at(steps, setting.num_envs) / num_steps + publications * costs.take_s
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
    """Returns the shares of an actor, of the leader, and of all together at this rate: the fixed point of crowding."""
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
    """Predicts the speed of a setting on `cores` cores; None: those of the measurement."""
    cores = costs.cores if cores is None else cores
    require(1 <= cores <= MOST_CORES, "cores", f"in [1, {MOST_CORES}]", cores)
    load = _load(costs, setting, work)
    rate, limit, busy = _fastest(costs, load, cores)
    if limit is Limit.LEARNING and load.acting > load.seconds[1] / 2:
        limit = Limit.ACTING  # the leader acts as well, and spends more time on that
    beyond = _beyond(costs, setting, cores)
    return Prediction(setting, cores, rate, rate * work.updates_per_step, limit, busy, beyond)


def _fastest(costs: Costs, load: _Load, cores: int) -> tuple[float, Limit, float]:
    """Returns the largest rate within the limits, found by bisection, the limit that it meets, and the busy cores."""

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
    """Gives the settings that the tuner considers: one process, and up to one process more than cores.

    Numbers of environments are powers of two, up to most_envs for an actor. So are numbers of processes above four. The
    number of learners divides the batch.
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
    """Returns the most environments of an actor, a power of two, that do not change the age of the data.

    The limiter lets each side get ahead by a tenth of min_size or by four steps of all environments, whichever is more.
    With more environments than these the run would learn from older data.
    """
    return max(number for number in _steps_up(_MOST_ENVS) if number <= max(1, min_size // 40))


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Sorts predictions, the best first.

    Predictions within 3% of the best one that is left are alike. Among these the order is: fewest processes, then
    fewest learners, then fewest environments.
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
    """Returns the first prediction of each topology and number of actors in a sorted list."""
    found: dict[object, Prediction] = {}
    for one in order:
        found.setdefault((str(one.setting.topology), one.setting.num_actors, one.setting.inline), one)
    return list(found.values())
