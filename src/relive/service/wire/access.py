"""How a client enters a server: the certificates that it trusts and shows, and its token."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import pyarrow.flight as flight

from relive.checks.names import names_arguments
from relive.checks.secrets import Secret, read_token
from relive.checks.values import is_text
from relive.errors import InvalidConfig
from relive.service.wire.address import is_loopback
from relive.service.wire.transport import leave_to_parent

__all__ = ["OPEN", "Access", "ClientTLS", "Token", "checked_pem", "path_or_none", "read_authorities"]

Token: TypeAlias = "Secret | str | os.PathLike[str] | None"

_MAX_PATH_BYTES = 4096
_HEADER = b"authorization"


@names_arguments
@final
@dataclass(frozen=True)
class ClientTLS:
    """The files with which a client checks a server, and with which it names itself. It pickles as the paths.

    Args:
        ca: PEM file of the authorities that may have signed the server's certificate. None: those of the system.
        certificate: PEM file of the client's certificate, for servers with `client_ca`. None: no certificate.
        key: PEM file of the certificate's key.

    Raises:
        InvalidConfig: An argument is no path, or only one of certificate and key is given. The other faults are raised
            when a handle connects: a file cannot be read or is not PEM, or the key does not fit the certificate.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            object.__setattr__(self, name, path_or_none(f"{name} of ClientTLS", getattr(self, name)))
        if (self.certificate is None) != (self.key is None):
            raise InvalidConfig("certificate and key of ClientTLS", "both or none", "one of them")

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of a Flight client. Reads the files, so that a renewed certificate is used."""
        found = {} if self.ca is None else {"tls_root_certs": _read("ca of ClientTLS", str(self.ca))}
        if self.certificate is not None:
            chain, key = checked_pem("ClientTLS", str(self.certificate), str(self.key))
            found |= {"cert_chain": chain, "private_key": key}
        return found


@final
@dataclass(frozen=True)
class Access:
    """Everything that a handle needs to enter a server. It travels with the handle; a token in it does not pickle.

    Attributes:
        tls: The files for TLS; None: the authorities of the system.
        token: The token, or the file in which it is; None: RELIVE_TOKEN, else the file RELIVE_TOKEN_FILE, else none.
    """

    tls: ClientTLS | None = None
    token: Secret | Path | None = None

    @staticmethod
    def of(tls: ClientTLS | None, token: Token) -> Access:
        """Checks the arguments of a function that opens a handle. Raises InvalidConfig."""
        if tls is not None and not isinstance(tls, ClientTLS):
            raise InvalidConfig("tls", "a relive.service.ClientTLS", type(tls).__name__)
        if isinstance(token, str):
            token = Secret(token)
        if token is not None and not isinstance(token, Secret):
            if not isinstance(token, os.PathLike):
                raise InvalidConfig("token", "the text of a token, or the Path of its file", type(token).__name__)
            token = Path(os.path.abspath(token))
        return Access(tls, token)

    def check(self, location: str) -> None:
        """Raises InvalidConfig if the access does not fit the address of a server: a secret needs TLS."""
        if location.startswith("grpc+tls://"):
            return
        if self.tls is not None:
            raise InvalidConfig("tls", "an address grpc+tls://host:port/name", location)
        if self.token is not None and not is_loopback(location):
            raise InvalidConfig("token", "an address grpc+tls://host:port/name: TLS hides the token", location)

    def client(self, location: str, options: list[tuple[str, Any]]) -> Any:
        """Makes a Flight client. Raises InvalidConfig if a file of the access cannot be read."""
        more = self.tls.arguments() if self.tls is not None and location.startswith("grpc+tls://") else {}
        client = flight.FlightClient(location, generic_options=options, **more)
        leave_to_parent(client)
        return client

    def call_options(self, location: str) -> tuple[Any, ...]:
        """Returns the options of a stream, if there is a token. Their repr shows it: callers keep them in no variable.

        Raises InvalidConfig: RELIVE_TOKEN or the file of the token has no token in it.
        """
        found = self._found(location)
        if found is None:
            return ()
        return (flight.FlightCallOptions(headers=[(_HEADER, b"Bearer " + found.reveal().encode())]),)

    def _found(self, location: str) -> Secret | None:
        if isinstance(self.token, Secret):
            return self.token
        if self.token is not None:
            return read_token(str(self.token))
        text, path = os.environ.get("RELIVE_TOKEN"), os.environ.get("RELIVE_TOKEN_FILE")
        if not text and not path:
            return None  # without a look at the address: a name server that does not answer knows no deadline
        if not (location.startswith("grpc+tls://") or is_loopback(location)):
            return None  # a token of the environment is for another server, and must not be readable on the way
        return Secret(text, "RELIVE_TOKEN") if text else read_token(str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the paths alone. A handle that is opened again finds its token where it is opened."""
        return Access, (self.tls, None if isinstance(self.token, Secret) else self.token)


OPEN = Access()


def path_or_none(what: str, value: object) -> str | None:
    """Returns the absolute path, or None. Raises InvalidConfig."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not is_text(path, _MAX_PATH_BYTES):
        raise InvalidConfig(what, "the path of a PEM file, or None", value)
    return os.path.abspath(str(path))


def checked_pem(what: str, certificate: str, key: str) -> tuple[bytes, bytes]:
    """Returns the bytes of a certificate and its key. Raises InvalidConfig if the key does not fit."""
    chain, secret = _read(f"certificate of {what}", certificate), _read(f"key of {what}", key, holds=b"KEY-----")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as problem:
        reason = getattr(problem, "reason", None) or type(problem).__name__
        raise InvalidConfig(
            f"certificate and key of {what}", "a PEM certificate and its unencrypted key", reason
        ) from None
    return chain, secret


def _read(what: str, path: str, holds: bytes = b"CERTIFICATE-----") -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 20)
    except OSError as problem:
        raise InvalidConfig(what, f"a file that can be read at {path}", str(problem.strerror)) from None
    if holds not in content:
        raise InvalidConfig(what, f"PEM in {path}", f"{len(content)} other bytes")
    return content


def read_authorities(what: str, path: str) -> bytes:
    """Returns the bytes of a PEM file of certificates. Raises InvalidConfig."""
    return _read(what, path)
