"""The command line of relive, with one file for each group of commands; no work that a Python caller could ask for."""

from relive.cli.entry import main

__all__ = ["main"]
