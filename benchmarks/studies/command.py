"""The command of a study over worlds: runs what is not finished, in processes of its own, and reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.run import RESULTS
from benchmarks.studies.runner import Job, run_jobs


class Study(NamedTuple):
    """A study.

    Attributes:
        name: The folder of its results.
        about: The text of --help.
        worlds: By name, frozen dataclasses that have num_steps and num_seeds.
        one: Makes one run in this process, from the decoded argument of --one. Returns its result, for JSON.
        jobs_of: The jobs of these worlds, in order.
        report: Writes the results of these worlds below a folder. Returns the table as text.
    """

    name: str
    about: str
    worlds: Mapping[str, Any]
    one: Callable[[Any], dict[str, Any]]
    jobs_of: Callable[[Sequence[Any]], list[Job]]
    report: Callable[[Sequence[Any], Path], str]


def main(study: Study) -> int:
    """Runs and reports. Ctrl-C ends the job that runs; the same command goes on. Returns the exit status."""
    parser = argparse.ArgumentParser(description=study.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(study.worlds), help="names, by commas")
    parser.add_argument("--seeds", type=int, help="so many of each, in place of all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of a run")
    parser.add_argument("--report", action="store_true", help="run nothing, tell what is finished")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(study.one(json.loads(arguments.one))))
        return 0
    names = arguments.worlds.split(",")
    for name in names:
        if name not in study.worlds:
            sys.exit(f"worlds: some of {list(study.worlds)}, not {name!r}")
    worlds = [
        replace(study.worlds[name], num_steps=round(study.worlds[name].num_steps * arguments.scale)) for name in names
    ]
    if arguments.seeds is not None:
        worlds = [replace(world, num_seeds=arguments.seeds) for world in worlds]
    failed: list[str] = []
    if not arguments.report:
        try:
            failed = run_jobs(study.jobs_of(worlds), arguments.out / study.name)
        except KeyboardInterrupt:
            print("stopped; the same command goes on", flush=True)
    print(study.report(worlds, arguments.out))
    return 1 if failed else 0
