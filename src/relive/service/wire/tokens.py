"""The file of the tokens of a server: names, hashes, and the roles that each token has for tables.

    [tokens.actor-7]
    sha256 = "9f86d08..."
    expires = 2027-01-01T00:00:00Z
    grants = [{ roles = ["read", "append"], tables = ["pong*"] }]

An entry with `certificate` instead of `sha256` is for clients with a certificate of that name. A token has 256 random
bits, so a plain hash hides it.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import fnmatch
import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from relive.checks.parts import refuse_unknown
from relive.checks.secrets import check_private
from relive.checks.values import is_text
from relive.core.roles import ROLES, Role
from relive.errors import InvalidConfig
from relive.errors.base import bytes_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Entry", "Grant", "add_token", "digest_of", "entry_of", "read_tokens", "remove_token"]

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")
_MOST_BYTES = 4 << 20
_MOST_NAME = 4096  # bytes of the name of a table
_HEAD = "# Tokens of a relive server. `relive token new` adds one; `relive token rm` revokes one.\n\n[tokens]\n"


@final
@dataclass(frozen=True)
class Grant:
    """Roles for tables. A table's name may have the wildcards * and ?, and [sets]."""

    roles: frozenset[Role]
    tables: tuple[str, ...]

    def holds_for(self, table: str) -> bool:
        """Whether the grant is for this table."""
        return any(fnmatch.fnmatchcase(table, one) for one in self.tables)


@final
@dataclass(frozen=True)
class Entry:
    """One token, or one certificate, of the file.

    Attributes:
        name: Its name, which labels show.
        digest: SHA-256 of the token, in hexadecimal; "" for a certificate.
        certificate: Name of the certificate; "" for a token.
        expires: time.time() from which it is of no use; inf: never.
        grants: Its roles.
    """

    name: str
    digest: str
    certificate: str
    expires: float
    grants: tuple[Grant, ...]

    def roles_for(self, table: str) -> frozenset[Role]:
        """Returns the roles for a table."""
        return frozenset(role for grant in self.grants if grant.holds_for(table) for role in grant.roles)


def digest_of(token: str) -> str:
    """Returns the hash of a token. Never raises."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def entry_of(entries: Iterable[Entry], digest: str, certificate: str) -> Entry | None:
    """Returns the entry of a token, or else of a certificate. Compares with every entry, in constant time."""
    found = named = None
    for one in entries:
        if digest and hmac.compare_digest(one.digest, digest):
            found = one
        if certificate and one.certificate == certificate:
            named = one
    return found if digest else named


def read_tokens(path: str) -> tuple[Entry, ...]:
    """Reads the file.

    Raises:
        InvalidConfig: The file is not there, is readable by other users, or is not as described above.
    """
    try:
        check_private(path)
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as problem:
        raise InvalidConfig(f"file of the tokens {path}", "a file that can be read", str(problem.strerror)) from None
    return _entries(path, content)


def _entries(path: str, content: bytes) -> tuple[Entry, ...]:
    """Reads the entries of a file with this content. Raises InvalidConfig."""
    if len(content) > _MOST_BYTES:
        raise InvalidConfig(f"file of the tokens {path}", f"at most {bytes_text(_MOST_BYTES)}", "more")
    try:
        parts = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as problem:  # TOML and UTF-8, and brackets in brackets
        raise InvalidConfig(f"file of the tokens {path}", "TOML", str(problem)[:200]) from None
    refuse_unknown(f"option of {path}", parts, ("tokens",))
    if not isinstance(parts.get("tokens"), dict):
        raise InvalidConfig(f"file of the tokens {path}", "a table [tokens.NAME] each", "none")
    return tuple(_entry(path, name, one) for name, one in parts["tokens"].items())


def _entry(path: str, name: str, told: Any) -> Entry:
    where = f"[tokens.{name[:64]}] of {path}"
    if not _NAME.match(name) or not isinstance(told, dict):
        raise InvalidConfig(where, "a name of 1 to 64 letters, digits and _.@-, and a table of options", name[:64])
    refuse_unknown(f"option of {where}", told, ("sha256", "certificate", "expires", "grants"))
    digest, certificate = told.get("sha256", ""), told.get("certificate", "")
    if (digest == "") == (certificate == "") or not isinstance(digest, str) or not isinstance(certificate, str):
        raise InvalidConfig(where, "either sha256 or certificate, as text", "both or none")
    if digest and not _DIGEST.match(digest):
        raise InvalidConfig(f"sha256 of {where}", "64 hexadecimal digits", f"<{len(digest)} characters>")
    expires = told.get("expires")
    if expires is not None and not (isinstance(expires, datetime.datetime) and expires.tzinfo is not None):
        raise InvalidConfig(f"expires of {where}", "a time with its zone, such as 2027-01-01T00:00:00Z", str(expires))
    grants = told.get("grants")
    if not isinstance(grants, list):
        raise InvalidConfig(f"grants of {where}", "a list of { roles = [...], tables = [...] }", grants)
    limit = float("inf") if expires is None else expires.timestamp()
    return Entry(name, digest, certificate, limit, tuple(_grant(where, one) for one in grants))


def _grant(where: str, told: Any) -> Grant:
    if not isinstance(told, dict):
        raise InvalidConfig(f"grant of {where}", "{ roles = [...], tables = [...] }", told)
    refuse_unknown(f"option of a grant of {where}", told, ("roles", "tables"))
    roles, tables = told.get("roles"), told.get("tables")
    if not isinstance(roles, list) or not roles or not all(one in ROLES for one in roles):
        raise InvalidConfig(f"roles of {where}", "some of " + ", ".join(ROLES), str(roles)[:80])
    if not isinstance(tables, list) or not tables or not all(is_text(one, _MOST_NAME) for one in tables):
        raise InvalidConfig(f"tables of {where}", "names of tables, which may have wildcards", str(tables)[:80])
    return Grant(frozenset(roles), tuple(tables))


# ---- changes of the file ---------------------------------------------------------------------------------------------


def add_token(
    path: str, name: str, roles: Iterable[str], tables: Iterable[str], expires: datetime.datetime | None = None
) -> str:
    """Adds a new token to the file, which is made if it is not there, and returns the token. Nothing else shows it.

    Raises:
        InvalidConfig: The file has an entry of this name, or is not as described; a role or the name is none.
    """
    token = f"relive_{secrets.token_urlsafe(32)}"
    options: dict[str, Any] = {"sha256": digest_of(token)}
    if expires is not None:
        options["expires"] = expires
    options["grants"] = [{"roles": list(roles), "tables": list(tables)}]
    _entry(path, name, options)
    with _alone(path):
        before = ""
        if os.path.exists(path):
            if any(one.name == name for one in read_tokens(path)):
                raise InvalidConfig(f"name of a token in {path}", "one that the file does not have", name)
            with open(path, encoding="utf-8") as file:
                before = file.read().rstrip() + "\n"
        _replace(path, (before or _HEAD) + "\n" + _section(name, options))
    return token


def remove_token(path: str, name: str) -> None:
    """Removes an entry of the file: the server ends the streams of its clients. Raises InvalidConfig."""
    with _alone(path):
        entries = read_tokens(path)
        if all(one.name != name for one in entries):
            raise InvalidConfig(f"name of a token in {path}", " or ".join(one.name for one in entries) or "none", name)
        with open(path, "rb") as file:
            parts = tomllib.load(file)["tokens"]
        _replace(path, _HEAD + "".join("\n" + _section(key, one) for key, one in parts.items() if key != name))


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Lets one change at a time pass: a change reads the file and then replaces it.

    Locks the folder, as the file itself is replaced. If the system cannot lock the folder (some network file systems
    cannot), changes at the same time may lose one of them.

    Blocks: until the changes of other threads and processes are done.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
            stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def _section(name: str, options: Mapping[str, Any]) -> str:
    lines = [f"[tokens.{_quoted(name)}]"]
    for key, value in options.items():
        if key != "grants":
            lines.append(f"{key} = {value.isoformat() if isinstance(value, datetime.datetime) else _quoted(value)}")
    grants = (f"{{ roles = {_quoted(one['roles'])}, tables = {_quoted(one['tables'])} }}" for one in options["grants"])
    return "\n".join([*lines, f"grants = [{', '.join(grants)}]"]) + "\n"


def _quoted(value: Any) -> str:
    """Text, or a list of texts, in TOML. TOML has no surrogate pairs, which JSON writes for some characters."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _replace(path: str, content: str) -> None:
    """Replaces the file as one step. Only its user can read it. A file that was there stays with its owner.

    A link stays, and the file that it names is replaced.

    Raises:
        InvalidConfig: The content would not be a file of tokens, such as after an inline table, or the new file cannot
            be given to the owner of the former one. The file stays.
    """
    _entries(path, content.encode())
    real = os.path.realpath(path)
    descriptor, made = tempfile.mkstemp(dir=os.path.dirname(real), prefix=".tokens-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            _give_to_owner_of(real, file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def _give_to_owner_of(path: str, descriptor: int) -> None:
    """Gives an open file to the owner of the file at the path, if there is one. Raises InvalidConfig."""
    try:
        owner = os.stat(path)
    except FileNotFoundError:
        return
    if owner.st_uid == os.fstat(descriptor).st_uid:
        return
    try:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    except OSError as problem:
        expected = "a file that the user of the server can read after the change: change it as that user"
        raise InvalidConfig(f"file of the tokens {path}", expected, str(problem.strerror)) from None
