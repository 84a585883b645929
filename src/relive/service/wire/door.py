"""The clients that a server lets in: its certificate, the file of its tokens, and whether strangers may enter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, final

from relive.checks.names import names_arguments
from relive.checks.values import flag
from relive.errors import InvalidConfig
from relive.service.wire.access import checked_pem, path_or_none, read_authorities
from relive.service.wire.address import has_tls, is_loopback

__all__ = ["Door", "ServerTLS"]


@names_arguments
@final
@dataclass(frozen=True)
class ServerTLS:
    """The certificate of a server. The server reads the files once: a renewed certificate needs a new server.

    Args:
        certificate: PEM file of the certificate, then of those that signed it.
        key: PEM file of its key, without a passphrase.
        client_ca: PEM file of the authorities that sign the certificates of clients. The server then takes no client
            without such a certificate, and the certificate's name is the client's identity. None: clients need none.

    Raises:
        InvalidConfig: An argument is no path. The other faults are raised when the server starts: a file cannot be read
            or is not PEM, or the key does not fit the certificate.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_ca: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "client_ca"):
            value = getattr(self, name)
            if value is None and name != "client_ca":
                raise InvalidConfig(f"{name} of ServerTLS", "the path of a PEM file", value)
            object.__setattr__(self, name, path_or_none(f"{name} of ServerTLS", value))

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of a Flight server. Raises InvalidConfig."""
        found: dict[str, Any] = {
            "tls_certificates": [checked_pem("ServerTLS", str(self.certificate), str(self.key))],
        }
        if self.client_ca is not None:
            authorities = read_authorities("client_ca of ServerTLS", str(self.client_ca))
            found |= {"verify_client": True, "root_certificates": authorities}
        return found


@names_arguments
@final
@dataclass(frozen=True)
class Door:
    """The clients that a server lets in.

    A server with tokens, or with a ServerTLS that has a client_ca, knows its clients. Any other server lets in every
    client that reaches its port. Such a server listens on loopback alone, unless insecure=True says otherwise.

    Args:
        tls: The server's certificate; None: no TLS. The address begins with grpc+tls:// if there is one.
        tokens: The file of the tokens (`relive token new`); None: no tokens.
        insecure: Whether a server that knows no client may listen beyond loopback.
        offers: Whether clients with the role read get the metadata of the table's memory, to read it by NIXL. NIXL
            itself checks no client.

    Raises:
        InvalidConfig: An argument has another type.
    """

    tls: ServerTLS | None = None
    tokens: str | os.PathLike[str] | None = None
    insecure: bool = False
    offers: bool = False

    def __post_init__(self) -> None:
        if self.tls is not None and not isinstance(self.tls, ServerTLS):
            raise InvalidConfig("tls", "a relive.service.ServerTLS, or None", type(self.tls).__name__)
        if self.tokens is not None:
            path = os.fspath(self.tokens) if isinstance(self.tokens, os.PathLike) else self.tokens
            if not isinstance(path, str) or not path or "\0" in path:
                raise InvalidConfig("tokens", "the path of a file, or None", self.tokens)
            object.__setattr__(self, "tokens", os.path.abspath(path))
        flag("insecure", self.insecure)
        flag("offers", self.offers)

    @property
    def asks_certificates(self) -> bool:
        """Whether every client has a certificate."""
        return self.tls is not None and self.tls.client_ca is not None

    @property
    def knows_clients(self) -> bool:
        """Whether strangers stay outside."""
        return self.tokens is not None or self.asks_certificates

    def check(self, address: str) -> None:
        """Raises InvalidConfig if a server behind this door must not listen at the address."""
        if has_tls(address) != (self.tls is not None):
            expected = "grpc+tls://host:port with tls=ServerTLS(...), grpc://host:port without"
            raise InvalidConfig("address of a server", expected, address)
        if is_loopback(address):
            return
        if self.tokens is not None and self.tls is None:
            expected = "tls=ServerTLS(...) and grpc+tls://, because a token without TLS can be read on the way"
            raise InvalidConfig(f"tls of a server with tokens at {address}", expected, None)
        if not self.knows_clients and not self.insecure:
            expected = (
                "tokens and TLS, or certificates of clients; insecure=True (--insecure) if every client that reaches"
                " the port may change the tables"
            )
            raise InvalidConfig(f"door of a server at {address}, which is not loopback", expected, "none")
