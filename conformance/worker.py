"""Runs cases on one system, in that system's environment: `python -m conformance.worker SYSTEM SEED RESULTS NAME...`.

The worker writes a line of JSON for each case to the file RESULTS as soon as the case ends. If a case kills this
process, the earlier lines remain. A case that takes longer than CASE_LIMIT_S ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import sys

from conformance.cases import by_name
from conformance.system import System
from conformance.verdicts import run_case

CASE_LIMIT_S = 30


def make(system: str, seed: int) -> System:
    """A fresh system of this name; each is imported in its own environment only."""
    if system == "reverb":
        from conformance.reverb_system import ReverbSystem

        return ReverbSystem()
    from conformance.relive_system import ReliveSystem

    return ReliveSystem(seed)


def main() -> int:
    system, seed, results, *names = sys.argv[1:]
    cases = by_name()
    with open(results, "a") as lines:
        for name in names:
            faulthandler.dump_traceback_later(CASE_LIMIT_S, exit=True)
            outcome = run_case(cases[name], system, make(system, int(seed)))
            lines.write(json.dumps({"name": name, **outcome.as_dict()}) + "\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
