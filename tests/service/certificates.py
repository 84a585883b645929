"""Authorities and certificates for these tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import final

import pytest

__all__ = ["Authority", "needs_openssl"]

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command is not installed here: it makes the certificates"
)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@final
class Authority:
    """A certificate authority in a folder of its own. `path` is its certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.path, self._key = self.folder / "ca.pem", self.folder / "ca.key"
        _new_key(self._key)
        _openssl("req", "-x509", "-new", "-key", self._key, "-days", "30", "-subj", f"/CN={name}", "-out", self.path)

    def issue(self, name: str, *, host: str = "IP:127.0.0.1,DNS:localhost", days: int = 30) -> tuple[str, str]:
        """Returns the paths of a certificate with this common name and of its key.

        host: its other names; "": none, so that the common name is the identity of a client. days=-1: it has expired.
        """
        stem = self.folder / f"issued{len(list(self.folder.iterdir()))}"
        key, asked, made, more = (stem.with_suffix(one) for one in (".key", ".csr", ".pem", ".ext"))
        _new_key(key)
        more.write_text(f"subjectAltName={host}\n" if host else "basicConstraints=CA:FALSE\n")
        _openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", asked)
        told = ("-in", asked, "-CA", self.path, "-CAkey", self._key, "-CAcreateserial")
        _openssl("x509", "-req", *told, "-days", str(days), "-extfile", more, "-out", made)
        return str(made), str(key)


def _new_key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
