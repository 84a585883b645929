"""Tables on another machine, over Arrow Flight: serve() them there, connect() to them here. Extra: relive[service]."""

from relive._extras import install_command as _install_command
from relive.errors import MissingPackage as _MissingPackage

try:
    import pyarrow.flight as _flight  # noqa: F401
except ImportError as _problem:
    raise _MissingPackage("relive.service", _problem.name or "pyarrow", _install_command("service")) from _problem

from relive.service.blocks import StreamedKeys
from relive.service.options import ServerOptions, Streaming
from relive.service.parameter_store import ParameterStore
from relive.service.parameters import Parameters, Published
from relive.service.remote_parameters import RemoteParameters
from relive.service.remote_table import RemoteTable, connect
from relive.service.server import Server, serve
from relive.service.streaming_writer import StreamingWriter

__all__ = [
    "ParameterStore",
    "Parameters",
    "Published",
    "RemoteParameters",
    "RemoteTable",
    "Server",
    "ServerOptions",
    "StreamedKeys",
    "Streaming",
    "StreamingWriter",
    "connect",
    "serve",
]
