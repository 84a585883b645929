"""An index: what an item is, how it is drawn, when, and how long it stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, final

from relive._checks import integer
from relive.errors import CapacityTooSmall, InvalidConfig, SpecError
from relive.items import Transitions
from relive.limiters import MinSize, SamplesPerInsert
from relive.samplers import Fifo, Prioritized, Uniform
from relive.spec import StepSpec

__all__ = ["DEFAULT_INDEX_NAME", "Index", "Limiter", "Sampler", "check_min_sizes", "named_indexes"]

Sampler: TypeAlias = Uniform | Prioritized
Limiter: TypeAlias = MinSize | SamplesPerInsert

DEFAULT_INDEX_NAME = "default"
MAX_INDEXES = 8
MAX_TIMES_SAMPLED = 65_533
_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Transitions, Uniform, Prioritized, MinSize, SamplesPerInsert, Fifo)
}


@final
@dataclass(frozen=True)
class Index:
    """One way to sample the steps of a table. A table may have several, over the same steps.

    items: Transitions. sampler: Uniform or Prioritized. limiter: MinSize or SamplesPerInsert. remover: Fifo.
    max_times_sampled: an item goes after so many draws (claimed under the lock, exactly); None: no limit.
    Raises InvalidConfig.
    """

    items: Transitions = Transitions()
    sampler: Sampler = Uniform()
    limiter: Limiter = MinSize()
    remover: Fifo = Fifo()
    max_times_sampled: int | None = None

    def __post_init__(self) -> None:
        for what, value, kinds in (
            ("items", self.items, (Transitions,)),
            ("sampler", self.sampler, (Uniform, Prioritized)),
            ("limiter", self.limiter, (MinSize, SamplesPerInsert)),
            ("remover", self.remover, (Fifo,)),
        ):
            if not isinstance(value, kinds):
                names = " or ".join(f"{kind.__name__}(...)" for kind in kinds)
                raise InvalidConfig(f"{what} of an Index", names, value)
        if self.max_times_sampled is not None:
            times = integer("max_times_sampled", self.max_times_sampled, 1, MAX_TIMES_SAMPLED)
            object.__setattr__(self, "max_times_sampled", times)

    def check_against(self, spec: StepSpec) -> None:
        """Raises SpecError or UnknownColumn where the spec lacks what this index needs."""
        spec.expand_stack(self.items.stack)
        reward = spec.columns.get("reward")
        if self.items.n_step > 1 and reward is not None and (reward.kind != "step" or reward.dtype.kind != "f"):
            raise SpecError(
                "column 'reward'", f"a float step column, as n_step={self.items.n_step} sums it", repr(reward)
            )

    def core_config(self, name: str, spec: StepSpec) -> dict[str, Any]:
        """The index as the core reads it."""
        sampler, limiter = self.sampler, self.limiter
        prioritized = isinstance(sampler, Prioritized)
        initial: tuple[str, float] = ("max", 0.0)
        if isinstance(sampler, Prioritized):
            is_number = not isinstance(sampler.initial, str)
            initial = ("number", float(sampler.initial)) if is_number else (str(sampler.initial), 0.0)
        paced = isinstance(limiter, SamplesPerInsert)
        return {
            "name": name,
            "n_step": self.items.n_step,
            "gamma": self.items.gamma,
            "stack": spec.expand_stack(self.items.stack),
            "stack_pad": self.items.stack_pad,
            "sampler": "prioritized" if prioritized else "uniform",
            "priority_exponent": sampler.priority_exponent if isinstance(sampler, Prioritized) else 1.0,
            "initial": initial,
            "limiter": "samples_per_insert" if paced else "min_size",
            "min_size": limiter.min_size,
            "samples_per_insert": limiter.samples_per_insert if isinstance(limiter, SamplesPerInsert) else 0.0,
            "tolerance": limiter.half_window if isinstance(limiter, SamplesPerInsert) else 0.0,
            "max_times_sampled": self.max_times_sampled or 0,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; from_dict gives an equal Index back."""
        parts: dict[str, Any] = {"max_times_sampled": self.max_times_sampled}
        for name in ("items", "sampler", "limiter", "remover"):
            part = getattr(self, name)
            parts[name] = {"type": type(part).__name__, **asdict(part)}
        return parts

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Index:
        """The Index that to_dict wrote. Raises InvalidConfig."""
        built: dict[str, Any] = {}
        for name, value in parts.items():
            if isinstance(value, Mapping):
                options = dict(value)
                kind = _KINDS.get(str(options.pop("type", None)))
                if kind is None:
                    raise InvalidConfig(f"{name} of an Index", " or ".join(_KINDS), value.get("type"))
                built[name] = kind(**options)
            else:
                built[name] = value
        return cls(**built)


def named_indexes(index: Index | Mapping[str, Index] | None, spec: StepSpec) -> dict[str, Index]:
    """{name: Index} of what a user gave for index=, each checked against the spec. Raises InvalidConfig, SpecError."""
    if index is None:
        index = Index()
    named = dict(index) if isinstance(index, Mapping) else {DEFAULT_INDEX_NAME: index}
    if not 1 <= len(named) <= MAX_INDEXES:
        raise InvalidConfig("index", f"1 to {MAX_INDEXES} indexes", len(named))
    for name, one in named.items():
        if not isinstance(name, str) or not name or len(name.encode()) > 63:
            raise InvalidConfig("name of an index", "1 to 63 bytes of text", name)
        if not isinstance(one, Index):
            raise InvalidConfig(f"index {name!r}", "an Index(...)", one)
        one.check_against(spec)
    return named


def check_min_sizes(capacity: int, indexes: Mapping[str, Index]) -> None:
    """Raises CapacityTooSmall where a min_size could never be reached.

    A lane in a long episode keeps steps back that are stored and cannot be drawn: its oldest (stack - 1), whose stacks
    reach further back (with the largest stack of all indexes), and its newest (n_step - 1), whose windows are not
    complete. (A writer that gives no next keeps its newest step back, too.)
    """
    stack = max((depth for one in indexes.values() for depth in one.items.stack.values()), default=1)
    for name, one in indexes.items():
        needed = one.limiter.min_size + stack - 1 + one.items.n_step - 1
        if needed > capacity:
            kept = f"stack {stack} - 1 and n_step {one.items.n_step} - 1 steps that no item begins at"
            arithmetic = f"index {name!r}: min_size {one.limiter.min_size}, and of one lane {kept}"
            raise CapacityTooSmall(capacity, needed, arithmetic=arithmetic)
