"""Damages saves at random, or rewrites them as an attacker does, with right checksums."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from relive import _core
from relive.saving.current import line_of

Contents: TypeAlias = "dict[str, bytes]"  # of a folder, by path

HEAD, ENTRY, HEAD_BYTES = struct.Struct("<12sIIII"), struct.Struct("<32sIIQQII"), 64
NUMBERS = [0, 1, 2, 3, 255, 4096, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
VALUES: list[Any] = [
    *NUMBERS,
    -1,
    10**30,
    1.5,
    float("nan"),
    None,
    True,
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    {"a": 1},
    "../x",
]
NAMES = ["../../../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "\0", "x" * 300, "\ud800", "model", "CURRENT"]


def flipped(files: Contents, rng: Random) -> None:
    path = rng.choice(sorted(files))
    data = bytearray(files[path])
    for _ in range(rng.choice([1, 1, 1, 8])):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    files[path] = bytes(data)


def cut_short(files: Contents, rng: Random) -> None:
    path = rng.choice(sorted(files))
    files[path] = files[path][: rng.randrange(len(files[path]) + 1)]


def longer(files: Contents, rng: Random) -> None:
    path = rng.choice(sorted(files))
    files[path] += rng.choice([bytes(1), bytes(4096), rng.randbytes(100), files[path]])


def missing(files: Contents, rng: Random) -> None:
    for path in rng.sample(sorted(files), rng.choice([1, 1, 2, 5])):
        del files[path]


def swapped(files: Contents, rng: Random) -> None:
    one, other = rng.sample(sorted(files), 2)
    files[one], files[other] = files[other], files[one]


def changed_value(value: Any, rng: Random) -> Any:
    """Returns a JSON value with one place changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if rng.random() < 0.3:
            return {**value, rng.choice(NAMES): value[key]}
        return {**value, key: changed_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], changed_value(value[at], rng), *value[at + 1 :]] if rng.random() < 0.8 else value * 2
    return rng.choice(VALUES)


def _line(files: Contents, name: str, rng: Random) -> None:
    told = json.loads(files[name].split(b"\n")[0])
    if rng.random() < 0.1:
        line = rng.choice([b"[" * 100_000, b'{"cuts":' * 20_000, b"null", b"\xff\xfe", b"9" * 5000, b'{"a":1}{'])
        files[name] = line + b"\n%08x\n" % _core.crc32c(line)
    else:
        files[name] = line_of(changed_value(told, rng))


def other_current(files: Contents, rng: Random) -> None:
    _line(files, "CURRENT", rng)


def other_folder(files: Contents, rng: Random) -> None:
    _line(files, "relive-save.json", rng)


def sections_of(data: bytes) -> list[list[Any]]:
    """Returns [name, index, must know, place, length, sum, bytes] of each section of a cut."""
    count = HEAD.unpack_from(data)[3]
    entries = [list(ENTRY.unpack_from(data, HEAD_BYTES + k * ENTRY.size)[:6]) for k in range(count)]
    return [[*entry, data[entry[3] : entry[3] + entry[4]]] for entry in entries]


def with_sections(sections: list[list[Any]], head: list[Any], *, places: bool = True) -> bytes:
    """Returns a cut of these sections, with all sums right. places: lay them out again."""
    entries, bodies, at = b"", {}, HEAD_BYTES + len(sections) * ENTRY.size
    for section in sections:
        name, index, must_know, place, length, _, data = section
        if places:
            at += -at % 64
            place, length = at, len(data)
            at += length
        bodies[place] = data
        entries += ENTRY.pack(name, index % 2**32, must_know, place % 2**64, length % 2**64, _core.crc32c(data), 0)
    packed = HEAD.pack(*head, _core.crc32c(entries))
    whole = bytearray((packed + _core.crc32c(packed).to_bytes(4, "little")).ljust(HEAD_BYTES, b"\0") + entries)
    for place, data in bodies.items():
        if place <= 1 << 22:
            whole = whole.ljust(place + len(data), b"\0")
            whole[place : place + len(data)] = data
    return bytes(whole.ljust(-(-len(whole) // 4096) * 4096, b"\0"))


def _newest(files: Contents) -> str:
    return max((path for path in files if path.startswith("cuts/")), key=lambda path: int(path[5:-4]))


def other_table_of_sections(files: Contents, rng: Random) -> None:
    path = _newest(files)
    sections, head = sections_of(files[path]), list(HEAD.unpack_from(files[path])[:4])
    kind = rng.randrange(6)
    if kind == 0:
        rng.choice(sections)[rng.choice([1, 3, 4])] = rng.choice(NUMBERS)
    elif kind == 1:
        rng.choice(sections)[0] = rng.choice([b"", b"facts", b"images", b"\xff" * 32, b"new section"])
    elif kind == 2:
        rng.shuffle(sections)
    elif kind == 3:
        sections.append(list(rng.choice(sections)))
        head[3] += 1
    elif kind == 4:
        sections.remove(rng.choice(sections))
        head[3] -= 1
    else:
        head[rng.choice([1, 2, 3])] = rng.choice(NUMBERS) % 2**32
    files[path] = with_sections(sections, head, places=kind != 0)


def change_section(files: Contents, name: bytes, change: Callable[[bytes], bytes]) -> None:
    path = _newest(files)
    sections = sections_of(files[path])
    for section in sections:
        if section[0].rstrip(b"\0") == name:
            section[6] = change(section[6])
    files[path] = with_sections(sections, list(HEAD.unpack_from(files[path])[:4]))


def other_facts(files: Contents, rng: Random) -> None:
    odd = [b"[" * 100_000, b"", b"null", b"[]", b'{"a":', b"\xff", b'{"beside":' * 5000]
    if rng.random() < 0.2:
        change_section(files, b"facts", lambda data: rng.choice(odd))
        return

    def change(data: bytes) -> bytes:
        facts = json.loads(data)
        if rng.random() < 0.5:
            facts["beside"] = changed_value(facts["beside"], rng)
        return json.dumps(changed_value(facts, rng) if rng.random() < 0.5 else facts).encode()

    change_section(files, b"facts", change)


def other_images(files: Contents, rng: Random) -> None:
    def change(data: bytes) -> bytes:
        images = bytearray(data)
        for _ in range(rng.choice([1, 1, 4])):
            if len(images) >= 8:
                at = rng.randrange(len(images) // 8) * 8
                images[at : at + 8] = rng.choice([rng.choice(NUMBERS), rng.randrange(20_000)]).to_bytes(8, "little")
        return bytes(rng.choice([images, images, images, images + images, images[:-5], b""]))

    change_section(files, b"images", change)


RANDOM = [flipped, cut_short, longer, missing, swapped]
WISE = [other_current, other_folder, other_table_of_sections, other_facts, other_images]
