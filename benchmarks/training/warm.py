"""`python -m benchmarks.training.warm CASE`: compiles a case's update unless the cache has it; JSON of the seconds.

In a run this happens beside the learner, which waits for none of it; a window of seconds would never see the result.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.training.cases import CASES, SIDES
from benchmarks.training.relive_side import settings_of


def main() -> None:
    from relive.train.acting.environments import describe
    from relive.train.config import preset
    from relive.train.learners.compiled_updates import Compiling, PackageRequest, load_packages

    case = CASES[sys.argv[1]]
    agent = preset(case.agent, case.env_id, settings_of(case, 0, SIDES["relive, actors(1)"])).agent
    spaces = describe(case.env_id)
    functional = agent.make(spaces, seed=0, device="cpu").functional()
    request = PackageRequest(agent, spaces, 1, tuple(functional.steps))
    began_s, found = time.monotonic(), request.is_there
    if not found:
        making = Compiling(request)
        try:
            while not making.ended:
                time.sleep(0.1)
        finally:
            making.stop()
        if making.problem is not None:
            sys.exit(f"not compiled: {making.problem}")
    compiled_s = time.monotonic() - began_s
    load_packages(request)
    print(json.dumps({"found": found, "compile_s": compiled_s, "load_s": time.monotonic() - began_s - compiled_s}))


if __name__ == "__main__":
    main()
