"""`relive token`, and the options with which commands name certificates and tokens."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relive.cli.commands import (
    Commands,
    UsageError,
    add_command,
    add_commands,
    at_least,
    extra_named,
    named_path,
    new_parser_of,
    say,
)
from relive.core.roles import ROLES
from relive.table.open import connect

if TYPE_CHECKING:
    from relive.service import Access, RemoteTable

__all__ = ["access_of", "add", "add_access", "connect_as", "refuse_access"]

_FILE = "tokens.toml"


def add(commands: Commands) -> None:
    """Declares `token` and its commands."""
    text = "Make, list and revoke the tokens of a server."
    token = add_commands(new_parser_of(commands, "token", text, ("service",)))
    parser = add_command(token, "new", _new)
    parser.add_argument("name", metavar="NAME", help="Name of the token: 1 to 64 letters, digits and _.@-")
    parser.add_argument(
        "--role", dest="roles", action="append", required=True, choices=ROLES, help="A role. May be repeated."
    )
    parser.add_argument(
        "--table",
        dest="tables",
        action="append",
        metavar="TABLE",
        help="A table, or names with the wildcards * and ?. May be repeated (default: *).",
    )
    parser.add_argument("--days", type=at_least(0, float), help="Days until the token expires (default: never).")
    _add_file(parser)
    _add_file(add_command(token, "ls", _list))
    parser = add_command(token, "rm", _remove)
    parser.add_argument("name", metavar="NAME", help="Name of the token.")
    _add_file(parser)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file", type=named_path, default=Path(_FILE), help="File of the tokens (default: %(default)s)."
    )


def _new(name: str, roles: list[str], tables: list[str] | None, days: float | None, file: Path) -> None:
    """Make a token, print it once, and write its hash into the file of the tokens."""
    with extra_named("token", "service"):
        from relive.service.wire.tokens import add_token
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    try:
        expires = None if days is None else now + datetime.timedelta(days=days)
    except OverflowError:
        raise UsageError(f"--days {days:g}: expected a day that the calendar has, or no --days") from None
    say(add_token(os.fspath(file), name, roles, tables or ["*"], expires))


def _list(file: Path) -> None:
    """List the tokens of a file: names, roles and expiry."""
    with extra_named("token", "service"):
        from relive.service.wire.tokens import read_tokens
    for one in read_tokens(os.fspath(file)):
        grants = "; ".join(f"{', '.join(sorted(grant.roles))} for {', '.join(grant.tables)}" for grant in one.grants)
        expires = "" if one.expires == float("inf") else f", until {_time_of(one.expires)}"
        say(f"{one.name}: {grants or 'no roles'}{expires}")


def _time_of(seconds: float) -> str:
    """A time in UTC. A time of another zone may be in a year that the calendar of Python does not have in UTC."""
    try:
        return str(datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc))
    except (OverflowError, ValueError):
        return "the year 10000" if seconds > 0 else "the year 0"


def _remove(name: str, file: Path) -> None:
    """Revoke a token: the server ends the streams of its clients within a second."""
    with extra_named("token", "service"):
        from relive.service.wire.tokens import remove_token
    remove_token(os.fspath(file), name)
    say(f"revoked {name}")


# ---- options of clients ----------------------------------------------------------------------------------------------


def add_access(add: Callable[..., Any]) -> None:
    """Adds the options of a client. A token is read from a file: a process list would show it."""
    add("--token-file", metavar="FILE", help="File of the token (default: RELIVE_TOKEN, or RELIVE_TOKEN_FILE).")
    add("--ca", metavar="FILE", help="Authorities of the server's certificate (default: those of the system).")
    add("--certificate", metavar="FILE", help="This client's own certificate.")
    add("--key", metavar="FILE", help="Key of the certificate.")


def access_of(token_file: str | None, ca: str | None, certificate: str | None, key: str | None) -> Access:
    """Returns the certificates and the token that the options name."""
    from relive.service import Access, ClientTLS

    tls = None if ca is certificate is key is None else ClientTLS(ca, certificate, key)
    return Access.of(tls, None if token_file is None else Path(token_file))


def connect_as(command: str, address: str, access: Mapping[str, str | None]) -> RemoteTable:
    """A handle on a table of a server, with the options of `add_access`. Raises as `relive.connect`."""
    with extra_named(f"{command} ADDRESS", "service"):
        entry = access_of(**access)
        return connect(address, tls=entry.tls, token=entry.token)


def refuse_access(target: str, access: Mapping[str, str | None]) -> None:
    """Raises UsageError if an option of `add_access` is given and the target is no address."""
    for name, value in access.items():
        if value is not None and "://" not in target:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is for a table of a server: expected grpc+tls://HOST:PORT/NAME, got {target!r}")
