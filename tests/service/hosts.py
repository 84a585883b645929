"""A process of its own that makes tables and serves them, as told over a pipe."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import relive

PATIENCE_S = 60.0


def run(pipe: Connection) -> None:
    """Serves until the pipe closes."""
    from relive.service import serve

    served: dict[str, tuple[Any, Any]] = {}
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            break
        try:
            if what == "serve":
                spec, capacity, index, options, address = arguments
                more = {} if index is None else {"index": index}
                table = relive.Table(spec, capacity, **more, **options)
                server = serve({"table": table}, address)
                served[server.address] = (server, table)
                pipe.send(server.address + "/table")
            elif what == "attach":
                name, address = arguments
                table = relive.attach(name)
                server = serve({"table": table}, address)
                served[server.address] = (server, table)
                pipe.send(server.address + "/table")
            elif what == "publish":
                address, arrays, version = arguments
                served[address][0].parameters("table").publish(arrays, version)
                pipe.send(None)
            elif what == "num_streams":
                pipe.send(served[arguments[0]][0].num_streams)
            else:
                server, table = served.pop(arguments[0])
                server.close()
                table.close()
                pipe.send(None)
        except Exception as problem:
            pipe.send(problem)
    for server, table in served.values():
        server.close()
        table.close()


class Host:
    """The process, from outside."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, what: str, *arguments: Any) -> Any:
        """The answer, or the error it raised there."""
        self._pipe.send((what, arguments))
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError(f"{what}: no answer from the serving process")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def serve(
        self, spec: Any, capacity: Any, index: Any = None, address: str = "grpc://127.0.0.1:0", **more: Any
    ) -> Any:
        """Address of a new table."""
        return self.ask("serve", spec, capacity, index, more, address)

    def attach(self, name: str, address: str = "grpc://127.0.0.1:0") -> Any:
        """Address of a shared table that exists."""
        return self.ask("attach", name, address)

    def publish(self, address: str, arrays: Any, version: int) -> None:
        """Parameters beside the table at this address, by the serving process."""
        self.ask("publish", address.removesuffix("/table"), arrays, version)

    def stop(self, address: str) -> None:
        """Closes server and table."""
        self.ask("close", address.removesuffix("/table"))

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Ends the process; waits for it."""
        self._pipe.close()
        self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.kill()
            raise TimeoutError("the serving process did not end")
