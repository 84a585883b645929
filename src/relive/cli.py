"""The command line: `relive train dqn`, `relive serve`, `relive ls`, `relive rm`.

Commands load what they need when they run: `relive ls` does not wait for torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table as Grid
except ImportError as _problem:  # the library itself needs numpy only
    _missing: str | None = _problem.name
else:
    _missing = None

from relive.errors import ReliveError
from relive.open import list_tables, remove

if TYPE_CHECKING:
    from relive.train.config import TrainConfig

_EXTRA = "pip install 'relive[train]'"
_EXIT_STOPPED = 130


def main() -> None:
    """The entry point of the `relive` command."""
    if _missing is not None:
        sys.exit(f"relive: the command line needs {_missing}: {_EXTRA}")
    try:
        _application()()
    except (ReliveError, OSError) as problem:  # an OSError names its file
        sys.exit(f"relive: {problem}")


def _application() -> typer.Typer:
    options: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
    app = typer.Typer(help="Experience replay that many processes share.", **options)
    training = typer.Typer(help="Train an agent through a shared table.", **options)
    app.add_typer(training, name="train")
    training.callback()(_training_group)
    training.command("dqn")(_train_dqn)
    app.command("serve")(_serve)
    app.command("ls")(_list)
    app.command("rm")(_remove)
    return app


def _training_group() -> None:
    """Train an agent through a shared table: actors in processes of their own, one learner."""


def _train_dqn(
    env: Annotated[str, typer.Option(help="Gymnasium id: CartPole-v1, ALE/Pong-v5, ...")] = "CartPole-v1",
    actors: Annotated[int | None, typer.Option(min=1, help="Actor processes.", show_default="2")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.", show_default="0")] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where the run keeps its files; what is there already is moved aside.",
            show_default="runs/dqn-ENV-sSEED",
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this directory.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="End after so many environment steps.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="End after so much wall-clock time.")] = None,
    stop_return: Annotated[
        float | None,
        typer.Option(help="End when greedy evaluations reach this return.", show_default="499.5 on CartPole-v1"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or auto.", show_default="auto")] = None,
    capacity: Annotated[
        int | None, typer.Option(min=1, help="Steps that the table holds.", show_default="100000; Atari: 200000")
    ] = None,
) -> None:
    """Double, dueling, n-step, prioritized DQN.

    Actors write into a shared table and read the learner's parameters from shared memory.

    Evaluations keep the best policy; in the end it plays 20 episodes on seeds used nowhere else.

    Ctrl-C stops cleanly, --resume goes on.
    """
    try:
        from relive.train.config import preset
        from relive.train.run import train
    except ImportError as problem:
        sys.exit(f"relive: training needs {problem.name}: {_EXTRA}")
    changes: dict[str, dict[str, Any]] = {
        "environment": {"seed": seed},
        "acting": {"num_actors": actors},
        "replay": {"capacity": capacity},
        "limits": {"max_steps": max_steps, "max_minutes": max_minutes},
        "evaluation": {"stop_return": stop_return},
    }
    console = Console()
    if resume is not None:
        from relive.train.config import TrainConfig
        from relive.train.run import CONFIG_FILE

        config = _changed(TrainConfig.load(resume / CONFIG_FILE), changes, device)
        result = train(config, resume, resume=True, console=console)
    else:
        config = _changed(preset(env), changes, device)
        folder = run_dir or Path("runs") / f"dqn-{env.replace('/', '-')}-s{config.environment.seed}"
        _move_aside(folder, console)
        result = train(config, folder, console=console)
    if result.stopped:
        raise typer.Exit(_EXIT_STOPPED)


def _changed(config: TrainConfig, changes: dict[str, dict[str, Any]], device: str | None) -> TrainConfig:
    """The configuration with the options that were given."""
    parts: dict[str, Any] = {}
    for part, options in changes.items():
        given = {name: value for name, value in options.items() if value is not None}
        if given:
            parts[part] = dataclasses.replace(getattr(config, part), **given)
    if device is not None:
        parts["device"] = device
    return dataclasses.replace(config, **parts)


def _move_aside(folder: Path, console: Console) -> None:
    """A directory that holds something is renamed: a new run starts empty and loses nothing."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    for number in itertools.count(1):
        aside = folder.with_name(f"{folder.name}.{number}")
        if not aside.exists():
            folder.rename(aside)
            console.print(f"{folder} is now {aside}", highlight=False, soft_wrap=True)
            return


def _serve(
    config: Annotated[
        Path, typer.Argument(metavar="TABLE.TOML", help="The tables to serve; docs/service.md shows one.")
    ],
    address: Annotated[
        str | None, typer.Option(help="grpc://HOST:PORT instead of the file's; port 0: a free one.")
    ] = None,
) -> None:
    """Serve tables to other machines until Ctrl-C or SIGTERM.

    Tables that lie in shared memory already, as after a kill, are served on with what they hold.
    """
    try:
        from relive.service import serve
        from relive.service.config import load_config, open_table
    except ImportError as problem:
        sys.exit(f"relive: {problem}")
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    loaded = load_config(config)
    console = Console()
    with contextlib.ExitStack() as stack:
        tables = {name: stack.enter_context(open_table(one)) for name, one in loaded.tables.items()}
        server = stack.enter_context(serve(tables, address or loaded.address))
        for name, table in tables.items():
            console.print(f"{server.address}/{name}: {len(table):,} of {table.capacity:,} steps", highlight=False)
        stopped.wait()


def _list() -> None:
    """List the shared tables of this machine."""
    grid = Grid()
    for name, justify in (
        ("name", "left"),
        ("steps", "right"),
        ("capacity", "right"),
        ("memory", "right"),
        ("attached", "right"),
        ("state", "left"),
    ):
        grid.add_column(name, justify=justify)  # type: ignore[arg-type]
    rows = list_tables()
    for row in rows:
        state = row.problem or ("in use" if row.alive else "left behind: relive rm removes it")
        grid.add_row(
            row.name, f"{row.num_steps:,}", f"{row.capacity:,}", _size(row.num_bytes), str(row.num_attached), state
        )
    console = Console()
    if rows:
        console.print(grid)
    else:
        console.print("no shared tables on this machine")


def _remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names that `relive ls` shows.")],
    force: Annotated[bool, typer.Option(help="Also where somebody is attached, or the file is no table.")] = False,
) -> None:
    """Remove shared tables from this machine, such as those left behind by a killed process."""
    for name in names:
        remove(name, force=force)
        Console().print(f"removed {name}", highlight=False)


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


if __name__ == "__main__":
    main()
