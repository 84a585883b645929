"""A program: two Ray nodes in a network and a process tree of its own, and what fleets do there, as JSON.

usage: unshare --net --pid --fork --kill-child --mount-proc python on_two_nodes.py PREFIX FOLDER SCENARIO ...
PREFIX: of the names of shared memory. FOLDER: for Ray's files, its path short. SCENARIO: a function of this file, such
as `starts`. All that the program started ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HEAD, OTHER = "127.0.0.1", "127.0.0.2"
ADDRESS = f"{HEAD}:6379"
FLEET_TOML = """
name = "{name}"
num_shards = 2
port = 7300
insecure = true
offers = true

[table]
capacity = 1_000

[table.columns]
observation = {{ shape = [2], dtype = "float32", kind = "state" }}
action = {{ dtype = "int64" }}
"""


def main(prefix: str, folder: str, *names: str) -> None:
    raise_loopback()
    # A token that another cluster has left in the user's folder is not of these nodes.
    os.environ.update({"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "HOME": folder})
    os.environ.pop("RAY_ADDRESS", None)
    told: dict[str, Any] = {}
    for scenario in (without_a_cluster, *(globals()[name] for name in names)):
        if told and "RAY_ADDRESS" not in os.environ:
            start_nodes(folder)
            os.environ["RAY_ADDRESS"] = ADDRESS
        begun = time.monotonic()
        try:
            told[scenario.__name__] = scenario(prefix + scenario.__name__[0])
        except Exception:
            told[scenario.__name__] = traceback.format_exc()
            end(prefix + scenario.__name__[0])
        sys.stderr.write(f"{scenario.__name__} took {time.monotonic() - begun:.1f} s\n")
    sys.stdout.write("\n" + json.dumps(told) + "\n")


def end(name: str) -> None:
    """What a scenario that went wrong left."""
    from relive.fleet import ray as fleets

    with contextlib.suppress(Exception):
        fleets.stop(name)


def raise_loopback() -> None:
    """A new network namespace has a loopback device that is down: what `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x1, b""))  # SIOCSIFFLAGS, IFF_UP


def start_nodes(folder: str) -> None:
    for ip in (HEAD, OTHER):
        start_node(folder, ip)


def start_node(folder: str, ip: str) -> None:
    """Starts the head, or another node that joins it."""
    ray = str(Path(sys.executable).with_name("ray"))
    options = ["--num-cpus=3", "--object-store-memory=80000000", "--disable-usage-stats", f"--node-ip-address={ip}"]
    if ip == HEAD:
        options += ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={folder}"]
    else:
        options.append(f"--address={ADDRESS}")
    # By default, Ray's workers are of the lowest priorities: next to other tests they would hardly start.
    usual = {**os.environ, "RAY_worker_niceness": "0"}
    done = subprocess.run([ray, "start", *options], capture_output=True, text=True, timeout=120, env=usual)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def config(
    name: str, num_shards: int = 2, capacity: int = 1_000, port: int = 7170, index: Any = None, **more: Any
) -> Any:
    import relive
    from relive.fleet.ray import FleetConfig
    from relive.service import Door

    more = {"door": Door(insecure=True, offers=True), **more}  # the nodes are namespaces of this machine
    columns = {"observation": relive.ArraySpec((2,), "float32", kind="state"), "action": relive.ArraySpec((), "int64")}
    return FleetConfig(name, num_shards, relive.TableConfig(relive.StepSpec(columns), capacity, index), port, **more)


def write(table: Any, first: int, count: int, **where: Any) -> list[int]:
    keys = []
    with table.writer(**where) as writer:
        for number in range(first, first + count):
            step = {"observation": [number, number], "action": number, "next_observation": [number + 1, number + 1]}
            keys.append(int(writer.append(**step)))
    return keys


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# ---- scenarios -------------------------------------------------------------------------------------------------------


def without_a_cluster(name: str) -> Any:
    from relive.fleet import ray as fleets

    told = {"none": error_of(lambda: fleets.status(name))}
    for address in ("local", "nonsense", f"{HEAD}:1", f"{HEAD}:99999", "ray://127.0.0.1:1"):
        told[address] = error_of(lambda address=address: fleets.start(config(name), 10.0, address))  # type: ignore[misc]
    return told


def starts(name: str) -> Any:
    from relive.fleet import ray as fleets

    told: dict[str, Any] = {"missing": error_of(lambda: fleets.connect(name))}
    told["too many"] = error_of(lambda: fleets.start(config(name, 3), 3.0))
    told["left"] = [path.name for path in Path("/dev/shm").iterdir() if name in path.name]
    reports = fleets.start(config(name))
    told["nodes"] = sorted(report.node_ip for report in reports)
    told["states"] = [(report.number, report.state, report.is_restored, report.capacity) for report in reports]
    told["again"] = error_of(lambda: fleets.start(config(name)))
    fleets.stop(name)
    told["stopped"] = error_of(lambda: fleets.stop(name))
    return told


def from_tasks(name: str) -> Any:
    """A task on each node writes to the shard of its node and draws from both."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from relive.fleet import ray as fleets

    reports = fleets.start(config(name))
    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    told: dict[str, Any] = {"shards": {report.node_ip: report.number for report in reports}, "wrote": {}}
    for first, (ip, node) in enumerate(nodes.items()):
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        placed = ray.remote(in_a_task).options(num_cpus=1, scheduling_strategy=here)
        told["wrote"][ip] = ray.get(placed.remote(name, 100 * first), timeout=120.0)
    with fleets.connect(name) as table:
        batch = table.sample(64)
        told["drawn"] = sorted(set((batch.item_keys >> 51).tolist()))
        told["rows"] = bool((batch["observation"][:, 0] == batch["action"]).all())
        told["paths"] = [shard.path for shard in table.stats().shards]
        told["steps"] = len(table)
    fleets.stop(name)
    return told


def in_a_task(name: str, first: int) -> list[int]:
    from relive.fleet import ray as fleets

    with fleets.connect(name) as table:
        keys = write(table, first, 20)
        table.sample(8)
        return sorted({key >> 51 for key in keys})


def killed(name: str) -> Any:
    """An owner is killed while somebody writes to it: draws go on, it comes back, and all that was stored is there."""
    from relive.errors import ReliveError
    from relive.fleet import ray as fleets

    victim = fleets.start(config(name))[1]
    told: dict[str, Any] = {}
    with fleets.connect(name) as mapped, fleets.connect(name, path="service") as far:
        keys = write(mapped, 0, 50, shard=0) + write(mapped, 50, 50, shard=1) + write(far, 100, 50, shard=1)
        told["paths"] = [table.stats().shards[1].path for table in (mapped, far)]
        begun = threading.Event()

        def go_on() -> None:
            with far.writer(shard=1) as writer:
                for number in range(150, 100_000):
                    step = {"observation": [number, number], "action": number, "next_observation": [0, 0]}
                    keys.append(int(writer.append(**step, truncated=True, timeout_s=5.0)))
                    begun.set()

        def until_killed() -> None:
            try:
                go_on()
            except ReliveError as error:
                told["writer"] = type(error).__name__

        thread = threading.Thread(target=until_killed)
        thread.start()
        begun.wait(30.0)
        os.kill(victim.pid, signal.SIGKILL)
        for kind, table in (("mapped", mapped), ("service", far)):
            start = time.monotonic()
            told[f"drawn, {kind}"] = int(table.sample(32, timeout_s=2.0).num_items)
            told[f"drawn within 2 s, {kind}"] = time.monotonic() - start < 2.0
        thread.join(60.0)
        start = time.monotonic()
        for table in (mapped, far):
            while table.stats().shards[1].state != "live" and time.monotonic() - start < 60.0:
                time.sleep(0.02)
        report = fleets.status(name)[1]
        told["back"] = [report.state, report.is_restored, report.pid != victim.pid, report.address == victim.address]
        for kind, table in (("mapped", mapped), ("service", far)):
            there = table.gather(np.array(keys), columns=["action"])
            told[f"acknowledged, {kind}"] = bool(there.present.all())
            told[f"in order, {kind}"] = bool((there["action"] == np.arange(len(keys))).all())
            told[f"drawn again, {kind}"] = 1 in (table.sample(64).item_keys >> 51)
        mapped.check()
    fleets.stop(name)
    return told


def kept(name: str) -> Any:
    """Stopped with its memory kept, a fleet starts with what it held; another fleet does not get that memory."""
    from relive.fleet import ray as fleets

    first = {report.node_ip: report.number for report in fleets.start(config(name))}
    with fleets.connect(name) as table:
        keys = write(table, 0, 30, shard=0) + write(table, 30, 30, shard=1)
    fleets.stop(name, keeps_memory=True)
    told: dict[str, Any] = {"other": error_of(lambda: fleets.start(config(name, capacity=500), 60.0))}
    second = fleets.start(config(name))
    told["is the same"] = {report.node_ip: report.number for report in second} == first
    told["restored"] = [report.is_restored for report in second]
    with fleets.connect(name) as table:
        told["there"] = bool(table.gather(np.array(keys)).present.all())
    fleets.stop(name)
    return told


def refused(name: str) -> Any:
    """Somebody else owns the region: the shard does not run, and says so; the other one is ended."""
    import relive
    from relive.fleet import ShardOwner
    from relive.fleet import ray as fleets

    with ShardOwner(0, config(name).shard(0)):
        told = {"owned": error_of(lambda: fleets.start(config(name), 60.0))}
    told["left"] = str([row.name for row in relive.list_tables() if row.name.startswith(name)])
    return told


def incomplete(name: str) -> Any:
    """Somebody ended an actor for good: there is no table over the rest."""
    import ray

    from relive.fleet import ray as fleets

    fleets.start(config(name))
    ray.kill(ray.get_actor(f"relive/{name}/0", namespace="relive"), no_restart=True)
    ends = time.monotonic() + 30.0
    while fleets.status(name)[0].state == "live" and time.monotonic() < ends:
        time.sleep(0.05)
    told = {"states": [report.state for report in fleets.status(name)]}
    told["connect"] = error_of(lambda: fleets.connect(name))
    fleets.stop(name, keeps_memory=True)
    told["again"] = [report.is_restored for report in fleets.start(config(name))]
    fleets.stop(name)
    return told


def stopped(name: str) -> Any:
    """Actors that cannot answer: what is left, and whether the next fleet of the name is empty."""
    import ray

    import relive
    from relive.fleet import ray as fleets

    told: dict[str, Any] = {}
    for number, (how, keeps) in enumerate(
        (("killed", False), ("ended", False), ("hung", False), ("hung", True), ("killed", True))
    ):
        mine = f"{name}{number}"
        reports = fleets.start(config(mine))
        with fleets.connect(mine) as table:
            write(table, 0, 20, shard=0)
        if how == "ended":
            ray.kill(ray.get_actor(f"relive/{mine}/0", namespace="relive"), no_restart=True)
        else:
            os.kill(reports[0].pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        fleets.stop(mine, keeps_memory=keeps)
        kept = sorted(row.name for row in relive.list_tables() if row.name.startswith(mine))
        again = [report.num_steps for report in fleets.start(config(mine))]
        fleets.stop(mine)
        told[f"{how}, {'kept' if keeps else 'removed'}"] = [len(kept), again]
    return told


STARTS = """
import sys
sys.path.insert(0, sys.argv[2])
from fleet.on_two_nodes import config
from relive.fleet import ray as fleets
fleets.start(config(sys.argv[1], 3), 100.0)
"""


def reserved(name: str) -> Any:
    """start() waits for a third node, and is killed while it does."""
    import ray
    from ray.util.placement_group import get_placement_group

    from relive.fleet import ray as fleets

    folder = str(Path(__file__).resolve().parents[1])
    with contextlib.suppress(Exception):
        fleets.status(name)  # joins the cluster
    waits = subprocess.Popen([sys.executable, "-c", STARTS, name, folder])
    try:
        while waits.poll() is None:
            with contextlib.suppress(ValueError):
                get_placement_group(f"relive/{name}")
                break
            time.sleep(0.05)
        assert waits.poll() is None, "it waits for nodes"
        told: dict[str, Any] = {"next to it": error_of(lambda: fleets.start(config(name), 10.0))}
    finally:
        waits.kill()
        waits.wait()
    told["after a kill"] = error_of(lambda: fleets.start(config(name), 10.0))
    told["states"] = [report.state for report in fleets.status(name)]
    told["connect"] = error_of(lambda: fleets.connect(name))
    fleets.stop(name)
    told["again"] = [report.state for report in fleets.start(config(name))]
    fleets.stop(name)
    told["refused by ray"] = error_of(lambda: fleets.start(config(name, resources={"bundle": 1.0}), 10.0))
    told["left"] = error_of(lambda: fleets.stop(name))
    assert ray.is_initialized()
    return told


def given_up(name: str) -> Any:
    """start() gives up while its actors wait for their ports, while it waits for nodes, and with a head that hangs."""
    from relive.fleet import ray as fleets

    fleets.start(config(f"{name}k"))
    fleets.stop(f"{name}k", keeps_memory=True)
    with socket.create_server(("0.0.0.0", 7340)), socket.create_server(("0.0.0.0", 7341)):
        told = {"port in use": error_of(lambda: fleets.start(config(name, port=7340), 2.0))}
        error_of(lambda: fleets.start(config(f"{name}k", port=7340), 2.0))
    told["left"] = [path.name for path in Path("/dev/shm").iterdir() if f"{name}-" in path.name]
    told["status"] = error_of(lambda: fleets.status(name))
    told["restored"] = [report.is_restored for report in fleets.start(config(f"{name}k"))]
    fleets.stop(f"{name}k")

    def start() -> None:
        told["stopped meanwhile"] = error_of(lambda: fleets.start(config(name, 3), 60.0))

    starts = threading.Thread(target=start)
    starts.start()
    while "NoSuchFleet" in error_of(lambda: fleets.stop(name)):
        time.sleep(0.05)
    starts.join()
    told |= with_a_hung_head(name)
    return told


def with_a_hung_head(name: str) -> dict[str, Any]:
    from relive.fleet import ray as fleets

    head = int(subprocess.run(["pgrep", "-x", "gcs_server"], capture_output=True, check=True).stdout)
    os.kill(head, signal.SIGSTOP)
    try:
        told: dict[str, Any] = {
            "start, hung head": error_of(lambda: fleets.start(config(name), 1.0)),
            "status, hung head": error_of(lambda: fleets.status(name, 1.0)),
            "connect, hung head": error_of(lambda: fleets.connect(name, 1.0)),
            "stop, hung head": error_of(lambda: fleets.stop(name, timeout_s=1.0)),
        }
        command = [str(Path(sys.executable).with_name("relive")), "fleet", "status", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        told["another process"] = [done.returncode, done.stderr]
    finally:
        os.kill(head, signal.SIGCONT)
    told["again"] = error_of(lambda: fleets.status(name, 30.0))
    return told


JOINED = """
import sys
import ray
ray.init(address="auto", log_to_driver=False)  # in a namespace of its own, as Ray's examples do
sys.path.insert(0, sys.argv[2])
from fleet.on_two_nodes import config
from relive.fleet import ray as fleets
fleets.start(config(sys.argv[1]))
"""


def joined(name: str) -> Any:
    """A process that has joined the cluster by itself starts a fleet, and another process stops it."""
    from ray.util.placement_group import placement_group_table

    from relive.fleet import ray as fleets

    folder = str(Path(__file__).resolve().parents[1])
    done = subprocess.run([sys.executable, "-c", JOINED, name, folder], capture_output=True, text=True, timeout=300)
    told: dict[str, Any] = {"started": [done.returncode, done.stderr[-500:] if done.returncode else ""]}
    told["next to it"] = error_of(lambda: fleets.start(config(name), 10.0))
    fleets.stop(name)
    told["left"] = error_of(lambda: fleets.stop(name))
    groups = [one for one in placement_group_table().values() if one["name"] == f"relive/{name}"]
    told["groups"] = [one["state"] for one in groups if one["state"] != "REMOVED"]
    return told


def on_the_command_line(name: str) -> Any:
    path = Path(os.environ["RAY_TMPDIR"]) / "fleet.toml"
    path.write_text(FLEET_TOML.format(name=name))
    told = {}
    for arguments in (["start", str(path)], ["start", str(path)], ["status", name], ["stop", name], ["status", name]):
        command = [str(Path(sys.executable).with_name("relive")), "fleet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        told[f"{len(told)} {arguments[0]}"] = [done.returncode, done.stdout.splitlines(), done.stderr.splitlines()[-1:]]
    return told


if __name__ == "__main__":
    main(*sys.argv[1:])
