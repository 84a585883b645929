"""The settings of the examples: values that cannot be are refused, and a continued run keeps those of its save."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import relive
from examples.cases import CASES

for _module in ("gymnasium", "torch", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")

MINE = [name for name, case in CASES.items() if all(importlib.util.find_spec(one) for one in case.needs)]
NUMBERS = (int, float)


@pytest.fixture
def frame() -> ModuleType:
    return importlib.import_module("frame")


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def numbers_of(settings: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(settings) if type(field.default) in NUMBERS]


@pytest.mark.parametrize("name", MINE)
def test_a_number_that_is_too_small_or_none_is_refused(
    name: str, frame: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = importlib.import_module(name).Settings
    for field in numbers_of(settings):
        usual = 1 if type(field.default) is int and field.name not in ("steps", "seed") else 0
        least = field.metadata.get("least", usual)
        for value in ["nan"] * (type(field.default) is float) + ["-1"] * (least > -1) + ["0"] * (least > 0):
            with pytest.raises(SystemExit, match="2"):
                frame.parse(settings, [option(field.name), value], "")
            assert f"argument {option(field.name)}: expected at least {least}, got {value}" in capsys.readouterr().err
        if type(field.default) is float and field.default != float("inf"):
            with pytest.raises(SystemExit, match="2"):
                frame.parse(settings, [option(field.name), "inf"], "")
            assert f"argument {option(field.name)}: expected a finite number, got inf" in capsys.readouterr().err


@pytest.mark.parametrize("name", MINE)
def test_a_number_that_is_too_large_is_refused(
    name: str, frame: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = importlib.import_module(name).Settings
    bounded = {field.name: field.metadata["most"] for field in numbers_of(settings) if "most" in field.metadata}
    assert "gamma" in bounded or not hasattr(settings, "gamma")
    for field, most in bounded.items():
        assert frame.parse(settings, [option(field), str(most)], "")
        with pytest.raises(SystemExit, match="2"):
            frame.parse(settings, [option(field), "100"], "")
        assert f"argument {option(field)}: expected at most {most}, got 100" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["--num-envs 0", "--eval-episodes 0", "--seconds nan", "--seed -1", "--min-size 0"])
def test_dqn_refuses_a_value_with_which_it_cannot_run(value: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("dqn_per").main([*value.split(), "--no-bar", "--run-dir", str(tmp_path / "run")])
    assert not list(tmp_path.iterdir())


def test_values_that_begin_with_a_minus_are_refused_or_told_so_that_they_can_be_given_again(frame: ModuleType) -> None:
    settings = importlib.import_module("c51_iqn").Settings
    with pytest.raises(SystemExit, match="2"):
        frame.parse(settings, ["--low=-inf"], "")
    given = frame.parse(settings, ["--low=-1e-7", "--run-dir=-x", "--high=-2"], "")
    told = importlib.import_module("options").options_of(given)
    assert frame.parse(settings, told, "") == given


@pytest.mark.parametrize("value", ["--steps 0", "--seed 0", "--seconds inf", "--save-s 0", "--epsilon 0", "--beta 0"])
def test_a_value_with_which_a_run_can_be_is_taken(value: str, frame: ModuleType) -> None:
    frame.parse(importlib.import_module("dqn_per").Settings, value.split(), "")


def other_value(field: dataclasses.Field[Any]) -> Any:
    if field.metadata.get("choices"):
        return field.metadata["choices"][-1]
    return {bool: not field.default, str: f"{field.default}x"}.get(type(field.default)) or field.default + 1


@pytest.mark.parametrize("name", MINE)
def test_a_continued_run_keeps_the_settings_of_its_save(name: str, frame: ModuleType, tmp_path: Path) -> None:
    settings = importlib.import_module(name).Settings(run_dir=str(tmp_path), bar=False)
    run = frame.Run(name, settings)
    run.load()
    with run.course(lambda: (None, {})):
        pass
    free = {field.name for field in dataclasses.fields(frame.Settings)} - settings.KEEPS
    own = [field for field in dataclasses.fields(settings) if field.name not in free]
    assert {"num_envs", "gamma", "learning_rate", "hidden", "min_size"} & {
        field.name for field in own
    } or name == "grpo"
    num_kept = 0
    for field in own:
        resumed = dataclasses.replace(settings, resume=True, **{field.name: other_value(field)})
        if field.name in importlib.import_module("options").FREE - settings.KEEPS:
            assert frame.Run(name, resumed).load() is not None
            continue
        with pytest.raises(SystemExit) as refused:
            frame.Run(name, resumed).load()
        (line,) = str(refused.value).splitlines()
        assert option(field.name).removeprefix("--") in line and "A continued run keeps its settings" in line
        if not isinstance(field.default, bool):
            assert f"with {option(field.name)} {field.default}, got" in line and str(other_value(field)) in line
        num_kept += 1
    assert num_kept > 3
    seed = settings.seed if "seed" in settings.KEEPS else 9
    longer = dataclasses.replace(settings, resume=True, steps=settings.steps + 1, seconds=1.0, eval_every=7, seed=seed)
    assert frame.Run(name, longer).load() is not None


SHORT = "--hidden 8 --eval-every 1000 --eval-episodes 1 --no-bar"


@pytest.mark.parametrize(
    ("arguments", "other"),
    [
        ("dqn_per --min-size 500 --steps 300", "--min-size 20"),  # the limiter of its save waits for more items
        ("dqn_per --min-size 16 --batch-size 8 --steps 40", "--capacity 90 --n-step 1"),
        ("sac --min-size 64 --batch-size 8 --steps 40", "--min-size 8"),
        ("r2d2 --min-size 64 --batch-size 4 --steps 160 --num-envs 2", "--min-size 2"),
        ("ape_x --env CartPole-v1 --num-actors 0 --min-size 16 --batch-size 8 --steps 40", "--gamma 0.5"),
        ("ape_x --env CartPole-v1 --num-actors 0 --min-size 16 --batch-size 8 --steps 40", "--seed 5"),
    ],
)
def test_an_example_ends_with_a_sentence_if_its_save_has_other_settings(
    arguments: str, other: str, tmp_path: Path
) -> None:
    name, *options = [*arguments.split(), *SHORT.split(), "--run-dir", str(tmp_path)]
    main = importlib.import_module(name).main
    steps = main(options).steps
    with pytest.raises(SystemExit, match=f"has a run with .*, got {other}. "):
        main([*options, *other.split(), "--steps", "1000", "--resume"])
    assert main([*options, "--steps", str(steps + 20), "--resume"]).steps >= steps + 20


@pytest.mark.parametrize("num_actors", [0, 2])
def test_ape_x_with_another_number_of_shards_ends_with_a_sentence(num_actors: int, tmp_path: Path) -> None:
    frame, ape_x = importlib.import_module("frame"), importlib.import_module("ape_x")
    settings = ape_x.Settings(env="CartPole-v1", num_actors=num_actors, run_dir=str(tmp_path), bar=False)
    run = frame.Run("ape_x", settings)
    run.load()
    names, owners = ape_x.make_owners(settings, run)
    with relive.fleet.attach(names) as table, run.course(lambda: (table, {})):
        pass
    for owner in owners:
        owner.close()
    other = f"--env CartPole-v1 --num-actors {2 - num_actors} --resume --no-bar --run-dir {tmp_path}"
    with pytest.raises(SystemExit, match="shards"):
        ape_x.main(other.split())


def test_a_save_of_an_earlier_version_has_no_settings(frame: ModuleType, tmp_path: Path) -> None:
    import torch

    settings = importlib.import_module("sac").Settings(run_dir=str(tmp_path), bar=False)
    run = frame.Run("sac", settings)
    run.load()
    with run.course(lambda: (None, {})):
        pass
    whole = torch.load(tmp_path / "learner.pt")
    del whole["run"]["settings"]
    torch.save(whole, tmp_path / "learner.pt")
    assert frame.Run("sac", dataclasses.replace(settings, resume=True, gamma=0.5)).load() is not None
