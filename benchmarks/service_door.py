"""The door of the service: TLS against plaintext, hostile clients beside an honest one, revoked tokens and restarts.

`make bench-service`, or `python -m benchmarks.service_door [--quick] [--only PART ...] [--acts ACT ...]`. It writes
benchmarks/results/door.json and door.md. Everything runs on this machine; hostile clients run when no other process
wants the core, because a stranger has a machine of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.door import harm, lives, speed
from benchmarks.door.place import BUDGET, MIB, make_place
from benchmarks.tables import markdown_table

RESULTS = Path(__file__).resolve().parent / "results" / "door.json"
GIGABYTE = 1_000_000_000


def tls_of(folder: Path, given: argparse.Namespace) -> Any:
    """TLS against plaintext."""
    return speed.compared(folder, *((1, 0.3) if given.quick else (7, 1.5)))


def harm_of(folder: Path, given: argparse.Namespace) -> Any:
    """Each act without a token, and with the lowest role that allows it."""
    found = []
    for act in harm.ACTS:
        for role in ("none", act.role):
            if act.name in given.acts:
                told = harm.measured(folder, act, role, *((3.0, 1) if given.quick else (6.0, 3)))
                found.append(told | {"faults": harm.faults(told)})
                print(line_of(found[-1]), flush=True)
    return found


def with_earlier(found: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The acts measured now, and those of an earlier run that were not, in the order of the acts."""
    now = {(one["act"], one["role"]) for one in found}
    acts = [act.name for act in harm.ACTS]
    kept = [one for one in earlier if (one["act"], one["role"]) not in now]
    return sorted(found + kept, key=lambda one: (acts.index(one["act"]), one["role"] != "none"))


def revoked_of(folder: Path, given: argparse.Namespace) -> Any:
    """Revoked tokens."""
    return lives.revoked(folder, 1 if given.quick else 10)


def restarts_of(folder: Path, given: argparse.Namespace) -> Any:
    """Restarts of `relive serve`."""
    return lives.restarted(folder, GIGABYTE, 1 if given.quick else 7)


PARTS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "tls": tls_of, "harm": harm_of, "revoked": revoked_of, "restarts": restarts_of,
}  # fmt: skip


def line_of(told: dict[str, Any]) -> str:
    """One act, for the terminal."""
    ratios = ", ".join(f"{name} {told[name]['ratio']} x" for name in harm.CALLS)
    memory = f"{told['before_mb']:.0f} -> {max(told['peak_mb']):.0f} -> {told['after_mb']:.0f} MB"
    return f"{told['act']}, {told['role']}: {ratios}; {memory}; {'; '.join(told['faults']) or 'within the limits'}"


def page(found: dict[str, Any]) -> str:
    """The page door.md."""
    described = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    pieces = [f"# door{' (quick run)' if found['quick'] else ''}\n", f"{described}\n"]
    if "tls" in found:
        pieces += ["## TLS against plaintext\n", markdown_table(tls_lines(found["tls"]), 1)]
    if "harm" in found:
        pieces += ["## Hostile clients\n", *HARM_TEXT, markdown_table(harm_lines(found["harm"]), 2)]
    for name in ("revoked", "restarts"):
        if name in found:
            one = found[name]
            text = f"{LIVES[name]}: median {one['median_s']:.2f} s, longest {one['longest_s']:.2f} s"
            pieces.append(f"{text}; limit {one['at_most_s']:.0f} s.\n")
    return "\n".join(pieces)


HARM_TEXT = (
    "An honest client samples 256 small rows and appends one row a hundred times a second each, and connects twice a "
    "second. The 99th percentiles are medians of the rounds; the ratio is the median of the ratios within rounds, at "
    f"most {harm.MOST_P99:.0f}. Memory is private memory of the server in MiB: before, the peak, and after (at most "
    f"{harm.ALLOWED // MIB} and {harm.LEFT // MIB} above the value before, the latter within 60 s). The budgets are "
    f"{BUDGET // MIB} MiB of work and {BUDGET // MIB} MiB of answers.\n",
)
LIVES = {
    "revoked": "From the change of the file of the tokens to the end of a revoked token's stream",
    "restarts": "From the start of `relive serve` to the first answer, with a table of 1 GB, after SIGTERM and SIGKILL",
}


def tls_lines(told: dict[str, Any]) -> list[list[str]]:
    """The table of TLS."""
    lines = [["call", "plaintext us", "TLS us", "TLS / plaintext", "at most"]]
    for name, one in told.items():
        times = [f"{one[f'{side}_us']:,.0f}" for side in ("plain", "tls")]
        lines.append([name, *times, f"{one['ratio']:.2f}", f"{one['at_most']:.2f}"])
    return lines


def harm_lines(told: list[dict[str, Any]]) -> list[list[str]]:
    """The table of the acts."""
    heading = ["act", "role", "tries/s", "sample ms", "meanwhile", "ratio", "append ms", "meanwhile", "ratio"]
    lines = [[*heading, "memory", "peak", "after", "back s", "limits"]]
    texts = {act.name: act.told for act in harm.ACTS}
    for one in told:
        cells = [texts[one["act"]], one["role"], f"{middle(one['tries_a_second']):,.0f}"]
        for name in harm.CALLS:
            cells += [f"{middle(one[name][key]):.2f}" for key in ("alone_ms", "meanwhile_ms")]
            cells.append(f"{one[name]['ratio']:.2f}")
        back = "more than 60" if None in one["back_s"] else f"{max(one['back_s']):.0f}"
        cells += [f"{one['before_mb']:.0f}", f"{max(one['peak_mb']):.0f}", f"{one['after_mb']:.0f}", back]
        lines.append([*cells, "; ".join(one["faults"]) or "kept"])
    return lines


def middle(values: list[float]) -> float:
    """The median."""
    return sorted(values)[len(values) // 2]


def main() -> int:
    """Runs the parts, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a trial: short, and written to results/quick")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts; the figures of the others stay")
    parser.add_argument("--acts", nargs="+", choices=[act.name for act in harm.ACTS])
    given = parser.parse_args()
    given.acts = given.acts or [act.name for act in harm.ACTS]
    out = RESULTS.parent / "quick" / RESULTS.name if given.quick else RESULTS
    found = json.loads(out.read_text()) if given.only and out.exists() else {"part": "door"}
    found |= {"quick": given.quick, "machine": machine.describe()}
    for name in given.only or PARTS:
        with tempfile.TemporaryDirectory() as made:
            make_place(Path(made))
            told = PARTS[name](Path(made), given)
            found[name] = with_earlier(told, found.get(name, [])) if name == "harm" else told
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
        out.with_suffix(".md").write_text(page(found))
        print(name, "done", flush=True)
    sys.stdout.write(f"saved in {out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
