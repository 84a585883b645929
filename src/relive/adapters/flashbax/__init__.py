"""Flashbax's buffers by its own names, as functions of a handle of a table; no compiled functions.

    import relive.adapters.flashbax as fbx

    buffer = fbx.make_prioritised_flat_buffer(100_000, 1_000, 256)
    state = buffer.init(timestep)
    state = buffer.add(state, timestep)
    sample = buffer.sample(state, key)
    state = buffer.set_priorities(state, sample.indices, priorities)

The calls are eager: no jit, vmap, scan or pmap around them. A sample is a tree of jax arrays, handed over by DLPack, or
of numpy arrays if jax is not installed. This module needs neither jax nor flashbax.
"""

from __future__ import annotations

from relive.adapters.flashbax.buffers import (
    BufferState,
    ExperiencePair,
    PrioritisedTrajectoryBuffer,
    PrioritisedTrajectoryBufferSample,
    PrioritisedTransitionSample,
    TrajectoryBuffer,
    TrajectoryBufferSample,
    TransitionSample,
)
from relive.adapters.flashbax.making import (
    make_flat_buffer,
    make_item_buffer,
    make_prioritised_flat_buffer,
    make_prioritised_item_buffer,
    make_prioritised_trajectory_buffer,
    make_trajectory_buffer,
)

__all__ = [
    "BufferState",
    "ExperiencePair",
    "PrioritisedTrajectoryBuffer",
    "PrioritisedTrajectoryBufferSample",
    "PrioritisedTransitionSample",
    "TrajectoryBuffer",
    "TrajectoryBufferSample",
    "TransitionSample",
    "make_flat_buffer",
    "make_item_buffer",
    "make_prioritised_flat_buffer",
    "make_prioritised_item_buffer",
    "make_prioritised_trajectory_buffer",
    "make_trajectory_buffer",
]
