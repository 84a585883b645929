"""`relive train AGENT`, one command for each agent of the registry, all of the same form; and what is done with runs.

Neither torch nor an agent's file is imported until a command runs, or its `--help` lists the options. Annotations are
values here, not text: typer reads them where the names of the function around them are not known.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.table import Table as Grid

from relive.agents.registry import AGENTS, entry_of
from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.train.config import CONFIG_FILE, TrainConfig, file_settings, load_config, preset
from relive.train.settings import changed, options, parse_assignments

_EXIT_STOPPED = 130
_ABOUT = """

Actors write into a shared table and read the learner's parameters from shared memory.

Evaluations keep the best policy; in the end it plays 20 episodes on seeds used nowhere else.

Ctrl-C stops cleanly, --resume goes on.
"""


_ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file of options, or a run's config.json; --set wins."),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set an option (train AGENT --help lists them); may come often."),
]


def add_commands(app: typer.Typer) -> None:
    """A command for each agent."""
    for name, entry in AGENTS.items():
        command = app.command(name, cls=_listing_options(name, entry.environment), help=entry.summary + _ABOUT)
        command(_command(name, entry.environment))


def _command(agent: str, default_env: str) -> Callable[..., None]:
    def train(
        env: Annotated[
            str | None, typer.Option(help="Gymnasium id: CartPole-v1, Pendulum-v1, ...", show_default=default_env)
        ] = None,
        actors: Annotated[
            int | None, typer.Option(min=0, help="Actor processes; 0 with --serve alone.", show_default="2")
        ] = None,
        serve: Annotated[
            str | None,
            typer.Option(metavar="ADDRESS", help="grpc://HOST:PORT for actors of other machines: `relive act`."),
        ] = None,
        seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.", show_default="0")] = None,
        run_dir: Annotated[
            Path | None,
            typer.Option(
                help="Where the run keeps its files; what is there already is moved aside.",
                show_default=f"runs/{agent}-ENV-sSEED",
            ),
        ] = None,
        resume: Annotated[Path | None, typer.Option(help="Go on with the run in this directory.")] = None,
        max_steps: Annotated[int | None, typer.Option(min=1, help="End after so many environment steps.")] = None,
        max_minutes: Annotated[float | None, typer.Option(help="End after so much wall-clock time.")] = None,
        stop_return: Annotated[
            float | None, typer.Option(help="End when greedy evaluations reach this return.", show_default="the preset")
        ] = None,
        device: Annotated[str | None, typer.Option(help="cpu, cuda, or auto.", show_default="auto")] = None,
        capacity: Annotated[
            int | None, typer.Option(min=1, help="Steps that the table holds.", show_default="the preset")
        ] = None,
        profile: Annotated[
            bool, typer.Option("--profile", help="Count what the time goes into; `relive profile RUN_DIR` shows it.")
        ] = False,
        auto: Annotated[
            bool, typer.Option("--auto", help="Choose processes and environments first, by measuring; see relive tune.")
        ] = False,
        deterministic: Annotated[
            bool, typer.Option("--deterministic", help="No result depends on measured times: updates by hand.")
        ] = False,
        config: _ConfigFile = None,
        set_: _Settings = None,
    ) -> None:
        given = {
            "environment.env_id": env,
            "acting.num_actors": actors,
            "serving.address": serve,
            "environment.seed": seed,
            "limits.max_steps": max_steps,
            "limits.max_minutes": max_minutes,
            "evaluation.stop_return": stop_return,
            "device": device,
            "replay.capacity": capacity,
            "profile": profile or None,
            "deterministic": deterministic or None,
        }
        settings: dict[str, object] = {path: value for path, value in given.items() if value is not None}
        settings.update(parse_assignments(set_ or []))
        with _extra_named("train"):
            if resume is not None:
                made = _resumed(agent, resume, config, settings)
            elif config is not None:
                made = load_config(config, settings, agent=agent)
            else:
                made = preset(agent, default_env, settings)
        if auto:
            _require_free(settings, resume)
        _train(made, run_dir, resume, auto)

    return train


_CHOSEN = ("topology", "acting.num_actors", "acting.inline", "environment.num_envs_per_actor")  # by the tuner


def _require_free(settings: dict[str, object], resume: Path | None) -> None:
    """InvalidConfig where the command asks for what --auto chooses, or for a run that has begun."""
    if resume is not None:
        raise InvalidConfig("--auto", "a new run", f"--resume {resume}")
    for path in _CHOSEN:
        if path in settings:
            raise InvalidConfig("--auto", f"no {path} beside it, which it chooses", f"{path}={settings[path]}")


def _train(config: TrainConfig, run_dir: Path | None, resume: Path | None, auto: bool = False) -> None:
    with _extra_named("train"):
        from relive.train.run import train
        from relive.train.tuning.tuner import AUTO_BUDGET_S, Keeping, tune
    console = Console()
    callbacks = []
    if auto:
        tuning = tune(config, budget_s=AUTO_BUDGET_S, say=_said_by(console))
        console.print(f"chosen: {tuning}", highlight=False, soft_wrap=True)
        config, callbacks = tuning.config, [Keeping(tuning)]
    if resume is not None:
        result = train(config, resume, resume=True, console=console)
    else:
        result = train(config, run_dir, console=console, moving_aside=True, callbacks=callbacks)
    if result.stopped:
        raise typer.Exit(_EXIT_STOPPED)


def _resumed(agent: str, run_dir: Path, file: Path | None, settings: dict[str, object]) -> TrainConfig:
    config = TrainConfig.load(run_dir / CONFIG_FILE)
    if file is not None:
        given = file_settings(file, agent)
        settings = {path: value for path, value in {**given, **settings}.items() if path != "agent.name"}
    if config.agent.name != agent:
        right = f"one of {agent}; `relive train {config.agent.name} --resume {run_dir}` goes on with this one"
        raise InvalidConfig(f"run in {run_dir}", right, config.agent.name)
    return changed(config, settings)


def add_acting(app: typer.Typer) -> None:
    """`act`, for a run of another machine."""
    app.command("act")(_act)


def _act(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="grpc://HOST:PORT/NAME, as the run says it.")],
    env: Annotated[
        str | None, typer.Option(help="Another environment, of the same spaces.", show_default="the run's")
    ] = None,
    envs: Annotated[
        int | None, typer.Option(min=1, help="Environments stepped together.", show_default="as the run's own actors")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of environments and exploration.", show_default="a new one")
    ] = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds without the run, after which it ends.")] = 300.0,
) -> None:
    """Act for a run of another machine, which `relive train --serve` serves, until it ends; Ctrl-C stops cleanly."""
    with _extra_named("act"):
        from relive.train.acting.remote_actor import ActOptions, act
    console = Console()
    acted = act(address, ActOptions(env, envs, seed, patience), say=lambda text: console.print(
        text, highlight=False, soft_wrap=True
    ))  # fmt: skip
    console.print(str(acted), highlight=False, soft_wrap=True)
    if not acted.finished:
        raise typer.Exit(_EXIT_STOPPED)


def add_watching(app: typer.Typer) -> None:
    """`tune`, before a run of any agent; `evaluate`, `play` and `profile`, after it."""
    app.command("tune")(_tune)
    app.command("evaluate")(_evaluate)
    app.command("play")(_play)
    app.command("profile")(_profile)


def _tune(
    agent: Annotated[str, typer.Option(help=f"One of {', '.join(AGENTS)}.", show_default=False)],
    env: Annotated[str | None, typer.Option(help="Gymnasium id.", show_default="the agent's own")] = None,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="About how long it may take.")] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the settings go, for train --config.", show_default="runs/tuned-AGENT-ENV.toml"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all that was found, too.")] = None,
    config: _ConfigFile = None,
    set_: _Settings = None,
) -> None:
    """Choose actors, learners and environments an actor for a run: measure its parts, predict, try the best, choose."""
    settings: dict[str, object] = {} if env is None else {"environment.env_id": env}
    settings.update(parse_assignments(set_ or []))
    with _extra_named("tune"):
        from relive.train.tuning.tables import show_tuning
        from relive.train.tuning.tuner import tune

        default = entry_of(agent).environment
        asked = preset(agent, default, settings) if config is None else load_config(config, settings, agent=agent)
    console = Console()
    tuning = tune(asked, budget_s=budget, say=_said_by(console))
    env_name = asked.environment.env_id.replace("/", "-")
    target = out or Path("runs") / f"tuned-{agent}-{env_name}.toml"
    tuning.write_settings(target)
    if json is not None:
        tuning.save(json)
    show_tuning(tuning, console)
    console.print(f"relive train {agent} --config {target}", highlight=False, soft_wrap=True)


def _said_by(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, highlight=False, soft_wrap=True)


_RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run, ended or not.")]
_Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of the episodes.", show_default="the run's: those of its result.json")
]


def _evaluate(
    run_dir: _RunDir,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play, greedily.")] = 20,
    seed: _Seed = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="Cut what is not played after so much time.", show_default="none")
    ] = None,
) -> None:
    """Play the kept policy of a run: JSON to the standard output, and a line for people beside it."""
    with _extra_named("evaluate"):
        from relive.train.evaluating.playing import evaluate_run
    evaluation = evaluate_run(run_dir, num_episodes=episodes, seed=seed, max_minutes=max_minutes)
    typer.echo(evaluation.to_json())
    typer.echo(str(evaluation), err=True)


def _play(
    run_dir: _RunDir,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to show.")] = 1,
    seed: _Seed = None,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a video, FILE.mp4, in place of opening a window.")
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="End after so many steps of all episodes.")] = 10_000,
) -> None:
    """Show the kept policy of a run, in a window or as a video."""
    with _extra_named("play"):
        from relive.train.evaluating.playing import play_run
    for one in play_run(run_dir, num_episodes=episodes, seed=seed, video=video, max_steps=max_steps):
        cut = "" if one.ended else f", cut by --max-steps {max_steps}"
        typer.echo(f"episode {one.number}: return {one.episode_return:.1f}, {one.num_steps} steps{cut}")
    if video is not None:
        typer.echo(str(video))


def _profile(run_dir: _RunDir) -> None:
    """Show what a run with --profile spent its time on, and whether storage held it up; draws RUN_DIR/profile.svg."""
    with _extra_named("profile"):
        from relive.train.watching.profile import show_profile
    show_profile(run_dir, Console())


@contextmanager
def _extra_named(command: str) -> Iterator[None]:
    try:
        yield
    except ImportError as problem:
        raise MissingPackage(f"relive {command}", str(problem.name), install_command("train")) from None


def _listing_options(agent: str, env: str) -> type[typer.core.TyperCommand]:
    """A command whose --help ends with every option that --set takes, with its type and its default."""

    class Listing(typer.core.TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            super().format_help(ctx, formatter)
            try:
                config = preset(agent, env)
            except ImportError as problem:
                Console().print(
                    f"The options of --set are listed where {problem.name} is installed: {install_command('train')}"
                )
                return
            Console().print(options_grid(config))

    return Listing


def options_grid(config: TrainConfig) -> Grid:
    """Every option of a run: its path, its type, its value."""
    grid = Grid(title=f"--set NAME=VALUE, with the defaults on {config.environment.env_id}", title_justify="left")
    for heading in ("name", "type", "default"):
        grid.add_column(heading, overflow="fold")
    for option in options(config):
        grid.add_row(option.path, option.type_name, _shown(option.value))
    return grid


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return "none" if value is None else str(value)
