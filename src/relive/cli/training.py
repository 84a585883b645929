"""`relive train AGENT`: one command for each agent of the registry, all with the same options.

An option of the run is stored under its path, such as `environment.seed`: the same name that --set takes.
Neither torch nor an agent's file is imported until a command runs: --help reads the options of --set from options.json,
which scripts/write_options.py writes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relive.agents.registry import AGENTS, Entry
from relive.cli.commands import (
    EXIT_STOPPED,
    Commands,
    add_command,
    add_commands,
    at_least,
    extra_named,
    named_path,
    new_parser_of,
    say,
)
from relive.errors import InvalidConfig

if TYPE_CHECKING:
    from relive.train.config import TrainConfig

__all__ = ["add", "add_settings"]

_OPTIONS = Path(__file__).with_name("options.json")
_GROUP = """Train an agent through a shared table.

Actors in processes of their own write into the table, and one learner draws from it.
"""
_ABOUT = """{summary}

Actors write into a shared table and read the learner's parameters from shared memory. Evaluations keep the best policy.
At the end, this policy plays 20 episodes on seeds that are used for nothing else. Ctrl-C stops the run cleanly, and
--resume continues it.
"""


class _AgentParser(argparse.ArgumentParser):
    """The parser of an agent's command. Its help ends with every option that --set takes."""

    def format_help(self) -> str:
        """See ArgumentParser."""
        return f"{super().format_help()}\n{_options_of(self.get_default('agent'))}"


def add(commands: Commands) -> None:
    """Declares `train` and a command for each agent."""
    agents = add_commands(new_parser_of(commands, "train", _GROUP, ("train",)), _AgentParser)
    for name, entry in AGENTS.items():
        parser = add_command(agents, name, _train, text=_ABOUT.format(summary=entry.summary))
        parser.set_defaults(agent=name)
        _add_options(parser, name, entry)
        add_settings(parser)


def _add_options(parser: argparse.ArgumentParser, agent: str, entry: Entry) -> None:
    add = parser.add_argument
    add("--env", dest="environment.env_id", metavar="ID",
        help=f"Gymnasium id, such as CartPole-v1 (default: {entry.environment}).")  # fmt: skip
    add("--actors", dest="acting.num_actors", metavar="N", type=at_least(0),
        help="Number of actor processes. 0 needs --serve (default: 2).")  # fmt: skip
    add("--cluster", dest="cluster.kind", metavar="KIND", choices=("ray",),
        help="ray: the actors run on the nodes of a Ray cluster. Needs the extra ray.")  # fmt: skip
    add("--actors-per-node", dest="cluster.actors_per_node", metavar="N", type=at_least(1),
        help="Most actors on a node of the cluster (default: as many as have room).")  # fmt: skip
    add("--shards", dest="cluster.shards", metavar="N", type=at_least(1),
        help="Divide the table into N shards on nodes of the cluster. An actor writes to the shard of its node"
        " (default: one table, on this machine).")  # fmt: skip
    add("--serve", dest="serving.address", metavar="ADDRESS",
        help="grpc://HOST:PORT where actors of other machines connect (`relive act`).")  # fmt: skip
    add("--tokens", dest="serving.tokens", metavar="FILE", help="File of the actors' tokens (`relive token new`).")
    add("--tls-cert", dest="serving.tls_cert", metavar="FILE", help="Certificate for --serve grpc+tls://HOST:PORT.")
    add("--tls-key", dest="serving.tls_key", metavar="FILE", help="Key of the certificate.")
    add("--client-ca", dest="serving.client_ca", metavar="FILE", help="Authorities of the actors' certificates.")
    add("--insecure", dest="serving.insecure", action="store_true", default=None,
        help="Let every machine that reaches the address act for the run.")  # fmt: skip
    add("--seed", dest="environment.seed", metavar="N", type=at_least(0),
        help="Seed of all random numbers (default: 0).")  # fmt: skip
    add("--run-dir", metavar="DIR", type=named_path,
        help="Directory for the run's files. An earlier run there is moved aside"
        f" (default: runs/{agent}-ENV-sSEED).")  # fmt: skip
    add("--resume", metavar="DIR", type=named_path, help="Continue the run in this directory.")
    add("--max-steps", dest="limits.max_steps", metavar="N", type=at_least(1),
        help="End the run after this number of environment steps.")  # fmt: skip
    add("--max-minutes", dest="limits.max_minutes", metavar="MINUTES", type=float,
        help="End the run after this number of minutes (wall clock).")  # fmt: skip
    add("--stop-return", dest="evaluation.stop_return", metavar="RETURN", type=float,
        help="End the run when evaluations reach this return (default: the preset's).")  # fmt: skip
    add("--device", metavar="DEVICE", help="Device of the learner: cpu, cuda or auto (default: auto).")
    add("--capacity", dest="replay.capacity", metavar="N", type=at_least(1),
        help="Capacity of the table, in steps (default: the preset's).")  # fmt: skip
    add("--profile", action="store_true", default=None,
        help="Measure which part uses the time. `relive profile RUN_DIR` shows it.")  # fmt: skip
    add("--auto", action="store_true",
        help="First choose processes and environments by measuring (see relive tune).")  # fmt: skip
    add("--deterministic", action="store_true", default=None,
        help="Use the hand-written update, so that no result depends on measured times.")  # fmt: skip


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --set, which `tune` has too."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=named_path,
        help="TOML file of options, or a run's config.json. --set takes precedence.",
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="Set one option (train AGENT --help lists all). May be repeated.",
    )


def _train(
    agent: str,
    run_dir: Path | None,
    resume: Path | None,
    auto: bool,
    config: Path | None,
    assignments: list[str],
    **options: object,
) -> int:
    """Trains an agent. `options`: {path: value} of the options that have a flag of their own; None: not given."""
    with extra_named("train", "train"):
        from relive.train.config import load_config, preset
        from relive.train.settings import parse_assignments

        settings = {path: value for path, value in options.items() if value is not None}
        settings.update(parse_assignments(assignments))
        if resume is not None and run_dir is not None:
            raise InvalidConfig("--run-dir", "none beside --resume, which names the directory", str(run_dir))
        if resume is not None:
            made = _resumed(agent, resume, config, settings)
        elif config is not None:
            made = load_config(config, settings, agent=agent)
        else:
            made = preset(agent, AGENTS[agent].environment, settings)
    if auto:
        _require_free(settings, resume)
    return run_training(made, run_dir, resume, auto)


_CHOSEN = ("topology", "acting.num_actors", "acting.inline", "environment.num_envs_per_actor")  # by the tuner


def _require_free(settings: Mapping[str, object], resume: Path | None) -> None:
    """Raises InvalidConfig if the command sets an option that --auto chooses, or resumes a run."""
    if resume is not None:
        raise InvalidConfig("--auto", "a new run", f"--resume {resume}")
    for path in _CHOSEN:
        if path in settings:
            raise InvalidConfig("--auto", f"no {path} beside it, which it chooses", f"{path}={settings[path]}")


def _resumed(agent: str, run_dir: Path, file: Path | None, settings: Mapping[str, object]) -> TrainConfig:
    """The configuration of the run in a directory, with the options of the file and then the settings."""
    from relive.train.config import file_settings
    from relive.train.resuming import options_and_own
    from relive.train.settings import changed

    config, own = options_and_own(run_dir)
    if file is not None:
        given = file_settings(file, agent)
        settings = {path: value for path, value in {**given, **settings}.items() if path != "agent.name"}
    if config.agent.name != agent:
        right = f"one of {agent}; `relive train {config.agent.name} --resume {run_dir}` goes on with this one"
        raise InvalidConfig(f"run in {run_dir}", right, config.agent.name)
    made = changed(config, settings)
    return made if made.topology.num_hosts == 1 else changed(config, {**own, **settings})


def run_training(config: TrainConfig, run_dir: Path | None, resume: Path | None, auto: bool) -> int:
    """Trains, after tuning if `auto`. Returns the exit status."""
    with extra_named("train", "train"):
        from rich.console import Console

        from relive.train.run import train
        from relive.train.setup import check_has_server
        from relive.train.signals import raising_signals
        from relive.train.tuning.tuner import AUTO_BUDGET_S, Keeping, tune
    console = Console()
    callbacks = []
    if auto:
        check_has_server(config)  # train() does so, too, but after the tuning
        with raising_signals():
            tuning = tune(config, budget_s=AUTO_BUDGET_S, say=say)
            say(f"chosen: {tuning}")
            config, callbacks = tuning.config, [Keeping(tuning)]
    if resume is not None:
        result = train(config, resume, resume=True, console=console)
    else:
        result = train(config, run_dir, console=console, moving_aside=True, callbacks=callbacks)
    return EXIT_STOPPED if result.stopped else 0


def _options_of(agent: str) -> str:
    """The options of --set as text, with their defaults for the agent's own environment and their explanations."""
    rows: list[list[str]] = json.loads(_OPTIONS.read_text())[agent]
    width = min(shutil.get_terminal_size().columns - 2, 100)
    lines = [f"options of --set NAME=VALUE, with the defaults for {AGENTS[agent].environment}:"]
    for path, kind, default, explanation in rows:
        lines.append(f"  {path}={default}  ({kind})")
        lines += textwrap.wrap(explanation, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A value of an option as the text that --set takes."""
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return "none" if value is None else str(value)
