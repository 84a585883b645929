"""An extension of griffe: a comment at the end of the line of a field is the docstring of that field.

relive documents the fields of its statistics that way. Without the extension the reference shows them without words.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

COMMENT = re.compile(r"^\s*(?:\w+): [^#]*#\s?(.*)$")
MORE = re.compile(r"^\s+#\s?(.*)$")


class FieldComments(griffe.Extension):
    """Reads the comments of annotated fields of classes."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Gives the attribute a docstring, if it has none and its line has a comment."""
        if attr.docstring is not None or attr.lineno is None or not isinstance(attr.parent, griffe.Class):
            return
        if not isinstance(attr.filepath, list):
            lines = attr.filepath.read_text().splitlines()
            found = COMMENT.match(lines[attr.lineno - 1])
            if found is None:
                return
            words = [found[1]]
            for line in lines[attr.lineno :]:
                more = MORE.match(line)
                if more is None:
                    break
                words.append(more[1])
            text = " ".join(words)
            end = "" if text.endswith(".") else "."
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:] + end, parent=attr)
