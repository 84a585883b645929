"""Studies of many runs: their statistics on known distributions, and the runner that goes on where it was stopped."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("benchmarks.studies", reason="benchmarks lie beside the tests in the source tree only")
from benchmarks import study_capacity  # noqa: E402
from benchmarks.studies.runner import ROOT, Job, finished, run_jobs  # noqa: E402
from benchmarks.studies.statistics import (  # noqa: E402
    interval,
    mean_curve,
    median_with_none,
    parity,
    reached_at,
)
from benchmarks.targets import DEMANDS, check  # noqa: E402
from benchmarks.training.whole_runs import PARITY  # noqa: E402

# ---- statistics ------------------------------------------------------------------------------------------------------


def test_what_never_varies_has_an_interval_of_no_width() -> None:
    found = interval([3.0] * 5, [1.0] * 4)
    assert (found.difference, found.low, found.high) == (2.0, 2.0, 2.0)


def test_the_interval_of_two_values_is_known() -> None:
    """Means of two draws of {0, 1} are 0, 1/2, 1 with 1/4, 1/2, 1/4: five per cent lie at 0, and at 1."""
    found = interval([0.0, 1.0], [0.0])
    assert (found.difference, found.low, found.high) == (0.5, 0.0, 1.0)
    half = interval([0.0, 1.0], [0.0], level=0.4)
    assert (half.low, half.high) == (0.5, 0.5), "between the 30th and the 70th percentile there is 1/2 alone"


def test_it_shrinks_with_the_root_of_the_sample_and_is_normal_for_large_ones() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(5.0, 2.0, 2_000), rng.normal(3.0, 1.0, 2_000)
    found = interval(ours, theirs)
    error = np.sqrt(ours.var() / 2_000 + theirs.var() / 2_000)
    assert found.high - found.difference == pytest.approx(1.645 * error, rel=0.05)
    assert found.difference - found.low == pytest.approx(1.645 * error, rel=0.05)


def test_it_holds_the_true_difference_about_as_often_as_it_says() -> None:
    """With ten seeds a side, the percentile bootstrap is known to be somewhat narrow: 85% for 90%."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        found = interval(rng.normal(1.0, 1.0, 10), rng.normal(0.0, 1.0, 10), num_draws=500)
        held += found.low <= 1.0 <= found.high
    assert 0.80 <= held / 400 <= 0.93


def test_it_moves_and_stretches_with_its_values() -> None:
    ours, theirs = [1.0, 2.0, 4.0], [0.0, 1.0, 5.0]
    found = interval(ours, theirs)
    moved = interval([10 * value + 7 for value in ours], [10 * value for value in theirs])
    assert moved.low == pytest.approx(10 * found.low + 7) and moved.high == pytest.approx(10 * found.high + 7)
    assert interval(ours, theirs) == found, "the same values, the same interval"


@pytest.mark.parametrize(("ours", "theirs", "level"), [([], [1.0], 0.9), ([1.0], [], 0.9), ([1.0], [1.0], 1.0)])
def test_what_has_no_interval_is_refused(ours: list[float], theirs: list[float], level: float) -> None:
    with pytest.raises(ValueError):
        interval(ours, theirs, level=level)


def test_parity_is_judged_by_the_lower_end_against_the_range() -> None:
    same = parity([-200.0] * 10, [-190.0] * 10, [-1190.0] * 10)
    assert same.margin == pytest.approx(-50.0) and same.interval.low == -10.0 and same.reached
    worse = parity([-241.0] * 10, [-190.0] * 10, [-1190.0] * 10)
    assert not worse.reached
    noisy = parity([-600.0, 220.0] * 2, [-190.0] * 4, [-1190.0] * 4)
    assert noisy.interval.difference == 0.0 and not noisy.reached, "alike on average, and not shown to be"
    assert parity([1.0], [2.0], [2.0]).margin == 0.0


def test_where_a_curve_is_reached() -> None:
    curve = [(10.0, 1.0), (20.0, 5.0), (30.0, 2.0), (40.0, 9.0)]
    assert [reached_at(curve, value) for value in (0.0, 2.0, 6.0, 10.0)] == [10.0, 20.0, 40.0, None]
    assert median_with_none([3.0, None, 1.0]) == 3.0 and median_with_none([None, None, 1.0]) is None
    assert median_with_none([1.0, 2.0]) == 1.5 and median_with_none([1.0, None]) is None
    assert median_with_none([]) is None


def test_curves_are_laid_over_each_other_where_all_are() -> None:
    places, values = mean_curve([[(0.0, 0.0), (10.0, 10.0)], [(5.0, 1.0), (20.0, 1.0)]], num_places=6)
    np.testing.assert_allclose(places, [0, 2, 4, 6, 8, 10])
    np.testing.assert_allclose(values, [[0, 2, 4, 6, 8, 10], [1] * 6])


# ---- the runner ------------------------------------------------------------------------------------------------------


def job(key: str, program: str, **about: Any) -> Job:
    return Job(key, (sys.executable, "-c", program), about)


def noting(folder: Path, key: str, **about: Any) -> Job:
    """A job that leaves a mark each time it runs."""
    mark = f"open({str(folder / 'ran')!r}, 'a').write({key!r})"
    return job(key, mark + """; print('so'); print('{"value": 1}')""", **about)


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    results, jobs = tmp_path / "results", [noting(tmp_path, "a", steps=(1, 2)), noting(tmp_path, "b")]
    assert run_jobs(jobs[:1], results) == [] and run_jobs(jobs, results) == []
    assert (tmp_path / "ran").read_text() == "ab", "the first one once"
    assert finished(jobs[0], results) == {"value": 1}
    other = dataclasses.replace(jobs[0], about={"steps": (1, 3)})
    assert finished(other, results) is None and run_jobs([other], results) == []
    assert (tmp_path / "ran").read_text() == "aba", "other settings are another run"
    assert sorted(path.name for path in results.iterdir()) == ["a.json", "b.json"]


def test_a_job_that_fails_leaves_nothing_and_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        job("raises", "raise ArithmeticError('so it is')"), job("silent", "pass"), job("words", "print('no JSON')"),
        job("list", "print([1])"), job("slow", "import time; time.sleep(60)"), noting(tmp_path, "good"),
    ]  # fmt: skip
    assert run_jobs(jobs, tmp_path / "results", timeout_s=5.0) == ["raises", "silent", "words", "list", "slow"]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["good.json"]
    assert "so it is" in capsys.readouterr().out


def test_a_study_that_is_stopped_lets_its_job_clear_up(tmp_path: Path) -> None:
    """Ctrl-C: the job hears SIGTERM, once; nothing of it is kept."""
    clears_up = (
        "import pathlib, signal, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: ((folder / 'cleared').touch(), print('{}'), sys.exit()))\n"
        "(folder / 'runs').touch()\n"
        "time.sleep(60)\n"
    )
    study = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background commands ignore it
        "from benchmarks.studies.runner import Job, run_jobs\n"
        f"run_jobs([Job('a', (sys.executable, '-c', {clears_up!r}))], Path({str(tmp_path / 'results')!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", study], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + 60.0
        while not (tmp_path / "runs").exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) != 0
    finally:
        process.kill()
    assert (tmp_path / "cleared").exists() and list((tmp_path / "results").iterdir()) == []


def test_a_broken_file_is_as_none(tmp_path: Path) -> None:
    one = noting(tmp_path, "a")
    for text in ("", "[]", '{"about": {}}', '{"about": {}, "result": 3}', "{"):
        (tmp_path / "a.json").write_text(text)
        assert finished(one, tmp_path) is None
    (tmp_path / "a.json").write_text(json.dumps({"about": {}, "result": {}}))
    assert finished(one, tmp_path) == {}


# ---- the studies -----------------------------------------------------------------------------------------------------


def test_a_study_of_parity_is_balanced_wherever_it_is_stopped() -> None:
    from benchmarks.parity import OURS, THEIRS, jobs_of

    runs = [run for run in PARITY.values() if not run.variant]
    jobs = jobs_of(runs, "inline")
    assert len(jobs) == len({one.key for one in jobs}) == 2 * sum(run.num_seeds for run in runs)
    for end in range(0, len(jobs) + 1, 2):
        sides = [one.about["side"] for one in jobs[:end]]
        assert sides.count(OURS) == sides.count(THEIRS)
    firsts = [one.about["side"] for one in jobs[::2]]
    assert abs(firsts.count(OURS) - firsts.count(THEIRS)) <= 1
    assert all(json.dumps(one.about) for one in jobs)


def test_variants_of_a_case_share_the_runs_of_the_other_side() -> None:
    from benchmarks.parity import OURS, THEIRS, job_of, jobs_of

    plain, low = PARITY["sac-pendulum"], PARITY["sac-pendulum-bf16"]
    assert job_of(plain, THEIRS, 3, "inline") == job_of(low, THEIRS, 3, "inline")
    mine, same = (job_of(run, OURS, 3, "inline") for run in (low, plain))
    assert mine.key != same.key and mine.about != same.about
    assert "agent.precision=bfloat16" in mine.command and not same.about.keys() & {"given", "variant"}
    jobs = jobs_of([plain, low], "inline")
    assert len(jobs) == len({one.key for one in jobs}) == 3 * plain.num_seeds


def test_a_report_of_what_is_finished(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report draws curves")
    from benchmarks.parity import OURS, job_of, report

    run = dataclasses.replace(PARITY["sac-pendulum"], num_seeds=2)
    assert "nothing" in report([run], tmp_path / "parity", tmp_path, "inline")
    for seed, side in ((0, "relive"), (0, "sb3"), (1, "relive")):
        final = [-150.0 - seed] * 3
        curve = [[100, 1.0, -1000.0], [200, 2.0, -190.0 if side == OURS else -500.0]]
        result = {"curve": curve, "final": final, "seconds": 3.0, "num_steps": 200, "num_updates": 100}
        one = job_of(run, side, seed, "inline")
        kept = {"about": one.about, "result": {**result, "at_first": [-1150.0]}}
        (tmp_path / "parity").mkdir(exist_ok=True)
        (tmp_path / "parity" / f"{one.key}.json").write_text(json.dumps(kept))
    text = report([run], tmp_path / "parity", tmp_path, "inline")
    assert "1 of 2" in text and "reached so far" in text and "never" in text and "2.0" in text
    (row,) = json.loads((tmp_path / "parity.json").read_text())["rows"]
    assert row["margin"] == pytest.approx(-50.0) and row["interval"]["low"] == 0.0
    assert (tmp_path / "parity.png").stat().st_size > 1_000
    assert "3.1 to 10.8 times as fast" in (tmp_path / "parity.md").read_text(), "PAL's figures are factors, not seconds"


def test_both_sides_explore_alike_and_count_alike() -> None:
    run = PARITY["dqn-cartpole"]
    assert [run.epsilon_at(steps) for steps in (0, 2_500, 5_000, 50_000)] == pytest.approx([1.0, 0.525, 0.05, 0.05])
    assert run.num_updates == 49_000 / 4 and PARITY["sac-pendulum"].num_updates == 9_000
    assert all(one.num_updates // one.period_updates in (20, 21) for one in PARITY.values())


@pytest.mark.parametrize("name", PARITY)
def test_the_settings_of_a_whole_run_are_a_run(name: str) -> None:
    pytest.importorskip("torch", reason="agents are written in torch")
    from benchmarks.training.cases import CASES
    from benchmarks.training.relive_run import settings_for
    from relive.train import preset

    run = PARITY[name]
    case = CASES[run.case]
    config = preset(case.agent, case.env_id, settings_for(run, 3, "inline", ["agent.gamma=0.9", *run.given]))
    assert (config.environment.seed, str(config.topology), config.agent.batch_size) == (3, "inline", case.batch_size)
    assert config.evaluation.period_updates == run.period_updates and config.evaluation.stop_return is None
    assert getattr(config.agent, "precision", "") == ("bfloat16" if run.variant else "float32")
    if case.agent == "dqn":
        explores: Any = config.agent
        assert (explores.epsilon_start, explores.epsilon_end, explores.epsilon_steps) == (1.0, 0.05, 5_000)


# ---- what is committed -----------------------------------------------------------------------------------------------


def test_a_report_on_capacities_names_the_best_of_each_ratio(tmp_path: Path) -> None:
    world = dataclasses.replace(study_capacity.WORLDS["dqn"], num_seeds=2)
    settings = world.settings()
    assert settings[0] == (0.125, 500, None) and settings[0].age == 62.5
    assert settings[3] == (0.125, 20_000, 250) and settings[3].age == 250
    (tmp_path / "capacity").mkdir()
    for place, score in {0: 100.0, 1: 300.0, 5: 50.0}.items():
        for seed in range(2):
            job = study_capacity.job_of(world, settings[place], seed)
            result = {"curve": [[500, score]], "score": score + seed, "final": 2 * score, "updates": 1}
            (tmp_path / "capacity" / f"{job.key}.json").write_text(json.dumps({"about": job.about, "result": result}))
    rows = study_capacity.rows_of(world, tmp_path / "capacity")
    assert [(row["capacity"], row["score"], row["final"]) for row in rows] == [
        (500, 100.5, 200.0),
        (2_000, 300.5, 600.0),
        (500, 50.5, 100.0),
    ]
    assert rows[0]["behind"]["difference"] == 200.0 and rows[1]["behind"] is None and rows[2]["behind"] is None
    text = study_capacity.report([world], tmp_path)
    assert "+199 to +201" in text and (tmp_path / "capacity.png").stat().st_size > 1_000


def test_a_run_of_the_study_of_capacities_has_its_ratio() -> None:
    pytest.importorskip("torch", reason="the study trains with torch")
    world = dataclasses.replace(study_capacity.WORLDS["sac"], num_steps=600, period_steps=200, num_episodes=2)
    found = study_capacity.run(world, study_capacity.Setting(0.5, 300, 100), seed=0)
    assert [step for step, _ in found["curve"]] == [200, 400, 600]
    assert 190 <= found["updates"] <= 204, "half an update a step, once there are 200 items"


def test_committed_results_can_be_held_against_their_demands() -> None:
    """One file of rows that does not say whose they are ends `make bench` after its last measurement."""
    assert len(check(ROOT / "benchmarks" / "results")) == len(DEMANDS)
