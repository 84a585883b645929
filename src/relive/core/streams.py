"""Random numbers of one stream for a draw that is made on another stream."""

from __future__ import annotations

import functools

import numpy as np

from relive import _core

__all__ = ["number_on_stream"]

_GOLDEN = np.uint64(_core.random_format()["golden"])


def number_on_stream(seed: int, own: int, stream: int, number: int) -> int:
    """The number of the draw on stream `own` that has the random numbers of draw `number` on `stream`.

    The random numbers of a draw follow from the state of its stream and from its number (cpp/relive/words/rng.hpp):

        mix((state ^ number) + golden), where state = mix((mix(seed + golden) ^ stream) + golden)

    So the draw on `own` needs the number that gives the same word: state(own) ^ number(own) = state ^ number.

    Args:
        seed: seed of the table.
        own: the stream of the handle that draws.
        stream: the stream whose random numbers it takes.
        number: the number of a draw on that stream.

    Returns:
        A number of 64 bits; `number` itself if the streams are the same.
    """
    return number ^ _between(seed, own, stream)


@functools.lru_cache(maxsize=256)
def _between(seed: int, one: int, other: int) -> int:
    start = _core.mix_words(np.array([seed], np.uint64) + _GOLDEN)
    states = _core.mix_words((start ^ np.array([one, other], np.uint64)) + _GOLDEN)
    return int(states[0] ^ states[1])
