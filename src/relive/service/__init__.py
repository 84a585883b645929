"""Tables on another machine, over Arrow Flight: serve() them there, connect() to them here. Extra: relive[service]."""

try:
    import pyarrow.flight as _flight  # noqa: F401
except ImportError as _problem:
    raise ImportError(
        f"relive.service needs {_problem.name or 'pyarrow'}: pip install 'relive[service]'", name=_problem.name
    ) from _problem

from relive.service.blocks import StreamedKeys
from relive.service.options import ServerOptions, Streaming
from relive.service.remote_table import RemoteTable, connect
from relive.service.server import Server, serve
from relive.service.streaming_writer import StreamingWriter

__all__ = [
    "RemoteTable",
    "Server",
    "ServerOptions",
    "StreamedKeys",
    "Streaming",
    "StreamingWriter",
    "connect",
    "serve",
]
