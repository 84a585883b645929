"""Parses addresses: grpc://host:port of a server, grpc://host:port/name of a table on that server."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from relive.errors import InvalidConfig

__all__ = ["parse_server", "parse_table"]


def parse_server(address: str) -> tuple[str, int]:
    """Returns the host and the port of grpc://host:port. Raises InvalidConfig for any other form."""
    host, port, name = _parse(address, "grpc://host:port")
    if name:
        raise InvalidConfig("address of a server", "grpc://host:port without a table", address)
    return host, port


def parse_table(address: str) -> tuple[str, str]:
    """Splits grpc://host:port/name into the server's address and the table's name.

    Raises InvalidConfig for any other form.
    """
    host, port, name = _parse(address, "grpc://host:port/name")
    if not name or "/" in name or not port:
        raise InvalidConfig("address of a table", "grpc://host:port/name", address)
    return f"grpc://{host}:{port}", name


def _parse(address: str, form: str) -> tuple[str, int, str]:
    if not isinstance(address, str):
        raise InvalidConfig("address", form, address)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme != "grpc" or parts.query or parts.fragment or parts.username:
        here = "" if "://" in str(address) else " (relive.attach(name) finds a table of this machine)"
        raise InvalidConfig("address", form + here, address)
    return f"[{host}]" if ":" in host else host, port, unquote(parts.path.removeprefix("/"))
