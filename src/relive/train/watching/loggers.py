"""Adds the loggers that the options of a run ask for to its callbacks; no logger is written here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relive.train.sections import LoggingConfig
from relive.train.watching.callbacks import Listeners

if TYPE_CHECKING:
    from relive.train.watching.wandb_logger import WandbLogger


@contextmanager
def logging_of(config: LoggingConfig, listeners: Listeners) -> Iterator[None]:
    """Adds the loggers that the options ask for to the callbacks of the run; they end with the block.

    Raises:
        MissingPackage: A logger needs a package that is not installed.
    """
    if not config.wandb:
        yield
        return
    # Loaded here: wandb takes seconds, and is seldom there.
    logger: WandbLogger = importlib.import_module("relive.train.watching.wandb_logger").WandbLogger()
    listeners.add(logger)
    try:
        yield
    except BaseException:
        logger.close(failed=True)
        raise
    logger.close(failed=False)
