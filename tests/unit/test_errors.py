"""Errors are structured: a type, fields, a sentence that names the way out; all of them pickle."""

from __future__ import annotations

import inspect
import pickle

import pytest
from unit.error_examples import EXAMPLES

from relive import errors


def test_every_class_has_an_example() -> None:
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ReliveError)}
    assert classes - {type(error) for error in EXAMPLES} == {errors.ReliveError}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickles_with_its_fields_and_sentence(error: errors.ReliveError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(again.__dict__) == repr(error.__dict__)
    for kept_elsewhere in ("errno", "name"):  # by OSError, ImportError
        assert getattr(again, kept_elsewhere, None) == getattr(error, kept_elsewhere, None)
    assert type(again).__module__ == "relive.errors" or type(again) is errors.ReliveError


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_sentence_is_one_readable_line(error: errors.ReliveError) -> None:
    sentence = str(error)
    assert 20 < len(sentence) < 400
    assert "\n" not in sentence and "None" not in sentence


def test_full_shared_memory_names_all_ways_out() -> None:
    sentence = str(errors.StorageFull("/dev/shm/relive-pong", 7 << 30, 64 << 20))
    for part in ("docker run --shm-size", "smaller capacity", "LocalMemory", "7.0 GiB", "64.0 MiB", "relive-pong"):
        assert part in sentence


def test_a_misspelt_column_is_answered_with_the_nearest() -> None:
    assert "did you mean 'observation'?" in str(errors.UnknownColumn("obervation", ["observation", "action"]))
    assert "did you mean 'observations'?" in str(errors.MissingColumn("observation", ["observations", "action"]))


def test_errors_are_also_what_python_programs_catch() -> None:
    assert issubclass(errors.DeadlineExceeded, TimeoutError)
    assert issubclass(errors.WaitsForItself, errors.DeadlineExceeded)
    assert issubclass(errors.UnknownColumn, KeyError)
    assert issubclass(errors.NameTaken, FileExistsError)
    assert issubclass(errors.NoSuchTable, FileNotFoundError)
    assert errors.SystemFailure("mmap", 12).errno == 12
    assert "Success" not in str(errors.SystemFailure("mmap"))


def test_from_core_chooses_the_class_by_code() -> None:
    error = errors.from_core("SeamMismatch", {"lane": 3, "column": "observation"})
    assert isinstance(error, errors.SeamMismatch) and error.lane == 3 and error.column == "observation"
    assert isinstance(errors.from_core("SystemError", {"what": "mmap", "errno": 12}), errors.SystemFailure)
    assert isinstance(errors.from_core("TableClosed", {}), errors.TableClosed)


def test_from_core_keeps_fields_it_does_not_know() -> None:
    error = errors.from_core("MissingNext", {"lane": 2, "episode_step": 17})
    assert isinstance(error, errors.MissingNext)
    assert error.episode_step == 17  # type: ignore[attr-defined]


@pytest.mark.parametrize("code, fields", [("FromTheFuture", {"what": "x"}), ("SeamMismatch", {}), ("ReliveError", {})])
def test_from_core_never_fails(code: str, fields: dict[str, object]) -> None:
    error = errors.from_core(code, fields)
    assert isinstance(error, errors.ReliveError) and code in str(error)


class _Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


def test_whatever_was_given_can_be_told() -> None:
    """Python refuses to print integers of 5000 digits; a repr may fail, or fill a log."""
    for got in (10**5000, -(10**5000), (1, 10**5000), _Unshowable(), ["x"] * 10**6):
        error = errors.InvalidConfig("capacity", "less", got)
        assert pickle.loads(pickle.dumps(error)).args == error.args
        assert len(str(error)) < 1000


def test_names_that_cannot_be_printed_are_escaped() -> None:
    error = errors.UnknownColumn("a\ud800", ["b\udcff"])
    assert b"\\udcff" in str(error).encode()
    assert error.column == "a\ud800"


def test_a_deadline_speaks_of_the_limiter_where_items_are_waited_for() -> None:
    for needs, of_limiter in (
        (256, True),
        ("1000 live items", True),
        ("inserted x 4 - sampled >= 8", True),
        ("2 nodes with {'CPU': 1} free each", False),
        ("8 items, of which those of shard 0 are on their way", False),
        ("the table lock", False),
    ):
        assert ("loosen the limiter" in str(errors.DeadlineExceeded(needs, 1, 2.0))) == of_limiter
