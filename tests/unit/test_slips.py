"""A name of another library is answered with relive's name for it. Each row of the table of names is true."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.errors import slips

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((4,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)
STEP: dict[str, Any] = {"observation": np.zeros(4, np.float32), "action": 1, "reward": 0.0}


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(SPEC, 100, relive.Index(sampler=relive.Prioritized())) as made, made.writer() as writer:
        for _ in range(10):
            writer.append(**STEP)
        yield made


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, callee, argument, instead",
    [
        (lambda: relive.Prioritized(alpha=0.6), "Prioritized", "alpha", "priority_exponent="),
        (lambda: relive.Prioritized(beta=0.4), "Prioritized", "beta", "batch.weights(beta=...)"),
        (lambda: relive.Table(SPEC, 9, sampler=relive.Uniform()), "Table", "sampler", "Index(sampler=...)"),
        (lambda: relive.Table(SPEC, buffer_size=9), "Table", "buffer_size", "capacity="),
        (lambda: relive.Table(SPEC, 9, n_step=3), "Table", "n_step", "Index(Transitions(n_step=..., gamma=...))"),
        (lambda: relive.TableConfig(SPEC, max_size=9), "TableConfig", "max_size", "capacity="),
        (lambda: relive.Index(rate_limiter=relive.MinSize(2)), "Index", "rate_limiter", "limiter="),
        (lambda: relive.Transitions(nstep=3), "Transitions", "nstep", "n_step="),
        (lambda: relive.SamplesPerInsert(8.0, error_buffer=9), "SamplesPerInsert", "error_buffer", "tolerance="),
        (lambda: relive.ArraySpec((), type="int64"), "ArraySpec", "type", "dtype="),
        (lambda: relive.Uniform(seed=1), "Uniform", "seed", "Table(..., seed=...)"),
        (lambda: relive.SharedMemory("x", replace=True), "SharedMemory", "replace", "overwrite="),
        (lambda: relive.Tiered("x", ram="1GiB"), "Tiered", "ram", "ram_bytes="),
        (lambda: relive.StepSpec.from_spaces(obs_space=1), "from_spaces", "obs_space", "observation_space="),
        (lambda: relive.attach("nobody", timeout=1), "attach", "timeout", "timeout_s="),
        (lambda: relive.Prioritized(priority_exponnet=0.6), "Prioritized", "priority_exponnet", "priority_exponent="),
        (lambda: relive.MinSize(colour=1), "MinSize", "colour", ""),
    ],
)  # fmt: skip
def test_wrong_arguments_of_configurations(call: Callable[[], Any], callee: str, argument: str, instead: str) -> None:
    with pytest.raises(errors.UnknownArgument) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert (caught.value.callee, caught.value.argument, caught.value.instead) == (callee, argument, instead)
    assert f"{callee}() has no argument {argument!r}" in str(caught.value) and instead in str(caught.value)


@pytest.mark.parametrize(
    "method, arguments, instead",
    [
        ("sample", {"batch_size": 4}, "num_items="),
        ("sample", {"num_items": 4, "beta": 0.4}, "batch.weights(beta=...)"),
        ("draw", {"num_samples": 4}, "num_items="),
        ("batches", {"batch_size": 4}, "num_items="),
        ("gather", {"indices": [1]}, "items="),
        ("update_priorities", {"indices": [1], "priorities": [1.0]}, "item_keys="),
        ("update_priorities", {"item_keys": [1], "td_error": [1.0]}, "priorities="),
        ("delete", {"keys": [1]}, "item_keys="),
        ("writer", {"num_envs": 4}, "num_lanes="),
    ],
)
def test_wrong_arguments_of_calls(table: relive.Table, method: str, arguments: dict[str, Any], instead: str) -> None:
    with pytest.raises(errors.UnknownArgument) as caught:
        getattr(table, method)(**arguments)
    assert caught.value.callee == method and caught.value.instead == instead
    assert len(table) == 10
    table.check()


def test_an_argument_that_is_missing_beside_none_that_is_wrong(table: relive.Table) -> None:
    batch = table.sample(4)
    calls: list[tuple[Callable[..., Any], str]] = [
        (table.sample, "num_items"),
        (table.update_priorities, "item_keys, priorities"),
        (batch.weights, "beta"),
    ]
    for call, needs in calls:
        with pytest.raises(TypeError, match=f"needs {needs}") as caught:
            call()
        assert not isinstance(caught.value, errors.ReliveError)
    with pytest.raises(TypeError, match="needs item_keys, priorities"):
        table.update_priorities(batch.item_keys)  # type: ignore[call-arg]
    with pytest.raises(errors.UnknownArgument, match="normalize"):
        batch.weights(0.5, normalise=None)


def test_an_error_within_a_call_stays_what_it_is(table: relive.Table) -> None:
    """Only a keyword that is not there is answered; what else is of the wrong type keeps its own error."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'capacity'") as missing:
        relive.Table(SPEC)  # type: ignore[call-arg]
    assert not isinstance(missing.value, errors.ReliveError)
    with pytest.raises(errors.DtypeMismatch):  # a TypeError, too
        table.update_priorities(item_keys=table.sample(2).item_keys, priorities=["much", "more"])


@pytest.mark.parametrize(
    "called", [relive.Table, relive.Prioritized, relive.StepSpec.from_spaces, relive.Table.sample, relive.attach]
)
def test_signatures_stay_what_they_are(called: Callable[..., Any]) -> None:
    parameters = inspect.signature(called).parameters
    assert not [one for one in parameters.values() if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    assert called.__doc__ and (called.__name__ in repr(called) or isinstance(called, type))


def callees() -> dict[str, Callable[..., Any]]:
    """The public classes and functions, by the names that a row of the table may have."""
    methods = [getattr(relive.Table, name) for name in ("sample", "draw", "gather", "batches", "update_priorities")]
    methods += [relive.Table.delete, relive.Table.writer, relive.Batch.weights, relive.Batch.to_torch]
    public = [getattr(relive, name) for name in relive.__all__]
    plain = [one for one in public if callable(one) and not inspect.isabstract(one)]
    return {one.__name__: one for one in (*plain, *methods, relive.StepSpec.from_spaces)}


# Made by the library, not by programs, or interfaces.
MADE_ELSEWHERE = {"Batch", "Batches", "Draw", "Writer", "IndexStats", "TableStats", "TierStats"}
MADE_ELSEWHERE |= {"ReplayTable", "ReplayWriter", "DeadlineExceeded", "ReliveError"}
FOR_EVERY_BATCH = {"sample", "update_priorities", "weights"}  # asked of an object: test_wrong_arguments_of_calls


def test_every_class_and_function_of_the_public_face_names_its_arguments() -> None:
    silent = []
    for name, called in callees().items():
        if name in MADE_ELSEWHERE | FOR_EVERY_BATCH | {"list_tables"}:
            continue
        try:
            called(nobody_has_an_argument_of_this_name=1)
        except errors.UnknownArgument:
            continue
        except TypeError:
            pass
        silent.append(name)
    assert not silent, f"decorate {silent} with names_arguments"


def test_of_the_service_too() -> None:
    service = pytest.importorskip("relive.service", reason="pyarrow is not installed here (the extra `service`)")
    for called in (
        service.serve,
        service.connect,
        service.Streaming,
        service.ServerOptions,
        service.RemoteTable.writer,
    ):
        with pytest.raises(errors.UnknownArgument):
            called(nobody_has_an_argument_of_this_name=1)


def test_rows_of_arguments_are_true() -> None:
    """Each callee is there, takes none of the names that are tried, and takes the one that is told."""
    known = callees()
    for names, wrong, instead, _ in slips._ARGUMENTS:
        for callee in names.split():
            takes = set(inspect.signature(known[callee]).parameters)
            assert not takes & set(wrong.split()), (callee, wrong)
            if instead.endswith("="):
                assert instead[:-1] in takes, (callee, instead)
            named = re.findall(r"(\w+)\((.*)\)", instead)
            for inner, arguments in named:
                if inner in known and "..." in arguments and inner[0].isupper():
                    told = set(re.findall(r"(\w+)=", arguments.split("(")[0]))
                    assert told <= set(inspect.signature(known[inner]).parameters), (callee, instead)


# ---- attributes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, instead",
    [
        ("obs", "batch['observation']"),
        ("observation", "batch['observation']"),
        ("next_obs", "batch['next_observation']"),
        ("rewards", "batch['reward']"),
        ("dones", "batch['discount']"),
        ("indices", "batch.item_keys"),
        ("is_weights", "batch.weights(beta=...)"),
        ("to", "batch.to_torch(device)"),
        ("terminated", "columns=[..., 'terminated']"),
    ],
)
def test_wrong_attributes_of_a_batch(table: relive.Table, name: str, instead: str) -> None:
    batch = table.sample(4)
    with pytest.raises(errors.UnknownAttribute) as caught:
        getattr(batch, name)
    assert isinstance(caught.value, AttributeError)
    assert (caught.value.owner, caught.value.attribute, caught.value.instead) == ("Batch", name, instead)
    assert not hasattr(batch, name)


def test_a_batch_with_other_columns_names_those() -> None:
    spec = relive.StepSpec(
        {"obs": relive.ArraySpec((2,), "float32", kind="state"), "cost": relive.ArraySpec((), "float32")}
    )
    with relive.Table(spec, 10) as table, table.writer() as writer:
        writer.append(obs=[0, 0], cost=1.0, terminated=True)
        batch = table.sample(1)
        pairs = (("observation", "obs"), ("next_state", "next_obs"), ("cost", "cost"), ("next_obs", "next_obs"))
        for wrong, right in pairs:
            with pytest.raises(errors.UnknownAttribute) as caught:
                getattr(batch, wrong)
            assert caught.value.instead == f"batch[{right!r}]"


@pytest.mark.parametrize(
    "wrong, instead",
    [
        ("obs", "observation"),
        ("done", "discount"),
        ("weights", "batch.weights(beta=...)"),
        ("indexes", "batch.item_keys"),
        (("next", "observation"), "next_observation"),
        ("next_action", "kind='state' in the ArraySpec of 'action'"),
        (0, "batch[column][rows], or batch.rows(rows) for all columns"),
        (slice(0, 2), "batch[column][rows], or batch.rows(rows) for all columns"),
        (np.arange(2), "batch[column][rows], or batch.rows(rows) for all columns"),
    ],
)
def test_wrong_columns_of_a_batch(table: relive.Table, wrong: Any, instead: str) -> None:
    with pytest.raises(errors.UnknownColumn) as caught:
        table.sample(4)[wrong]
    assert caught.value.instead == instead and instead in str(caught.value)


def test_a_batch_still_pickles_and_copies(table: relive.Table) -> None:
    batch = table.sample(4)
    for again in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        assert np.array_equal(again["reward"], batch["reward"]) and np.array_equal(again.item_keys, batch.item_keys)


@pytest.mark.parametrize(
    "name, instead",
    [
        ("add", "table.writer().append(...)"),
        ("update_priority", "table.update_priorities(batch.item_keys, priorities)"),
        ("size", "len(table)"),
        ("reset", "table.clear()"),
    ],
)
def test_wrong_attributes_of_a_table(table: relive.Table, name: str, instead: str) -> None:
    with pytest.raises(errors.UnknownAttribute) as caught:
        getattr(table, name)
    assert caught.value.instead == instead
    with pytest.raises(AttributeError) as private:
        _ = table._nothing  # type: ignore[attr-defined]
    assert type(private.value) is AttributeError


def test_wrong_attributes_of_a_writer(table: relive.Table) -> None:
    with table.writer() as writer:
        for wrong in ("add", "insert", "push"):
            with pytest.raises(errors.UnknownAttribute) as caught:
                getattr(writer, wrong)
            assert caught.value.instead == "writer.append(...)"
            assert not hasattr(writer, wrong) and wrong not in dir(writer)
        assert "append" in dir(writer)


def test_wrong_names_of_the_library() -> None:
    with pytest.raises(errors.UnknownAttribute) as caught:
        _ = relive.ReplayBuffer  # type: ignore[attr-defined]
    assert caught.value.instead == "relive.Table(spec, capacity)"
    with pytest.raises(errors.UnknownAttribute) as near:
        _ = relive.Transition  # type: ignore[attr-defined]
    assert near.value.instead == "relive.Transitions"


def test_rows_of_attributes_are_true(table: relive.Table) -> None:
    """The suggested attribute exists. The attribute of the other library does not."""
    batch, draw = table.sample(2), table.draw(2)
    with table.writer() as writer:
        there = {"Table": table, "Batch": batch, "Draw": draw, "Writer": writer, "relive": relive}
        lower = {name.lower(): one for name, one in there.items()}
        for owner, _, instead, _ in slips._ATTRIBUTES:
            for name, attribute in re.findall(r"\b(table|batch|draw|writer|relive)\.(\w+)", instead):
                assert hasattr(lower[name], attribute) or attribute in ("service", "gpu", "adapters"), instead
            assert owner in there
        for (owner, wrong), _ in slips.attribute_of().items():
            usually_there = {"item_keys", "num_items", "present", "probabilities", "num_live_items"}
            if owner == "relive" and wrong in ("service", "gpu", "adapters"):
                continue  # there if a test imported it
            assert wrong in usually_there or wrong not in dir(there[owner]), (owner, wrong)


# ---- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, instead",
    [
        ({"obs": 0}, "observation"),
        ({"next_obs": 0}, "next_observation"),
        ({"done": True}, "terminated"),
        ({"dones": True}, "terminated"),
        ({"rew": 0.0}, "reward"),
        ({"acts": 0}, "action"),
        ({"info": {}}, "a column of the StepSpec"),
        ({"timeout": 1.0}, "timeout_s="),
        ({"next_action": 0}, "kind='state' in the ArraySpec of 'action'"),
        ({"priorities": 1.0}, "priority="),
    ],
)
def test_wrong_columns_of_a_writer(table: relive.Table, wrong: dict[str, Any], instead: str) -> None:
    with table.writer() as writer:
        with pytest.raises(errors.UnknownColumn) as caught:
            writer.append(**STEP, **wrong)
        with pytest.raises(errors.UnknownColumn) as block:
            writer.extend(**{name: np.asarray([value]) for name, value in STEP.items()}, **wrong)
    assert caught.value.instead == block.value.instead == instead
    assert len(table) == 10


def test_the_end_of_an_episode(table: relive.Table) -> None:
    with table.writer() as writer, pytest.raises(errors.UnknownColumn) as caught:
        writer.end_episode(done=True)
    assert caught.value.instead == "terminated"


def test_columns_without_their_names(table: relive.Table) -> None:
    with table.writer() as writer:
        for call in (writer.append, writer.extend):
            for values in ((STEP["observation"], 1, 0.0), (STEP,)):
                with pytest.raises(errors.UnnamedColumns) as caught:
                    call(*values)
                assert isinstance(caught.value, TypeError) and caught.value.num_values == len(values)
                assert f"{call.__name__}(observation=..., action=..., reward=...)" in str(caught.value)
    assert len(table) == 10


def test_a_left_out_column_is_not_sought_among_the_next_ones() -> None:
    error = errors.MissingColumn("observation", ["next_observation", "action"])
    assert "did you mean" not in str(error)
    assert "did you mean 'obs'?" in str(errors.MissingColumn("observation", ["obs", "action"]))
