"""Serves tables to other machines and connects to them, over Arrow Flight (extra `service`); no local table.

`serve` makes a server of local tables. `connect` makes a handle on a remote table.
"""

from relive.errors import MissingPackage as _MissingPackage
from relive.errors.extras import install_command as _install_command

try:
    import pyarrow.flight as _flight  # noqa: F401
except ImportError as _problem:
    raise _MissingPackage("relive.service", _problem.name or "pyarrow", _install_command("service")) from _problem

from relive.service.client.blocks import StreamedKeys
from relive.service.client.health import Health, health
from relive.service.client.remote_parameters import RemoteParameters
from relive.service.client.remote_saves import RemoteSaving
from relive.service.client.remote_table import RemoteTable, connect
from relive.service.client.streaming_writer import StreamingWriter
from relive.service.parameters.sets import Parameters, Published
from relive.service.parameters.store import ParameterStore
from relive.service.server.server import Server, serve, serve_behind
from relive.service.wire.access import Access, ClientTLS
from relive.service.wire.door import Door, ServerTLS
from relive.service.wire.options import ServerOptions, Streaming

__all__ = [
    "Access",
    "ClientTLS",
    "Door",
    "Health",
    "ParameterStore",
    "Parameters",
    "Published",
    "RemoteParameters",
    "RemoteSaving",
    "RemoteTable",
    "Server",
    "ServerOptions",
    "ServerTLS",
    "StreamedKeys",
    "Streaming",
    "StreamingWriter",
    "connect",
    "health",
    "serve",
    "serve_behind",
]
