"""Finds the options of a run that goes on, and refuses a session that cannot go on with its run.

Such a session has an environment of other spaces, or a table of other items.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import gymnasium

from relive import LocalMemory
from relive import saved as describe_save
from relive.agents.agent import Agent, Spaces
from relive.errors import InvalidConfig, ReliveError
from relive.train.acting.environments import describe
from relive.train.config import TrainConfig
from relive.train.learners.meeting import MAY_DIFFER, number_told
from relive.train.run_directory import CHECKPOINT_FILE, CONFIG_FILE, SAVE_FOLDER, folder_of_host
from relive.train.settings import changed, flat, options
from relive.train.setup import chosen_device, limiter_of, table_config
from relive.train.watching.checkpoint import Found


def options_of_run(run_dir: Path) -> TrainConfig:
    """Returns the options of a run on this host: see `options_and_own`."""
    config, own = options_and_own(run_dir)
    return config if config.topology.num_hosts == 1 else changed(config, own)


def options_and_own(run_dir: Path) -> tuple[TrainConfig, dict[str, object]]:
    """Returns the options of a run, and the settings of this host that replace some of them.

    A host that is not the first one has a directory and a file of options of its own. The file of the first host counts
    if that host saves there, or if its file is newer: then the host keeps those of its own options that may differ
    between hosts, and its own device if that has the kind of the first host's. Else the file of the first host is an
    old copy, and the host keeps all of its own options.

    Args:
        run_dir: The directory of the run; of several hosts, that of the first one.

    Returns:
        The options, and {path: value}.

    Raises:
        InvalidConfig: A file cannot be read, or no run wrote it.
    """
    first, number = run_dir / CONFIG_FILE, number_told()
    own = folder_of_host(Path(os.path.abspath(run_dir)), number) / CONFIG_FILE
    if not number or not own.exists():
        if number and not first.exists():
            raise InvalidConfig(f"run configuration of host {number}", f"{own}, or {first}", "neither file")
        return TrainConfig.load(first), {}
    mine = TrainConfig.load(own)
    if not first.exists():
        return mine, {}
    saves_here = any((run_dir / name).exists() for name in (SAVE_FOLDER, CHECKPOINT_FILE))
    if saves_here or first.stat().st_mtime_ns > own.stat().st_mtime_ns:
        own_values = flat(mine.to_tree()).items()
        kept = {path: value for path, value in own_values if any(fnmatchcase(path, one) for one in MAY_DIFFER)}
        theirs = TrainConfig.load(first)
        if _kind_of(mine.device) == _kind_of(theirs.device):
            kept["device"] = mine.device
        return theirs, kept
    return mine, {}


def _kind_of(device: str) -> str:
    """Returns the kind of a device, on which all hosts agree. This machine may lack the device of another host."""
    if device == "auto":
        device = chosen_device(device)
    return device.partition(":")[0]


def check_environment(spaces: Spaces, before: str) -> None:
    """Raises InvalidConfig if a run cannot go on in an environment: its spaces are others than those so far.

    Args:
        spaces: The spaces of the environment.
        before: Id of the environment so far.

    Cost:
        One copy of the environment so far, which is made and closed again.
    """
    what, got = "environment.env_id of a resumed run", f"{spaces.env_id}, with {_words(spaces)}"
    try:
        known = describe(before)
    except (ReliveError, ImportError, gymnasium.error.Error) as problem:
        expected = f"{before!r} as before: its spaces are not known, because it cannot be made here ({problem})"
        raise InvalidConfig(what, expected, got) from problem
    if (known.observation, known.action, known.stack) != (spaces.observation, spaces.action, spaces.stack):
        expected = f"{before!r} as before, or an environment that has its spaces, {_words(known)}"
        raise InvalidConfig(what, expected, got)


def _words(spaces: Spaces) -> str:
    return " ".join(f"observations {spaces.observation} and actions {spaces.action}".split())  # on one line


def check_saved_table(config: TrainConfig, agent: Agent, saved: Found) -> None:
    """Raises InvalidConfig if the table of a save is not one that this run would make.

    Its capacity, its lanes and its limiter may be others.
    """
    wanted, found = table_config(config, agent, LocalMemory()), describe_save(saved.path, saved.number).config
    limiter = limiter_of(config)
    indexes = [{name: replace(one, limiter=limiter) for name, one in each.index.items()} for each in (wanted, found)]
    columns = [dict(each.spec.columns) if wanted.spec != found.spec else {} for each in (wanted, found)]
    for what, (now, before) in (("columns", columns), ("items", indexes)):
        differing = list(_differences(what, now, before))
        if differing:
            labels = [_label(name, values, config) for name, *values in differing]
            expected, got = (
                ", ".join(f"{label} = {one[side]!r}" for label, one in zip(labels, differing, strict=True))
                for side in (1, 2)
            )
            way = f"{expected}; or checkpoint.table=never, which goes on with the learner and a new table"
            raise InvalidConfig(f"{what} of the table in {saved.path}", way, got)


def _label(name: str, values: Sequence[object], config: TrainConfig) -> str:
    """Returns the path of the option that a field of an index follows from; the name of the field if none has it."""
    known = {option.path for option in options(config.agent)}
    if name in known:
        return f"agent.{name}"
    fields = [field.name for value in values if dataclasses.is_dataclass(value) for field in dataclasses.fields(value)]
    paths = [f"agent.{path}" for path in dict.fromkeys(fields) if path in known]
    return f"{name} ({', '.join(paths)})" if paths else name


def _differences(name: str, now: Any, before: Any) -> Iterator[tuple[str, object, object]]:
    """Yields (name, value now, value before) of the innermost fields in which two values differ."""
    if now == before:
        return
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        for key in dict.fromkeys((*now, *before)):
            yield from _differences(str(key), now.get(key, "none"), before.get(key, "none"))
    elif dataclasses.is_dataclass(now) and type(now) is type(before):
        for field in dataclasses.fields(now):
            yield from _differences(field.name, getattr(now, field.name), getattr(before, field.name))
    else:
        yield name, now, before
