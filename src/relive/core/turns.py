"""Turns: a mutex whose waits have a deadline and hear signals, for objects whose calls may take long."""

from __future__ import annotations

from relive._core import Turn

__all__ = ["Turn"]
