"""Checkpoints of runs, for programs that read or write them. The code is in relive.train.watching.checkpoint."""

from relive.train.watching.checkpoint import CurvePoint, Progress, load_checkpoint, save_checkpoint

__all__ = ["CurvePoint", "Progress", "load_checkpoint", "save_checkpoint"]
