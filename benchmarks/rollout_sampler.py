"""A sampler of TransferQueue that keeps the rollouts of a prompt together.

TransferQueue's GRPOGroupNSampler takes rollouts whose indexes follow each other. If rollouts become ready out of order,
it mixes prompts, and the rest of their groups is never read. The tag "prompt" of a rollout says its group here.
"""

from __future__ import annotations

from typing import Any

import transfer_queue as tq

from benchmarks.rollout_load import GROUP


class WholeGroups(tq.BaseSampler):  # type: ignore[misc]
    """Takes whole groups of GROUP rollouts with one tag "prompt", the oldest first."""

    def sample(self, ready_indexes: list[int], batch_size: int, *_: Any, **told: Any) -> tuple[list[int], list[int]]:
        """As many whole groups as a batch has, or none."""
        tags, groups = told["partition"].custom_meta, {}
        for index in ready_indexes:
            groups.setdefault(tags[index]["prompt"], []).append(index)
        whole = [members for members in groups.values() if len(members) == GROUP][: batch_size // GROUP]
        taken = [index for members in whole for index in members] if len(whole) * GROUP == batch_size else []
        return taken, taken
