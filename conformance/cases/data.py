"""The content of an item, and the table's signature for this content."""

from __future__ import annotations

from conformance.calls import change_what_was_put, change_what_was_taken, one, opens, put, size, take
from conformance.sources import CLIENT, TABLE, TRAJECTORY_WRITER
from conformance.words import Case

NUMBER = one(signature={"x": ("float32", ())})

CASES = (
    Case(
        "an int64 comes back as it was",
        "Tensors come back with their type and value.",
        CLIENT,
        one(signature={"x": ("int64", ())}),
        (put({"x": ("int64", 2**40 + 1)}), take().gives({"x": ["int64", [], 2**40 + 1]})),
    ),
    Case(
        "a float32 comes back bit for bit",
        "Tensors come back with their type and value.",
        CLIENT,
        NUMBER,
        (put({"x": ("float32", 0.1)}), take().gives({"x": ["float32", [], 0.10000000149011612]})),
    ),
    Case(
        "an image of bytes comes back with its shape",
        "Tensors come back with their type and shape.",
        CLIENT,
        one(signature={"x": ("uint8", (2, 3, 1))}),
        (
            put({"x": ("uint8", [[[0], [1], [2]], [[253], [254], [255]]])}),
            take().gives({"x": ["uint8", [2, 3, 1], [[[0], [1], [2]], [[253], [254], [255]]]]}),
        ),
    ),
    Case(
        "a bool comes back as one",
        "Tensors come back with their type and value.",
        CLIENT,
        one(signature={"x": ("bool", (2,))}),
        (put({"x": ("bool", [True, False])}), take().gives({"x": ["bool", [2], [True, False]]})),
    ),
    Case(
        "a complex number comes back as it was",
        "Any type that a tensor has can be stored.",
        CLIENT,
        one(signature={"x": ("complex64", (2,))}),
        (put({"x": ("complex64", [1 + 2j, -3j])}), take().gives({"x": ["complex64", [2], [[1.0, 2.0], [-0.0, -3.0]]]})),
    ),
    Case(
        "several columns come back each as it was",
        "An item is a structure of tensors.",
        CLIENT,
        one(signature={"b": ("float64", ()), "a": ("int32", (2,))}),
        (
            put({"a": ("int32", [1, -1]), "b": ("float64", 0.25)}),
            take().gives({"a": ["int32", [2], [1, -1]], "b": ["float64", [], 0.25]}),
        ),
    ),
    Case(
        "nested data come back nested",
        "Data is unpacked according to the structure of the table's signature.",
        CLIENT,
        one(signature={"outer": {"b": ("int64", ()), "a": ("int64", ())}, "c": ("int64", ())}),
        (
            put({"outer": {"a": ("int64", 1), "b": ("int64", 2)}, "c": ("int64", 3)}),
            take().gives({"outer": {"a": ["int64", [], 1], "b": ["int64", [], 2]}, "c": ["int64", [], 3]}),
        ),
    ),
    Case(
        "data that do not have the shape of the signature are refused",
        "Items are checked against the table's signature before they are sent.",
        TRAJECTORY_WRITER,
        one(signature={"x": ("float32", (2,))}),
        (put({"x": ("float32", [1.0, 2.0, 3.0])}).gives("refused"), size().gives(0)),
    ),
    Case(
        "data that lack a column of the signature are refused",
        "Items are checked against the table's signature before they are sent.",
        TRAJECTORY_WRITER,
        one(signature={"x": ("float32", ()), "y": ("float32", ())}),
        (put({"x": ("float32", 1.0)}).gives("refused"), size().gives(0)),
    ),
    Case(
        "data with a column more than the signature are refused",
        "Items are checked against the table's signature before they are sent.",
        TRAJECTORY_WRITER,
        NUMBER,
        (put({"x": ("float32", 1.0), "y": ("float32", 1.0)}).gives("refused"), size().gives(0)),
    ),
    Case(
        "floats for a column of integers are refused",
        "Items are checked against the table's signature before they are sent.",
        TRAJECTORY_WRITER,
        one(signature={"x": ("int64", ())}),
        (put({"x": ("float32", 1.5)}).gives("refused"), size().gives(0)),
    ),
    Case(
        "float64 for a column of float32",
        "Items are checked against the table's signature before they are sent. Types must be equal.",
        TRAJECTORY_WRITER,
        NUMBER,
        (put({"x": ("float64", 0.5)}).gives("refused", relive="done"), size().gives(0, relive=1)),
        differs="Python's numbers and most observations of environments are float64. Reverb refuses every type except"
        " the column's type. relive casts as numpy's same_kind allows, and refuses a cast that would lose a fraction"
        " or an integer.",
    ),
    Case(
        "int32 for a column of int64",
        "Items are checked against the table's signature before they are sent. Types must be equal.",
        TRAJECTORY_WRITER,
        one(signature={"x": ("int64", ())}),
        (put({"x": ("int32", 5)}).gives("refused", relive="done"), size().gives(0, relive=1)),
        differs="An int64 can represent every int32. Reverb refuses every type except the column's type. relive casts"
        " as numpy's same_kind allows.",
    ),
    Case(
        "strings",
        "Tensors of strings can be stored, of any length.",
        TABLE,
        one(signature={"x": ("str", ())}),
        (
            opens().gives("done", relive="refused"),
            put({"x": ("str", "some text")}),
            put({"x": ("str", "some more text")}),
            size().gives(2),
        ),
        differs="Reverb stores strings as it stores any tensor. In relive, a row has a fixed size, so that relive"
        " finds and gathers rows without pointers. relive refuses data of variable size. Store such data as bytes of"
        " a fixed length, or outside the table, with a number in the table.",
    ),
    Case(
        "arrays may be written over after they were put",
        "A data element is immutable once written.",
        TABLE,
        one(signature={"x": ("float32", (3,))}),
        (
            put({"x": ("float32", [1.0, 2.0, 3.0])}),
            change_what_was_put(),
            take().gives({"x": ["float32", [3], [1.0, 2.0, 3.0]]}),
        ),
    ),
    Case(
        "arrays that were taken are the caller's own",
        "A data element is immutable once written.",
        TABLE,
        one(signature={"x": ("float32", (3,))}),
        (
            put({"x": ("float32", [1.0, 2.0, 3.0])}),
            take().gives({"x": ["float32", [3], [1.0, 2.0, 3.0]]}),
            change_what_was_taken(),
            take().gives({"x": ["float32", [3], [1.0, 2.0, 3.0]]}),
        ),
    ),
    Case(
        "a column of arrays without elements",
        "Any shape that a tensor has can be stored.",
        CLIENT,
        one(signature={"x": ("float32", (0,)), "y": ("float32", ())}),
        (
            opens().gives("done", relive="refused"),
            put({"x": ("float32", []), "y": ("float32", 1.0)}),
            take().gives({"x": ["float32", [0], []], "y": ["float32", [], 1.0]}),
        ),
        differs="Reverb stores any tensor. In relive, a column without bytes is an error of the spec, and relive says"
        " so.",
    ),
)
