"""Joining a Ray cluster, asking it with a deadline, and owning a shard in an actor; no calls of programs."""

import importlib.util

from relive.errors import MissingPackage
from relive.errors.extras import install_command

if importlib.util.find_spec("ray") is None:
    raise MissingPackage("relive.fleet.ray", "ray", install_command("ray"))
