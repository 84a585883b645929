"""Writes src/relive/cli/options.json: every option of a run with its type, default and explanation, for each agent.

usage: python scripts/write_options.py [--check]

`relive train AGENT --help` reads the file, so that the help needs no extra and does not wait for PyTorch. The types and
defaults come from the configuration classes. The explanations come from the `Attributes:` and `Args:` of their
docstrings.
`--check` writes nothing and fails if the file differs.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relive.agents.registry import AGENTS
from relive.cli.training import shown
from relive.train.config import preset
from relive.train.settings import Written, options

TARGET = Path(__file__).resolve().parent.parent / "src" / "relive" / "cli" / "options.json"
FIELD = re.compile(r"^    (\w+): (.+)$")


def explanations(kind: type) -> dict[str, str]:
    """{field: its text} from the docstrings of a class and of the classes that it extends."""
    found: dict[str, str] = {}  # a text such as "see TransitionsConfig." is left to the class that it names
    for one in reversed(kind.__mro__):
        in_fields, name = False, ""
        for line in inspect.cleandoc(one.__doc__ or "").splitlines():
            if line in ("Attributes:", "Args:"):
                in_fields = True
            elif line and not line.startswith(" "):
                in_fields = False
            elif in_fields and (match := FIELD.match(line)):
                name = "" if re.match(r"[Ss]ee \w+Config\.", match[2]) else match[1]
                if name:
                    found[name] = match[2]
            elif in_fields and name and line.startswith("        "):
                found[name] += " " + line.strip()
    texts = {field: re.sub(r" Default: (\([^)]*\)|[^ ]+)\.( |$)", r"\2", text).strip() for field, text in found.items()}
    return {field: text[0].upper() + text[1:] for field, text in texts.items()}


def explained(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each option's path and its explanation."""
    texts = explanations(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, Written):
            yield from explained(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, texts.get(field.name, "")


def rows(agent: str) -> list[list[str]]:
    """[path, type, default, explanation] of every option, in the order of the configuration."""
    config = preset(agent, AGENTS[agent].environment)
    texts = dict(explained(config))
    found = [[one.path, one.type_name, shown(one.value), texts[one.path]] for one in options(config)]
    missing = [row[0] for row in found if not row[3]]
    if missing:
        raise SystemExit(f"options without an explanation in their class's docstring: {', '.join(missing)}")
    return found


def content() -> str:
    """The text of the file."""
    return json.dumps({agent: rows(agent) for agent in AGENTS}, indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """0 if the file is current, or was written."""
    if "--check" in arguments:
        if TARGET.read_text() != content():
            print(f"{TARGET.name} differs from the configuration classes: run python scripts/write_options.py")
            return 1
        return 0
    TARGET.write_text(content())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
