"""Counts the goals that hindsight gives a step, and the draws of groups: `python scripts/draw_goals.py`.

hindsight.svg: the states of an episode of 12 steps, and how often each became the goal of step 4. prompt_groups.svg: 40
groups, the variance and mean of their members' rewards, and how often each group was drawn. All into docs/images.
"""

from __future__ import annotations

import sys
from html import escape

import numpy as np
from draw_choices import IMAGES, TOP, WIDTH, Numbers, bars
from draw_how_it_works import PAPER, text

import relive

LENGTH, STEP, NUM_GROUPS = 12, 4, 40
STATE = relive.ArraySpec((), "float32", kind="state")
REACHING = relive.StepSpec({"goal": STATE, "reached": STATE, "step": relive.ArraySpec((), "int64")})
ONCE = relive.ArraySpec((), "int64", kind="episode")
ROLLOUTS = relive.StepSpec({"prompt": ONCE, "score": relive.ArraySpec((), "float32", kind="episode")})
CHOICES = (
    ("'variance'", relive.PromptGroups("variance", "score")),
    ("'variance', exponent 0", relive.PromptGroups("variance", "score", 0.0)),
    ("'mean'", relive.PromptGroups("mean", "score")),
    ("'recency'", relive.PromptGroups("recency")),
)
ROW = 50


def goals(strategy: str) -> Numbers:
    """The number of times that each state became the goal of the step, as a share of the largest."""
    index = relive.Index(sampler=relive.Hindsight("goal", "reached", 1.0, strategy, max_length=LENGTH))  # type: ignore[arg-type]
    with relive.Table(REACHING, 100, index, seed=1) as table, table.writer() as writer:
        at = np.arange(LENGTH + 1.0)
        writer.extend(goal=-np.ones(LENGTH + 1), reached=at, step=np.arange(LENGTH), truncated=True)
        counts = np.zeros(LENGTH + 1)
        for _ in range(60):
            batch = table.sample(512)
            np.add.at(counts, batch["goal"][batch["step"] == STEP].astype(int), 1)
    return counts / counts.max()


def scores() -> Numbers:
    """[groups, members]: a wave of success, so that both easy and hopeless prompts are among them."""
    ease = 0.5 + 0.7 * np.sin(np.arange(NUM_GROUPS) * 2 * np.pi / 19)
    return (np.arange(8) / 8 < ease[:, None]).astype(float)


def groups(sampler: relive.PromptGroups) -> Numbers:
    """The number of draws of each group, as a share of the largest."""
    items = relive.Episodes(1, group_by="prompt", group_size=8, max_groups=NUM_GROUPS)
    with relive.Table(ROLLOUTS, 1_000, relive.Index(items, sampler), seed=1) as table, table.writer() as writer:
        for prompt, members in enumerate(scores()):
            for score in members:
                writer.append(prompt=prompt, score=score, terminated=True)
        counts = np.zeros(NUM_GROUPS)
        for _ in range(400):
            np.add.at(counts, table.sample(8 if sampler.by == "recency" else 64)["prompt"][:, 0], 1)
    return counts / counts.max()


def picture(title: str, lines: list[tuple[str, Numbers, int]], ends: tuple[str, str], label: str) -> str:
    """A picture with a line of bars for each entry."""
    height = TOP + ROW * (len(lines) - 1) + 66
    parts = [text(WIDTH / 2, 30, escape(title), 16, anchor="middle")]
    for k, (name, heights, colour) in enumerate(lines):
        parts += bars(TOP + ROW * k, name, heights, colour)
    parts.append(text(210, height - 32, ends[0], 12, anchor="start"))
    parts.append(text(WIDTH - 24, height - 32, ends[1], 12, anchor="end"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(label)}" font-family="system-ui, sans-serif">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>', *parts, "</svg>"]) + "\n"


def pictures() -> dict[str, str]:
    """Each file's name and text."""
    own = np.zeros(LENGTH + 1)
    own[STEP : STEP + 2] = 1.0
    chosen = [(repr(name), goals(name), 0) for name in ("future", "final", "episode")]
    rewards = scores()
    variance, mean = rewards.var(axis=1), rewards.mean(axis=1)
    counted = [(name, groups(kind), 0) for name, kind in CHOICES]
    return {
        "hindsight.svg": picture(
            f"which state of an episode becomes the goal of step {STEP}",
            [(f"step {STEP}: state and next", own, 2), *chosen],
            ("first state", "last state"),
            "Goals by strategy: future draws all later states alike, final the last one, episode all but the first",
        ),
        "prompt_groups.svg": picture(
            "how often each of 40 groups is drawn",
            [("variance of rewards", variance / variance.max(), 2), ("mean of rewards", mean, 2), *counted],
            ("oldest", "newest"),
            "Draws of groups: by variance groups with mixed rewards, by mean successful ones, by recency the newest",
        ),
    }


def main() -> int:
    for name, drawn in pictures().items():
        (IMAGES / name).write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
