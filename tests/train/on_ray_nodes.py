"""A program: Ray nodes in a network and a process tree of its own, and what training runs do there, as JSON.

usage: unshare --net --pid --fork --kill-child --mount-proc python on_ray_nodes.py FOLDER SCENARIO ...
FOLDER: for Ray's files and the runs, its path short. SCENARIO: a function of this file. All that the program started
ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fleet.on_two_nodes import ADDRESS, HEAD, OTHER, raise_loopback, start_node

from train.runs import SHM, Run

SMALL = (
    "--set", "agent.network.hidden=16", "--set", "replay.min_size=200", "--set", "evaluation.num_episodes=1",
    "--set", "evaluation.num_final_episodes=1", "--set", "evaluation.stop_return=none",
    "--set", "cluster.cpus_per_actor=0.5", "--set", "limits.checkpoint_period_s=1",
)  # fmt: skip
WAITING = (
    *SMALL, "--env", "train.worlds:Waiting-v0", "--set", "replay.updates_per_step=0.001",
    "--set", "evaluation.period_updates=1_000_000", "--set", "serving.max_staleness_s=6",
)  # fmt: skip


def main(folder: str, *names: str) -> None:
    raise_loopback()
    # A token that another cluster has left in the user's folder is not of these nodes.
    os.environ.update({"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "HOME": folder})
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])  # for environments of the tests
    os.environ.pop("RAY_ADDRESS", None)
    told: dict[str, Any] = {}
    for name in names:
        begun = time.monotonic()
        try:
            told[name] = globals()[name](Path(folder))
        except Exception:
            told[name] = traceback.format_exc()
        sys.stderr.write(f"{name} took {time.monotonic() - begun:.1f} s\n")
    sys.stdout.write("\n" + json.dumps(told) + "\n")


# ---- what the machine has --------------------------------------------------------------------------------------------


def raylets() -> dict[str, int]:
    """{address of a node: process id of its raylet}."""
    found = {}
    for pid, words in commands():
        if words[0].endswith("/raylet"):
            (ip,) = (word.partition("=")[2] for word in words if word.startswith("--node_ip_address="))
            found[ip] = pid
    return found


def commands() -> list[tuple[int, list[str]]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if words[0]:
                found.append((int(path.parent.name), words))
    return found


def actors(ip: str | None = None) -> list[int]:
    """Process ids of the actors of runs, on one node or on all."""
    nodes = raylets()
    found = [pid for pid, words in commands() if words[0].startswith("ray::_Actor")]
    return [pid for pid in found if ip is None or parent(pid) == nodes.get(ip)]


def shards(ip: str | None = None) -> list[int]:
    """Process ids of the owners of shards of runs, on one node or on all."""
    nodes = raylets()
    found = [pid for pid, words in commands() if words[0].startswith("ray::_RunShard")]
    return [pid for pid in found if ip is None or parent(pid) == nodes.get(ip)]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def tables() -> set[str]:
    return {path.name for path in SHM.glob("relive-train-*")}


def groups() -> list[str]:
    """Placement groups of runs that are not removed."""
    from ray.util.placement_group import placement_group_table

    from relive.fleet.draws.pace import Wait
    from relive.fleet.ray import join

    join(ADDRESS, Wait(10.0))
    named = (one for one in placement_group_table().values() if one["name"].startswith("relive-train/"))
    return [one["name"] for one in named if one["state"] != "REMOVED"]


def left(before: set[str]) -> list[object]:
    """Actors, tables and placement groups that a run left. Ray ends processes a moment later than it says so."""
    ends = time.monotonic() + 10.0
    while time.monotonic() < ends and (actors() or shards() or groups()):
        time.sleep(0.1)
    return [len(actors() + shards()), sorted(tables() - before), groups()]


def wait(until: Callable[[], Any], run: Run, timeout_s: float = 600.0) -> Any:
    ends = time.monotonic() + timeout_s
    while not (found := until()):
        if time.monotonic() > ends or run.process.poll() is not None:
            raise RuntimeError(f"it did not come to that: {run.text}")
        time.sleep(0.1)
    return found


def last(run: Run, pattern: str) -> int:
    """The last number of its output that the pattern finds; -1 before there is one."""
    found = re.findall(pattern, run.text)
    return int(found[-1].replace(",", "")) if found else -1


def num_steps(run: Run) -> int:
    return last(run, r"steps ([\d,]+) \(")


def connected(run: Run) -> int:
    return last(run, r"remote actors (\d+)")


def more_steps(run: Run) -> Callable[[], bool]:
    before = num_steps(run)
    return lambda: num_steps(run) > before + 50


def started(folder: Path, name: str, *arguments: str) -> Run:
    run_dir = ["--run-dir", str(folder / name)] if "--resume" not in arguments else []
    return Run("dqn", ["--cluster", "ray", *run_dir, *arguments], folder / f"{name}{len(arguments)}.log")


def ended(run: Run, timeout_s: float = 300.0) -> int:
    code: int = run.process.wait(timeout_s)
    if code:
        sys.stderr.write(run.text[-4000:])
    return code


def nodes(*ips: str) -> None:
    """Starts nodes that do not run, and lets the programs that follow find them."""
    for ip in ips:
        if ip not in raylets():
            start_node(os.environ["RAY_TMPDIR"], ip)
    os.environ["RAY_ADDRESS"] = ADDRESS


def kill_node(ip: str) -> None:
    raylet = raylets()[ip]
    for pid in [raylet, *(pid for pid, _ in commands() if parent(pid) == raylet)]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


# ---- scenarios -------------------------------------------------------------------------------------------------------


def without_a_cluster(folder: Path) -> Any:
    run = started(folder, "none", "--actors", "2", *SMALL)
    return [run.process.wait(120), run.text, (folder / "none").exists()]


def refused(folder: Path) -> Any:
    """An environment that fails, one that no node has, and a process that dies: the run ends, and says why."""
    nodes(HEAD)
    before, told = tables(), {}
    for name in ("Faulty", "Deadly"):
        run = started(folder, name, "--actors", "1", "--env", f"train.worlds:{name}-v0", *SMALL)
        told[name] = [run.process.wait(300), run.text[-3000:]]
    told["left"] = left(before)
    return told


def solves(folder: Path) -> Any:
    """CartPole on one Ray node, and without Ray."""
    nodes(HEAD)
    before = tables()
    told: dict[str, Any] = {}
    usual = ["--actors", "2", "--max-steps", "60000", "--stop-return", "195", "--max-minutes", "8"]
    for name, more in (("ray", ["--cluster", "ray"]), ("alone", [])):
        run_dir = folder / f"solves-{name}"
        run = Run("dqn", [*usual, *more, "--run-dir", str(run_dir)], folder / f"solves-{name}.log")
        code = ended(run, 600.0)
        result = json.loads((run_dir / "result.json").read_text())
        told[name] = [code, result["ending"], result["num_steps"], sum(result["returns"]) / len(result["returns"])]
    told["left"] = left(before)
    return told


def killed(folder: Path) -> Any:
    """SIGKILL of an actor, of a node, and of the learner; then --resume on the same cluster."""
    nodes(HEAD, OTHER)
    before, told = tables(), {}
    run = started(folder, "killed", "--actors", "4", "--actors-per-node", "2", "--max-minutes", "20", *SMALL)
    wait(lambda: connected(run) == 4 and num_steps(run) > 300, run)
    told["placed"] = [len(actors(HEAD)), len(actors(OTHER))]

    os.kill(actors(OTHER)[0], signal.SIGKILL)
    wait(lambda: last(run, r"actor restarts (\d+)") == 1 and connected(run) == 4, run)
    wait(more_steps(run), run)
    told["after an actor"] = [len(actors(HEAD)), len(actors(OTHER)), last(run, r"actor restarts (\d+)")]

    kill_node(OTHER)
    wait(lambda: connected(run) == 2, run)
    wait(more_steps(run), run)
    told["after a node"] = [len(actors(HEAD)), len(actors(OTHER)), last(run, r"actor restarts (\d+)") >= 3]
    nodes(OTHER)
    wait(lambda: connected(run) == 4, run)
    wait(more_steps(run), run)
    told["with the node again"] = [len(actors(HEAD)), len(actors(OTHER))]

    wait(lambda: (folder / "killed" / "save" / "CURRENT").exists(), run)
    num_before = num_steps(run)
    run.process.kill()
    run.process.wait(30)
    told["after the learner"] = [left(before)[0], left(before)[2], len(tables() - before)]
    more = started(folder, "resumed", "--resume", str(folder / "killed"), "--max-steps", str(num_before + 2_000))
    told["resumed"] = ended(more)
    result = json.loads((folder / "killed" / "result.json").read_text())
    told["result"] = [result["num_sessions"], result["num_steps"] >= num_before + 2_000, result["num_updates"] > 100]
    told["left"] = left(before)
    return told


def hosts() -> list[int]:
    """Process ids of the other hosts of runs."""
    return [pid for pid, words in commands() if words[0].startswith("ray::_Host")]


def on_hosts(folder: Path) -> Any:
    """A learner, actors and a table on each of two nodes; SIGKILL of the other host; then --resume."""
    nodes(HEAD, OTHER)
    before, told = tables(), {}
    two = ["--set", "topology=hosts(2)", "--actors", "1", "--set", "checkpoint.table=always"]
    run = started(folder, "hosts", *two, "--max-minutes", "20", *SMALL)
    wait(lambda: last(run, r"updates ([\d,]+)") > 50, run)
    other = raylets()[OTHER]
    told["placed"] = [parent(pid) == other for pid in hosts()]
    told["tables"] = len(tables() - before)
    wait(lambda: (folder / "hosts-host1" / "save" / "CURRENT").exists(), run)
    os.kill(hosts()[0], signal.SIGKILL)
    told["killed"] = [run.process.wait(120), "HostGone" in run.text or "lost the others" in run.text]
    told["groups"] = left(before)[2]
    resume = ["--resume", str(folder / "hosts"), "--max-steps", str(num_steps(run) + 1_000)]
    told["resumed"] = ended(started(folder, "hosts-again", *resume))
    told["sessions"] = json.loads((folder / "hosts" / "result.json").read_text())["num_sessions"]
    told["left"] = [*left(before), len(hosts())]
    return told


def host_that_fails(folder: Path) -> Any:
    """The other host cannot make its directory; before that, there is no node for it."""
    before = tables()
    nodes(HEAD)
    alone = started(folder, "alone", "--set", "topology=hosts(2)", "--actors", "1", *SMALL)
    told = [alone.process.wait(300), alone.text[-2000:]]
    nodes(OTHER)
    (folder / "fails-host1").write_text("in the way")
    run = started(folder, "fails", "--set", "topology=hosts(2)", "--actors", "1", *SMALL)
    return [*told, run.process.wait(200), run.text[-2000:], [*left(before), len(hosts())]]


def counted(before: set[str]) -> dict[int, list[int]]:
    """{shard: its steps ever, its items drawn, its steps} of the run that has begun since."""
    import relive

    found = {}
    for name in tables() - before:
        with relive.attach(name.removeprefix("relive-"), read_only=True) as table:
            told = table.stats()
            (index,) = told.indexes.values()
            found[int(name.rpartition("-")[2])] = [told.appended, index.sampled, len(table)]
    return found


def nodes_of_shards(before: set[str]) -> dict[int, str]:
    """{shard: the node of the process that owns it}."""
    from relive.core.attached import attached_pids

    found = {}
    for name in tables() - before:
        pids = attached_pids(str(SHM / name))
        (found[int(name.rpartition("-")[2])],) = (ip for ip in (HEAD, OTHER) if set(shards(ip)) & set(pids))
    return found


def writing(before: set[str]) -> dict[str, list[list[int]]]:
    """{node: for each of its actors, the shards that it maps}."""
    from relive.core.attached import attached_pids

    maps = {int(name.rpartition("-")[2]): attached_pids(str(SHM / name)) for name in tables() - before}
    return {
        ip: [sorted(number for number, pids in maps.items() if pid in pids) for pid in actors(ip)]
        for ip in (HEAD, OTHER)
    }


def sharded(folder: Path) -> Any:
    """Two shards: SIGKILL of an actor, of a shard's owner, of a node, and of the learner; then --resume."""
    nodes(HEAD, OTHER)
    before, told = tables(), {}
    two = ("--actors", "4", "--actors-per-node", "2", "--shards", "2")
    run = started(folder, "sharded", *two, "--max-minutes", "20", "--max-steps", "10000000", *SMALL)
    wait(lambda: connected(run) == 4 and num_steps(run) > 500, run)
    shard_of = {ip: number for number, ip in nodes_of_shards(before).items()}
    told["placed"] = [len(actors(HEAD)), len(actors(OTHER)), len(shards(HEAD)), len(shards(OTHER))]
    told["maps"] = [writing(before)[ip] == [[shard_of[ip]]] * 2 for ip in (HEAD, OTHER)]
    told["written and drawn"] = [min(counted(before)[number]) > 50 for number in (0, 1)]

    os.kill(actors(OTHER)[0], signal.SIGKILL)
    wait(lambda: last(run, r"actor restarts (\d+)") == 1 and connected(run) == 4, run)
    wait(more_steps(run), run)
    wait(lambda: writing(before)[OTHER] == [[shard_of[OTHER]]] * 2, run)
    told["after an actor"] = [len(actors(HEAD)), len(actors(OTHER)), last(run, r"actor restarts (\d+)")]

    (owner,) = shards(OTHER)
    num_kept = counted(before)[shard_of[OTHER]][0]
    os.kill(owner, signal.SIGKILL)
    wait(lambda: shards(OTHER) not in ([], [owner]), run)
    wait(more_steps(run), run)
    wait(lambda: counted(before)[shard_of[OTHER]][0] > num_kept, run)
    told["after an owner"] = [len(actors()), last(run, r"actor restarts (\d+)"), len(shards(OTHER))]

    kill_node(OTHER)
    wait(lambda: connected(run) == 2, run)
    for _ in range(3):
        wait(more_steps(run), run)
    told["after a node"] = [len(actors(HEAD)), len(actors(OTHER)), len(shards())]
    drawn = counted(before)[shard_of[HEAD]][1]
    wait(lambda: counted(before)[shard_of[HEAD]][1] > drawn, run)
    nodes(OTHER)
    wait(lambda: connected(run) == 4, run)
    wait(more_steps(run), run)
    told["with the node again"] = [len(actors(HEAD)), len(actors(OTHER)), len(shards()), writing(before)[OTHER]]

    num_before = num_steps(run)
    run.process.kill()
    run.process.wait(30)
    told["after the learner"] = left(before)
    more = ("--resume", str(folder / "sharded"), "--max-steps", str(num_before + 2_000))
    told["resumed"] = ended(started(folder, "resumed", *more))
    result = json.loads((folder / "sharded" / "result.json").read_text())
    told["result"] = [result["num_sessions"], result["num_steps"] >= num_before + 2_000, result["num_updates"] > 100]
    told["left"] = left(before)
    return told


def shards_solve(folder: Path) -> Any:
    """CartPole with a shard on each of two nodes."""
    nodes(HEAD, OTHER)
    before = tables()
    arguments = ("--actors", "2", "--actors-per-node", "1", "--shards", "2", "--max-steps", "60000")
    run = started(folder, "shards-solve", *arguments, "--stop-return", "195", "--max-minutes", "8")
    wait(lambda: connected(run) == 2 and len(nodes_of_shards(before)) == 2, run)
    wait(lambda: all(min(one) > 100 for one in counted(before).values()) and len(counted(before)) == 2, run)
    code = ended(run, 600.0)
    result = json.loads((folder / "shards-solve" / "result.json").read_text())
    mean = sum(result["returns"]) / len(result["returns"])
    return [code, result["ending"], result["num_steps"], mean, left(before)]


def shards_end(folder: Path) -> Any:
    """Ctrl-C, an error of an environment, too few nodes, and an owner that hangs: nothing is left."""
    nodes(HEAD)
    before, told = tables(), {}
    one = ("--actors", "1", "--shards", "1")
    run = started(folder, "interrupted", *one, *SMALL)
    wait(lambda: num_steps(run) > 200, run)
    run.process.send_signal(signal.SIGINT)
    told["interrupted"] = [run.process.wait(60), (folder / "interrupted" / "checkpoint.pt").exists(), left(before)]
    run = started(folder, "faulty", *one, "--env", "train.worlds:Faulty-v0", *SMALL)
    told["faulty"] = [run.process.wait(120), "the world ends at step 150" in run.text, left(before)]
    run = started(folder, "waits", "--actors", "1", "--shards", "3", *SMALL)
    with contextlib.suppress(RuntimeError):
        wait(lambda: False, run, 10.0)
    told["waits"] = [run.process.poll(), left(before)]
    run.process.send_signal(signal.SIGINT)
    told["waits no more"] = [run.process.wait(20), left(before)]
    run = started(folder, "hangs", *one, *SMALL)
    wait(lambda: num_steps(run) > 200, run)
    os.kill(shards()[0], signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    told["hangs"] = [run.process.wait(90), left(before)]
    return told


def shards_by_hand(folder: Path) -> Any:
    """Two learners of one update; `relive act` joins a run with a shard by hand, and streams its rows to the shard."""
    nodes(HEAD)
    before = tables()
    served = ("--set", "topology=learners(2, sync)", "--serve", "grpc://127.0.0.1:7575")
    run = started(folder, "by-hand", "--actors", "1", "--shards", "1", *served, *SMALL)
    wait(lambda: connected(run) == 1 and num_steps(run) > 200, run)
    log = folder / "act.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "relive.cli", "act", "grpc://127.0.0.1:7575/run"]
        act = subprocess.Popen(command, stdout=output, stderr=output)
    wait(lambda: connected(run) == 2, run)
    wait(more_steps(run), run)
    maps = writing(before)[HEAD]
    act.send_signal(signal.SIGINT)
    code = act.wait(60)
    (steps,) = re.findall(r"([\d,]+) steps, ", log.read_text())
    run.process.send_signal(signal.SIGINT)
    return [maps, code, int(steps.replace(",", "")) > 50, run.process.wait(60), left(before)]


def stopped(folder: Path) -> Any:
    """SIGTERM, whose handler Ray would replace: a checkpoint, and nothing left."""
    nodes(HEAD)
    before = tables()
    run = started(folder, "stopped", "--actors", "1", *SMALL)
    wait(lambda: num_steps(run) > 200, run)
    run.process.terminate()
    code = run.process.wait(60)
    return [code, (folder / "stopped" / "save" / "CURRENT").exists(), left(before)]


def too_many(folder: Path) -> Any:
    """More actors than the nodes have room for: Ctrl-C ends the wait, and the run says what it waits for."""
    nodes(HEAD)
    before = tables()
    run = started(folder, "many", "--actors", "8", "--actors-per-node", "1", *SMALL)
    code = run.process.wait(300)
    return [code, run.text[-2000:], left(before)]


def measured(folder: Path) -> Any:
    """Steps a second of 4 actors on one node and of 8 actors on two, with an environment that waits 2 ms a step."""
    nodes(HEAD, OTHER)
    told: dict[str, Any] = {"4": [], "8": []}
    for _ in range(3):
        for number in (4, 8):
            per_node = ["--actors", str(number), "--actors-per-node", "4"]
            run = started(folder, f"m{number}-{len(told[str(number)])}", *per_node, "--max-minutes", "20", *WAITING)
            wait(lambda run=run, number=number: connected(run) == number, run)  # type: ignore[misc]
            told[str(number)].append(rate(run, 20.0))
            sys.stderr.write(f"{number} actors: {told[str(number)][-1]:,.0f} steps a second\n")
            told["placed"] = [len(actors(HEAD)), len(actors(OTHER))]
            run.process.send_signal(signal.SIGINT)
            run.process.wait(60)
    return told


def rate(run: Run, seconds: float) -> float:
    """Steps a second between two lines of its output that are so far apart, by the times that they have."""

    def line() -> tuple[float, int]:
        time_s, steps = re.findall(r"^ *([\d.]+) s  steps ([\d,]+)", run.text, re.MULTILINE)[-1]
        return float(time_s), int(steps.replace(",", ""))

    first_s, first = line()
    wait(lambda: line()[0] >= first_s + seconds, run)
    last_s, last_steps = line()
    return (last_steps - first) / (last_s - first_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
