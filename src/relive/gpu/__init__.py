"""Reads of a table on a GPU by Triton kernels over the table's own memory (extra `gpu`); no writer.

    reader = relive.gpu.DeviceReader(table, device="cuda")
    batch = reader.sample(256)          # tensors on the device; rows are read in place, no host call per window

The package needs torch and triton (extra `gpu`). `import relive` alone does not import the package.
"""

from __future__ import annotations

import importlib.util

from relive.errors import MissingPackage
from relive.errors.extras import install_command

for _package in ("torch", "triton"):
    if importlib.util.find_spec(_package) is None:
        raise MissingPackage("relive.gpu", _package, install_command("gpu"))

from relive.gpu.batch import DeviceBatch, DeviceDraw  # noqa: E402  (after the check, whose error names the extra)
from relive.gpu.reader import DeviceReader  # noqa: E402
from relive.gpu.region_view import DeviceFailure  # noqa: E402

__all__ = ["DeviceBatch", "DeviceDraw", "DeviceFailure", "DeviceReader"]
