"""Reads the texts of gRPC: why a connection was not made, and the way out."""

from __future__ import annotations

import re

from relive.errors import HandshakeFailed
from relive.service.wire.address import has_tls

__all__ = ["handshake_problem", "short_reason"]

_CA = "give ClientTLS(ca=), or --ca of a command, the authority that signed the server's certificate"
_RENEW = "renew the server's certificate, and start the server again"
_CAUSES = (
    (re.compile(r"certificate verify failed: (certificate has expired)"), _RENEW),
    (re.compile(r"certificate verify failed: (certificate is not yet valid)"), "set the clock of this machine"),
    (re.compile(r"certificate verify failed: ([\w\s-]+)"), _CA),
    (re.compile(r"(Peer name \S+ is not in peer certificate)"), "connect to a name that the server's certificate has"),
    (re.compile(r"(wrong version number|http request)"), "the server has no TLS: its address begins with grpc://"),
)
_PLAIN = "; if the server has TLS, its address begins with grpc+tls://"
_NO_CERTIFICATE = (
    "; if the server asks for certificates, give ClientTLS(certificate=, key=) one that its client_ca signed"
)


def handshake_problem(address: str, text: str) -> HandshakeFailed | None:
    """Returns the error for a text of gRPC about a handshake that would fail again; None for any other text."""
    for pattern, way_out in _CAUSES if has_tls(address) else ():
        found = pattern.search(text)
        if found is not None:
            return HandshakeFailed(address, found[1].strip(), way_out)
    return None


def short_reason(problem: BaseException, location: str, is_greeted: bool = False) -> str:
    """Returns the cause of a broken stream in at most 300 characters.

    is_greeted: the server had accepted the stream, so certificates are not the cause.
    """
    if isinstance(problem, StopIteration):
        return "the server ended the stream"
    text = str(problem).split(". gRPC client debug")[0]
    text = text.removeprefix("Flight returned unavailable error, with message: ")[:200]
    if is_greeted:
        return text
    if has_tls(location):
        return text + (_NO_CERTIFICATE if "Secure read failed" in text else "")
    return text + (_PLAIN if "failed to connect" in text and "Socket closed" in text else "")
