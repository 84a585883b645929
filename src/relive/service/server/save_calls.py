"""Answers the calls of clients that save: a save begins, is looked at and cancelled, and older saves are forgotten.

{"op": "save", "token", "name", "beside": [[name, bytes], ...], "keep": a number, or a list of the numbers that stay}
body: the blobs, one after the other -> {}
{"op": "saving", "token", "timeout_s", "until": "cut" or "end"} -> {"has_cut", "progress", "facts" after the commit}
{"op": "cancel", "token"} -> {}
{"op": "forget", "name", "staying": [number, ...]} -> {}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relive.errors import BadMessage
from relive.saving.saving import checked
from relive.service.server.hosting import SLICE_S, Hosted
from relive.service.server.saves import AskedSave
from relive.service.wire import framing
from relive.service.wire.framing import Bytes

__all__ = ["begin_save", "cancel_save", "forget_saves", "look_at_save"]

Header = Mapping[str, Any]

_MAX_TOKEN = 64
_MOST_STAYING = 4096
_MAX_NUMBER = 2**31


def begin_save(hosted: Hosted, header: Header, body: Bytes) -> dict[str, Any]:
    """Starts a save on a thread of its own."""
    token, name = _token(header), framing.field(header, "name", str)
    is_named = isinstance(header.get("keep"), list)
    keep = _numbers(header, "keep") if is_named else framing.whole(header, "keep", 1, _MAX_NUMBER)
    blobs, _ = checked(_blobs(header, body), keep if isinstance(keep, int) else 1)
    hosted.saves.begin(token, AskedSave(name, blobs, keep))
    return {}


def look_at_save(hosted: Hosted, header: Header, body: Bytes) -> dict[str, Any]:
    """Returns the state of a save, after a wait of at most SLICE_S. Raises the error that ended it."""
    until = framing.field(header, "until", str)
    seconds = min(framing.seconds(header), SLICE_S)
    return hosted.saves.told(_token(header), seconds, until == "cut")


def cancel_save(hosted: Hosted, header: Header, body: Bytes) -> dict[str, Any]:
    """Ends a save at its next block."""
    hosted.saves.cancel(_token(header))
    return {}


def forget_saves(hosted: Hosted, header: Header, body: Bytes) -> dict[str, Any]:
    """Removes the saves of a folder that no longer stay."""
    hosted.saves.forget(framing.field(header, "name", str), _numbers(header, "staying"))
    return {}


def _token(header: Header) -> str:
    token: str = framing.field(header, "token", str)
    if not 0 < len(token) <= _MAX_TOKEN:
        raise BadMessage("header field 'token'", f"1 to {_MAX_TOKEN} characters", len(token))
    return token


def _numbers(header: Header, name: str) -> frozenset[int]:
    told = framing.field(header, name, list)
    if len(told) > _MOST_STAYING or not all(type(one) is int and 0 <= one < _MAX_NUMBER for one in told):
        raise BadMessage(f"header field {name!r}", f"at most {_MOST_STAYING} numbers of saves", str(told)[:40])
    return frozenset(told)


def _blobs(header: Header, body: Bytes) -> dict[str, bytes]:
    told = framing.field(header, "beside", list)
    blobs: dict[str, bytes] = {}
    at = 0
    for pair in told:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int):
            raise BadMessage("header field 'beside'", "pairs of a name and a length", str(pair)[:40])
        if pair[0] in blobs or not 0 <= pair[1] <= len(body) - at:
            raise BadMessage("header field 'beside'", "each name once, and lengths within the body", str(pair)[:40])
        blobs[pair[0]] = body[at : at + pair[1]].tobytes()
        at += pair[1]
    if at != len(body):
        raise BadMessage("body", f"{at} bytes", len(body))
    return blobs
