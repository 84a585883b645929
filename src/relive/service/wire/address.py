"""Parses addresses: grpc://host:port of a server, grpc://host:port/name of a table on it; with TLS, grpc+tls://."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import unquote, urlsplit

from relive.errors import InvalidConfig

__all__ = ["has_tls", "host_and_port", "is_loopback", "is_table_name", "parse_server", "parse_table"]

_SCHEMES = ("grpc", "grpc+tls")


def has_tls(address: str) -> bool:
    """Returns whether the address begins with grpc+tls://."""
    return address.startswith("grpc+tls://")


def parse_server(address: str) -> tuple[str, str, int]:
    """Returns scheme, host and port of grpc://host:port or grpc+tls://host:port. Raises InvalidConfig."""
    scheme, host, port, name = _parse(address, "grpc://host:port")
    if name:
        raise InvalidConfig("address of a server", "grpc://host:port without a table", address)
    return scheme, host, port


def parse_table(address: str) -> tuple[str, str]:
    """Splits grpc://host:port/name into the server's address and the table's name.

    Raises InvalidConfig for any other form.
    """
    scheme, host, port, name = _parse(address, "grpc://host:port/name")
    if not name or "/" in name or not port:
        raise InvalidConfig("address of a table", "grpc://host:port/name", address)
    return f"{scheme}://{host}:{port}", name


def is_table_name(name: str) -> bool:
    """Returns whether a client that appends "/" and this name to the address of a server means this name."""
    try:
        return parse_table(f"grpc://host:1/{name}")[1] == name
    except InvalidConfig:
        return False


def host_and_port(location: str) -> tuple[str, str]:
    """Splits the address of a server, which was parsed before."""
    host, _, port = location.partition("://")[2].rpartition(":")
    return host.strip("[]"), port


def is_loopback(location: str) -> bool:
    """Returns whether every address that the server's host name means is of this machine alone.

    A name that cannot be resolved is not.
    """
    try:
        found = socket.getaddrinfo(host_and_port(location)[0], None, type=socket.SOCK_STREAM)
        return bool(found) and all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)
    except (OSError, ValueError):
        return False


def _parse(address: str, form: str) -> tuple[str, str, int, str]:
    if not isinstance(address, str):
        raise InvalidConfig("address", form, address)
    try:
        address.encode()  # a lone surrogate cannot be sent
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is not None and any(one.isspace() for one in host):
        host = None
    if host is None or port is None or parts.scheme not in _SCHEMES or parts.query or parts.fragment or parts.username:
        here = "" if "://" in str(address) else " (relive.attach(name) finds a table of this machine)"
        raise InvalidConfig("address", form + here, address)
    return parts.scheme, f"[{host}]" if ":" in host else host, port, unquote(parts.path.removeprefix("/"))
