"""Torn reads: writers on the host overwrite a shared table while the device draws and gathers from it.

`python -m gpu.soak [--device cuda|cpu] [--seconds S] [--out FOLDER]`, with tests/ on the path. Every cell of a row says
which step it is. The device checks every row of every batch: all cells of a row are of one step, the rows of an item
follow each other, and sums are those of the item's steps. One writer after another is killed and replaced, and pages
move. The exit status is 1 if a row was torn, or if the run shows nothing: no key went, or the table was hardly
overwritten. `--believe` leaves the re-check out: the run must then find torn rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CAPACITY = 6000  # steps: few pages, which are reused within a millisecond or two
MOST_STEPS = 40  # of an episode
NUMBERS = 1 << 20  # of steps: float32 holds sums of some of them exactly
NUM_WRITERS = 3
BATCH = 512
SMALL_BATCH = 32  # of the interpreter
KILL_EVERY_S = 3.0
DRAW_S = 10.0  # deadline of a draw
OVERWRITTEN = {"cuda": 10, "cpu": 0.2}  # times, for a run that shows something
# The interpreter takes seconds for a round on a busy machine: beside writers that never rest no page would hold still.
REST_S = {"cuda": 0.0, "cpu": 0.1}  # of a writer, after each episode


@dataclass
class Found:
    """The counts of a run."""

    device: str = ""
    seconds: float = 0.0
    batches: int = 0
    items: int = 0
    rows: int = 0
    torn: int = 0
    absent: int = 0  # keys of an earlier draw that were gone, or went while they were read
    steps_written: int = 0
    writers_killed: int = 0
    pages_moved: int = 0
    gave_up: int = 0  # draws whose items never held still until the deadline
    faults: int = 0  # that table.check() finds at the end


def indexes() -> dict[str, Any]:
    """One index for each way in which kernels find rows."""
    import relive

    prioritized = relive.Prioritized(priority_exponent=1.0)
    windows = relive.Sequences(9, burn_in=4, bootstrap=1, period=5, at_end="shift")
    return {
        "stacks": relive.Index(relive.Transitions(stack={"frame": 4}), prioritized),
        "returns": relive.Index(relive.Transitions(n_step=5)),
        "windows": relive.Index(windows, prioritized),
        "crossing": relive.Index(relive.Sequences(9, burn_in=6, bootstrap=1, period=5, at_end="cross")),
        "ragged": relive.Index(relive.Episodes(MOST_STEPS, bootstrap=1, layout="ragged")),
    }


COLUMNS = ["observation", "frame", "action", "reward", "next_observation", "next_frame", "num_steps", "episode_step"]
TIMED = [*COLUMNS[:5], "mask", "num_steps", "episode_step"]


# ---- rows that are not whole --------------------------------------------------------------------------------------


def torn_transitions(batch: Any, present: Any) -> tuple[int, int]:
    """(items, torn ones) of single steps: states, stacks at both ends, and sums over the steps."""
    import torch

    action, steps, at = batch["action"], batch["num_steps"].long(), batch["episode_step"].long()
    good = (batch["observation"] == action[:, None]).all(1)
    good &= (batch["next_observation"] == (action + steps)[:, None]).all(1)
    good &= batch["reward"] == (steps * action + steps * (steps - 1) // 2).float()
    for name, newest, before in (("frame", action, at), ("next_frame", action + steps, at + steps)):
        frames = batch[name]
        frames = frames[:, None] if frames.ndim == 3 else frames
        back = torch.arange(frames.shape[1] - 1, -1, -1, device=action.device)
        numbers = (newest[:, None] - torch.minimum(back[None, :], before[:, None])) % 251
        good &= (frames == numbers[:, :, None, None]).flatten(1).all(1)
    return int(present.sum()), int((~good & present).sum())


def torn_windows(batch: Any, present: Any) -> tuple[int, int]:
    """(rows, torn ones) of items with a time axis, rows of padding left out."""
    import torch

    mask, action = batch["mask"], batch["action"]
    good = (batch["observation"] == action[..., None]).all(-1)
    good &= (batch["next_observation"] == action[..., None] + 1).all(-1)
    good &= (batch["frame"] == (action % 251)[..., None, None]).flatten(action.ndim).all(-1)
    good &= batch["reward"] == action.float()
    at = batch["episode_step"].long()
    if action.ndim == 1:  # rows end to end: those of one item follow each other
        item = torch.bucketize(torch.arange(len(action), device=action.device), batch.offsets[1:], right=True)
        follows = (item[1:] != item[:-1]) | ~mask[1:] | ~mask[:-1] | (action[1:] - action[:-1] == 1) | (at[1:] == 0)
        good[1:] &= follows
        return int(mask.sum()), int((~good & mask).sum())
    both = mask[:, 1:] & mask[:, :-1]
    good[:, 1:] &= ~both | (action[:, 1:] - action[:, :-1] == 1) | (at[:, 1:] == 0)
    mask = mask & present[:, None]
    return int(mask.sum()), int((~good & mask).sum())


# ---- writers ------------------------------------------------------------------------------------------------------


def write(name: str, seed: int, rest_s: float, parent: int) -> None:
    """Writes episodes of numbered steps to the shared table until the process is killed, or its parent is gone."""
    import relive
    from gpu.tools import numbered_rows

    rng = random.Random(seed)
    with relive.attach(name) as table, table.writer() as writer:
        while os.getppid() == parent:
            count = rng.randint(1, MOST_STEPS)
            writer.extend(**numbered_rows(rng.randrange(NUMBERS - MOST_STEPS), count), truncated=True)
            time.sleep(rest_s)


class Writers:
    """Processes that write. One after another is killed in the midst of its work, and replaced."""

    def __init__(self, name: str, count: int, rest_s: float) -> None:
        self._name = name
        self._rest_s = rest_s
        self._seeds = iter(range(1 << 30))
        self._processes = [self._new() for _ in range(count)]
        self._next_kill_s = time.monotonic() + 2 * KILL_EVERY_S
        self.killed = 0

    def _new(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gpu.soak", "--writer", self._name, "--rest", str(self._rest_s)]
        command += ["--seed", str(next(self._seeds)), "--parent", str(os.getpid())]
        return subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})

    def keep_going(self) -> None:
        """Kills the oldest writer when its time has come. Raises RuntimeError if a writer has ended by itself."""
        ended = [one for one in self._processes if one.poll() is not None]
        if ended:
            raise RuntimeError(f"a writer ended by itself, with status {ended[0].returncode}")
        if time.monotonic() >= self._next_kill_s:
            self._next_kill_s = time.monotonic() + KILL_EVERY_S
            self._kill(self._processes.pop(0))
            self._processes.append(self._new())
            self.killed += 1

    def close(self) -> None:
        """Kills all."""
        while self._processes:
            self._kill(self._processes.pop())

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()


# ---- the run ------------------------------------------------------------------------------------------------------


def read_all(table: Any, reader: Any, batch_size: int, found: Found, held: dict[str, Any]) -> None:
    """Batches of each index: one by a draw of its own, one by keys of a draw before, one by keys drawn just now."""
    import torch

    from relive.errors import DeadlineExceeded

    for name in table.indexes:
        timed = name in ("windows", "crossing", "ragged")
        columns, torn_in = (TIMED, torn_windows) if timed else (COLUMNS, torn_transitions)
        try:
            drawn = reader.sample(batch_size, columns, DRAW_S, index=name)
            now = reader.draw(batch_size, DRAW_S, index=name)
        except DeadlineExceeded:
            found.gave_up += 1
            continue
        everyone = torch.ones(batch_size, dtype=torch.bool, device=reader.device)
        batches = [(drawn, everyone)]
        if name in held:
            again = reader.gather(held[name], columns, index=name)
            batches.append((again, again.present))
            found.absent += int((~again.present).sum())
        at_once = reader.gather(now, columns)
        batches.append((at_once, at_once.present))
        found.absent += int((~at_once.present).sum())
        held[name] = drawn.item_keys
        for batch, present in batches:
            rows, torn = torn_in(batch, present)
            found.batches += 1
            found.items += int(present.sum())
            found.rows += rows
            found.torn += torn


def run(device: str, seconds: float, say: Callable[[str], None] = print) -> Found:
    """Reads beside writers for a while; what was seen."""
    import relive
    from gpu.tools import numbered_spec
    from relive.gpu import DeviceReader

    name = f"soak{os.getpid()}"
    found = Found(device=device)
    storage = relive.SharedMemory(name)
    start_s = said_s = time.monotonic()
    with relive.Table(numbered_spec(), CAPACITY, indexes(), storage=storage, max_lanes=16, seed=5) as table:
        writers = Writers(name, NUM_WRITERS, REST_S[device])
        held: dict[str, Any] = {}
        try:
            with DeviceReader(table, device) as reader:
                while time.monotonic() < start_s + seconds:
                    writers.keep_going()
                    read_all(table, reader, SMALL_BATCH if device == "cpu" else BATCH, found, held)
                    found.pages_moved += table._core.move_all_pages() if found.batches % 50 < 15 else 0
                    if time.monotonic() - said_s > 10.0:
                        said_s = time.monotonic()
                        say(f"{said_s - start_s:5.0f} s: {found.rows:,} rows, {found.torn} torn, {found.absent} absent")
        finally:
            writers.close()
        found.writers_killed = writers.killed
        found.steps_written = table.stats().appended
        found.faults = _faults(table)
        found.seconds = round(time.monotonic() - start_s, 1)
    return found


def _faults(table: Any) -> int:
    from relive.errors import ReliveError

    try:
        table.check()
    except ReliveError as error:
        print(error)
        return 1
    return 0


def believe_all() -> None:
    """Leaves the re-check out: what was ready is present."""
    from gpu.tools import bools_at
    from relive.gpu.kernels.words import PRESENT, READY, WANTED
    from relive.gpu.launch import Rounds, Scratch

    def believe(self: Rounds, span: Any, scratch: Scratch, present: int, only_generation: bool) -> None:
        scratch.state[scratch.state == int(READY.value)] = int(PRESENT.value)
        scratch.cells[0] = (scratch.state == int(WANTED.value)).sum()
        if present:
            bools_at(present, scratch.num_items).copy_(scratch.state == int(PRESENT.value))

    Rounds._recheck = believe  # type: ignore[method-assign]


def main(arguments: list[str] | None = None) -> int:
    """Runs a writer, or the whole; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.soak", description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, help="where soak.json goes")
    parser.add_argument("--believe", action="store_true", help="without the re-check: rows must be torn")
    parser.add_argument("--writer", help=argparse.SUPPRESS)
    parser.add_argument("--rest", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.environ.setdefault("RELIVE_TEST_DEVICE", options.device)
    if options.device == "cpu" or options.writer:
        os.environ["TRITON_INTERPRET"] = "1"
    if options.writer:
        write(options.writer, options.seed, options.rest, options.parent)
        return 0
    if options.believe:
        believe_all()
    found = run(options.device, options.seconds)
    values = asdict(found)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "soak.json").write_text(json.dumps(values, indent=1) + "\n")
    print(", ".join(f"{name} {value}" for name, value in values.items()))
    nothing = [what for what, is_so in _shows_nothing(found).items() if is_so]
    for what in nothing:
        print(f"the run shows nothing: {what}", file=sys.stderr)
    return 1 if found.torn or found.faults or nothing else 0


def _shows_nothing(found: Found) -> dict[str, bool]:
    return {
        "no key went": found.absent == 0,
        "the table was hardly overwritten": found.steps_written < OVERWRITTEN[found.device] * CAPACITY,
        "no rows were read": found.rows == 0,
        "a draw was given up": found.gave_up > 0 and found.device != "cpu",
    }


if __name__ == "__main__":
    sys.exit(main())
