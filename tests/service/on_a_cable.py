"""A program: a server and a client in two networks with a cable between them, which is pulled. It prints JSON.

usage: unshare --net --pid --fork --kill-child --mount-proc python on_a_cable.py
The programs `ip` and `nsenter` make the networks. All that it started ends with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, final

import numpy as np

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
ROWS = 800


def run(*words: object) -> None:
    """Runs a command. Raises CalledProcessError with what it said."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@final
class Client:
    """The client's process, in a network of its own at the other end of the cable."""

    def __init__(self) -> None:
        words = ["unshare", "--net", sys.executable, __file__, "client"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._into, self._out = self._process.stdin, self._process.stdout
        self.hear()
        run("ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
        run("ip", "link", "set", "cable1", "netns", self._process.pid)
        run("ip", "addr", "add", f"{SERVER}/24", "dev", "cable0")
        run("ip", "link", "set", "cable0", "up")
        run(*self._inside, "ip", "addr", "add", f"{CLIENT}/24", "dev", "cable1")
        self.set_cable("up")

    @property
    def _inside(self) -> list[object]:
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net"]

    def set_cable(self, state: str) -> None:
        """Pulls the cable ("down"), or plugs it in again ("up")."""
        run(*self._inside, "ip", "link", "set", "cable1", state)

    def say(self, text: str) -> None:
        """Tells the client to go on."""
        self._into.write(text + "\n")
        self._into.flush()

    def hear(self) -> Any:
        """The next line that the client says."""
        line = self._out.readline()
        if not line:
            raise EOFError("the client ended")
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


# ---- the client's process --------------------------------------------------------------------------------------------


def tell(value: Any) -> None:
    """One line for the other process."""
    print(json.dumps(value), flush=True)


def be_client() -> None:
    """Does what the scenario asks for."""
    import relive
    from relive.service import Streaming, connect

    tell("ready")
    address, scenario = sys.stdin.readline().split()
    step = {"observation": np.zeros(2, np.float32), "action": 1, "reward": 1.0}
    with connect(address, timeout_s=30.0) as remote:
        if scenario == "gone":
            writers = [remote.writer(num_lanes=2), remote.writer(num_lanes=1, streaming=Streaming())]
            writers[1].append(**{name: np.asarray(value)[None] for name, value in step.items()})
            writers[1].flush()
            with remote.batches(4, prefetch=3) as batches:
                next(batches)
                tell("writes")
                time.sleep(1000.0)
        keys, lost = [], ""
        with remote.writer(streaming=Streaming() if scenario == "streams" else None) as writer:
            tell("writes")
            try:
                for number in range(ROWS):
                    keys.append(writer.append(**{**step, "action": number}))
                    time.sleep(0.005)
                writer.flush() if scenario == "streams" else None
            except relive.errors.ReliveError as problem:
                lost = f"{type(problem).__name__}: {problem}"
            tell([lost, [int(key) for key in keys] if not lost else []])


# ---- the server's process --------------------------------------------------------------------------------------------


def gone(client: Client, table: Any) -> Any:
    """Seconds until the lanes and the batches of a client whose cable is pulled are free."""
    assert client.hear() == "writes"
    before = table.stats()
    client.set_cable("down")
    began, freed = time.monotonic(), {}
    while len(freed) < 2 and time.monotonic() - began < 60.0:
        stats = table.stats()
        if stats.num_lanes == 0:
            freed.setdefault("lanes", time.monotonic() - began)
        if stats.indexes["default"].in_flight == 0:
            freed.setdefault("batches", time.monotonic() - began)
        time.sleep(0.05)
    return {"lanes": before.num_lanes, "in flight": before.indexes["default"].in_flight, "freed": freed}


def back(client: Client, table: Any) -> Any:
    """Rows of a writer whose cable is pulled for four seconds."""
    assert client.hear() == "writes"
    time.sleep(0.5)
    client.set_cable("down")
    time.sleep(0.5)
    before = len(table)
    time.sleep(3.5)
    still = len(table)
    client.set_cable("up")
    lost, keys = client.hear()
    rows = table.gather_steps(np.asarray(keys[:-1], np.int64), columns=["action"])  # the last row has no next state
    stored = rows["action"].tolist() if keys and rows.present.all() else []
    return {"stopped": still == before < ROWS, "lost": lost, "all are there": stored == list(range(ROWS - 1))}


def main() -> None:
    """Each scenario has a client, a cable and a table of its own."""
    import relive
    from relive.service import serve

    run("ip", "link", "set", "lo", "up")
    columns = {"observation": relive.ArraySpec((2,), "float32", kind="state"), "action": relive.ArraySpec((), "int64")}
    spec = relive.StepSpec({**columns, "reward": relive.ArraySpec((), "float32")})
    told: dict[str, Any] = {}
    for name, scenario in (("gone", gone), ("streams", back), ("waits", back)):
        client = Client()
        with relive.Table(spec, 5_000, max_lanes=16) as table:
            if name == "gone":
                with table.writer() as writer:
                    writer.extend(observation=np.zeros((20, 2)), action=np.zeros(20, int), reward=np.zeros(20))
            with serve({"t": table}, f"grpc://{SERVER}:0", insecure=True) as server:
                client.say(f"{server.address}/t {name}")
                told[name] = scenario(client, table)
                client.kill()
        subprocess.run(["ip", "link", "del", "cable0"], capture_output=True)  # unless it went with the client's network
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    be_client() if sys.argv[1:] == ["client"] else main()
