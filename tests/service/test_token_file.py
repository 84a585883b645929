"""The file of the tokens: its contents, its readers, and its state after a change."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from relive import errors
from relive.checks.secrets import read_token
from relive.cli.entry import run
from relive.service.wire import tokens as token_file
from relive.service.wire.tokens import add_token, read_tokens, remove_token

of_the_superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser changes files of other users")


def test_the_file_has_hashes_alone_and_no_other_user_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    first = add_token(str(path), "a", ["read"], ["pong*", "x y"])
    second = add_token(str(path), "b.c", ["read", "admin"], ["*"])
    assert path.stat().st_mode & 0o777 == 0o600 and first not in path.read_text() and second not in path.read_text()
    one, two = read_tokens(str(path))
    assert (one.name, one.roles_for("pong7"), one.roles_for("ping")) == ("a", {"read"}, frozenset())
    assert two.name == "b.c" and two.roles_for("ping") == {"read", "admin"}
    with pytest.raises(errors.InvalidConfig, match="does not have"):
        add_token(str(path), "a", ["read"], ["*"])
    remove_token(str(path), "a")
    assert [one.name for one in read_tokens(str(path))] == ["b.c"]
    with pytest.raises(errors.InvalidConfig, match=r"b\.c"):
        remove_token(str(path), "a")
    remove_token(str(path), "b.c")
    assert read_tokens(str(path)) == ()


def test_a_change_through_a_link_changes_the_file_of_the_server(tmp_path: Path) -> None:
    path, link = tmp_path / "real" / "tokens.toml", tmp_path / "tokens.toml"
    path.parent.mkdir()
    link.symlink_to(path)
    add_token(str(link), "a", ["read"], ["*"])
    add_token(str(link), "b", ["read"], ["*"])
    remove_token(str(link), "a")
    assert link.is_symlink() and [one.name for one in read_tokens(str(path))] == ["b"]
    assert [one.name for one in tmp_path.rglob("*tokens*")] == ["tokens.toml", "tokens.toml"]


@of_the_superuser
def test_a_change_by_the_superuser_leaves_the_file_to_its_owner(tmp_path: Path) -> None:
    """Else the user of the server could not read that a token is revoked."""
    path = tmp_path / "tokens.toml"
    add_token(str(path), "a", ["read"], ["*"])
    os.chown(path, 65534, 65533)
    remove_token(str(path), "a")
    told = path.stat()
    assert (told.st_uid, told.st_gid, told.st_mode & 0o777) == (65534, 65533, 0o600)


@of_the_superuser
def test_a_file_that_cannot_be_left_to_its_owner_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.toml"
    add_token(str(path), "a", ["read"], ["*"])
    os.chown(path, 65534, 65533)
    before = path.read_bytes()

    def refuses(*given: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuses)
    with pytest.raises(errors.InvalidConfig, match="user of the server"):
        remove_token(str(path), "a")
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('[tokens.a]\nsha256 = "00"\ngrants = []', "64 hexadecimal"),
        ("[tokens.a]\ngrants = []", "either sha256 or certificate"),
        ('[tokens.a]\ncertificate = "c"\ngrants = 3', "a list of"),
        ('[tokens.a]\ncertificate = "c"\ngrants = [{ roles = ["root"], tables = ["*"] }]', "some of read"),
        ('[tokens.a]\ncertificate = "c"\ngrants = [{ roles = ["read"], tables = [] }]', "wildcards"),
        ('[tokens.a]\ncertificate = "c"\nexpires = 2027-01-01\ngrants = []', "with its zone"),
        ('[tokens.a]\ncertificate = "c"\ngrants = []\nrole = "x"', "role"),
        ("tokens = 3", "each"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(errors.InvalidConfig, match=match):
        read_tokens(str(path))


@pytest.mark.parametrize(
    ("expires", "says"),
    [
        ("2027-01-01T00:00:00Z", "until 2027-01-01 00:00:00+00:00"),
        ("9999-12-31T23:59:59-12:00", "until the year 10000"),
        ("0001-01-01T00:00:00+12:00", "until the year 0"),
    ],
)
def test_every_time_of_an_entry_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expires: str, says: str
) -> None:
    """In UTC, which may have no such year."""
    path = tmp_path / "tokens.toml"
    path.write_text(f'[tokens.a]\ncertificate = "c"\nexpires = {expires}\ngrants = []\n')
    path.chmod(0o600)
    assert run(["token", "ls", "--file", str(path)]) == 0
    assert capsys.readouterr().out == f"a: no roles, {says}\n"


def test_a_folder_is_no_file_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidConfig, match="expected a file"):
        read_tokens(str(tmp_path))
    with pytest.raises(errors.InvalidConfig, match="expected a file"):
        read_token(str(tmp_path))


def test_a_name_of_any_text_leaves_the_file_whole(tmp_path: Path) -> None:
    """JSON writes some characters in another way than TOML reads them."""
    path = str(tmp_path / "tokens.toml")
    names = ["\U0001f600*", "a\x7fb", 'q"\\', "\t\x01", "\u00e9\u2028", "[!a]"]
    for number, name in enumerate(names):
        add_token(path, f"t{number}", ["read"], [name])
    remove_token(path, "t5")
    assert [one.grants[0].tables for one in read_tokens(path)] == [(name,) for name in names[:5]]
    before = Path(path).read_bytes()
    for wrong in ("\udc80", "a\0b", ""):
        with pytest.raises(errors.InvalidConfig, match="names of tables"):
            add_token(path, "new", ["read"], [wrong])
    assert Path(path).read_bytes() == before


def test_a_change_that_would_spoil_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text('tokens = { a = { certificate = "c", grants = [] } }')  # to which TOML adds no table
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(errors.InvalidConfig, match="file of the tokens"):
        add_token(str(path), "b", ["read"], ["*"])
    assert path.read_bytes() == before and [one.name for one in read_tokens(str(path))] == ["a"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_too_long_is_refused_whole(tmp_path: Path) -> None:
    """The rest of it was passed over, with the tokens that it names."""
    path = tmp_path / "tokens.toml"
    add_token(str(path), "a", ["read"], ["*"])
    with path.open("a") as file:
        file.write("#" + "x" * (4 << 20) + "\n")
    with pytest.raises(errors.InvalidConfig, match="at most 4.0 MiB"):
        read_tokens(str(path))


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(token_file.hmac, "compare_digest", lambda one, other: seen.append(one) or one == other)
    entries = [token_file.Entry(name, token_file.digest_of(name), "", float("inf"), ()) for name in "abc"]
    found = token_file.entry_of(entries, token_file.digest_of("a"), "")
    assert found is entries[0] and len(seen) == 3, "the search goes on after the token is found"


def test_changes_of_the_file_at_once_lose_none(tmp_path: Path) -> None:
    """A token that was revoked stays revoked, and each new one is there."""
    path, begins = str(tmp_path / "tokens.toml"), threading.Barrier(9)
    add_token(path, "revoked", ["read"], ["*"])
    changes = [partial(add_token, path, f"new{number}", ["read"], ["*"]) for number in range(8)]
    with ThreadPoolExecutor(9) as threads:
        done = [
            threads.submit(lambda one=one: (begins.wait(60), one()))
            for one in [*changes, partial(remove_token, path, "revoked")]
        ]
        for one in done:
            one.result(60)
    assert {one.name for one in read_tokens(path)} == {f"new{number}" for number in range(8)}
    assert os.listdir(tmp_path) == ["tokens.toml"]


def test_a_folder_that_cannot_be_locked_lets_changes_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems lock no folder."""

    def refuses(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = str(tmp_path / "tokens.toml")
    monkeypatch.setattr(fcntl, "flock", refuses)
    for name in ("a", "b"):
        add_token(path, name, ["read"], ["*"])
    remove_token(path, "a")
    assert [one.name for one in read_tokens(path)] == ["b"]
