"""The outcome of a case on a system, and the comparison of both systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

from conformance.system import DONE, System
from conformance.words import SAME, Call, Case, Other, Shares, agrees, in_words

__all__ = ["DIFFERS", "FAILED", "MET", "Outcome", "conflicts", "counted", "run_case"]

MET = "as expected"
DIFFERS = "differs on purpose"
FAILED = "failed"
BY_CHANCE = (Shares, Other)


@final
@dataclass(frozen=True)
class Outcome:
    """verdict: MET, DIFFERS or FAILED. detail: the call of a failure, with its expected and its given result.

    observed: what the calls gave, in order; draws by chance, where they were as expected, as the shares asked for.
    """

    verdict: str
    detail: str = ""
    observed: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}


def run_case(case: Case, name: str, system: System) -> Outcome:
    """Runs one case on 'reverb' or 'relive', and closes the system."""
    observed: list[Any] = []
    try:
        system.read(case.calls)
        for call in _calls(case):
            expected = call.expected_of(name)
            given = getattr(system, call.verb)(*call.arguments, **call.options)
            if not agrees(expected, given):
                detail = f"{call}: expected {in_words(expected)}, got {given}"
                return Outcome(FAILED, detail, [*observed, given], system.notes)
            observed.append(in_words(expected) if isinstance(expected, BY_CHANCE) else given)
            if call.verb == "open" and given != DONE:  # without tables there is nothing to call
                break
    except Exception as error:  # whatever a system does, the other cases go on
        return Outcome(FAILED, f"{type(error).__name__}: {error}", observed, system.notes)
    finally:
        system.close()
        system.end_waits()
    return Outcome(DIFFERS if name == "relive" and case.differs else MET, "", observed, system.notes)


def _calls(case: Case) -> Iterator[Call]:
    """The programme, its opening first: every table is made without complaint, unless the case says otherwise."""
    first = case.calls[0] if case.calls and case.calls[0].verb == "open" else Call("open")
    yield Call("open", (case.setup,), {}, first.expected, first.relive)
    yield from (call for call in case.calls if call.verb != "open")


def conflicts(case: Case, reverb: Mapping[str, Any], relive: Mapping[str, Any]) -> list[str]:
    """Calls expected to give the same that gave different things, where both systems ran to their end."""
    if FAILED in (reverb["verdict"], relive["verdict"]):
        return []
    pairs = zip(_calls(case), reverb["observed"], relive["observed"], strict=False)  # one may end with its opening
    return [
        f"{call}: reverb gave {one}, relive {other}"
        for call, one, other in pairs
        if call.relive is SAME and not isinstance(call.expected, BY_CHANCE)
        if not (one == other or (agrees(call.expected, one) and agrees(call.expected, other)))
    ]


def counted(outcomes: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """How often each verdict stands."""
    return Counter(one["verdict"] for one in outcomes)
