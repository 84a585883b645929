"""A process of its own that makes tables and serves them, as told over a pipe."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from typing import Any, final

from processes.asked import Asked, answer_until_closed

import relive

LOOPBACK = "grpc://127.0.0.1:0"
Served = dict[str, tuple[Any, Any]]


def run(pipe: Connection) -> None:
    """Serves until the pipe closes."""
    served: Served = {}
    answer_until_closed(pipe, partial(_answer, served))
    for server, table in served.values():
        server.close()
        table.close()


def _answer(served: Served, what: str, *arguments: Any) -> Any:
    if what == "serve":
        spec, capacity, index, options, address = arguments
        more = {} if index is None else {"index": index}
        saves, door = options.pop("saves", None), options.pop("door", None)
        return _serve(served, relive.Table(spec, capacity, **more, **options), address, saves, door)
    if what == "attach":
        name, address = arguments
        return _serve(served, relive.attach(name), address)
    if what == "publish":
        address, arrays, version = arguments
        served[address][0].parameters("table").publish(arrays, version)
        return None
    if what == "num_streams":
        return served[arguments[0]][0].num_streams
    if what == "close":
        server, table = served.pop(arguments[0])
        server.close()
        table.close()
        return None
    raise ValueError(what)


def _serve(served: Served, table: Any, address: str, saves: Any = None, door: Any = None) -> str:
    from relive.service import ServerOptions, ServerTLS, serve

    more = {}
    if door is not None:  # paths of the certificate, its key, and the file of the tokens
        more = {"tls": ServerTLS(*door[:2]), "tokens": door[2]}
    server = serve({"table": table}, address, ServerOptions(saves=saves), **more)
    served[server.address] = server, table
    return server.address + "/table"


@final
class Host(Asked):
    """The process, from outside."""

    def __init__(self) -> None:
        super().__init__(run)

    def serve(self, spec: Any, capacity: Any, index: Any = None, address: str = LOOPBACK, **more: Any) -> Any:
        """Address of a new table. door=(certificate, key, tokens): over TLS, for clients with a token of that file."""
        return self.ask("serve", spec, capacity, index, more, address)

    def attach(self, name: str, address: str = LOOPBACK) -> Any:
        """Address of a shared table that exists."""
        return self.ask("attach", name, address)

    def publish(self, address: str, arrays: Any, version: int) -> None:
        """Parameters beside the table at this address, by the serving process."""
        self.ask("publish", address.removesuffix("/table"), arrays, version)

    def stop(self, address: str) -> None:
        """Closes server and table."""
        self.ask("close", address.removesuffix("/table"))
