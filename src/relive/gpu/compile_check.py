"""Compiles every kernel for a GPU architecture that need not be present: for continuous integration.

Not under the interpreter: TRITON_INTERPRET must not be set when this module is imported. The launches are those of
launch.py for a real table, noted instead of started; so what is compiled is what a reader on such a table launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from relive.errors import InvalidConfig
from relive.gpu.launch import COMPILE_OPTIONS, Drawing, Rounds, Scratch
from relive.gpu.layout_args import IndexLayout, RegionLayout
from relive.gpu.outputs import OutputPlan
from relive.gpu.region_view import Span
from relive.table import Table

__all__ = ["Compiled", "NotedLaunch", "compile_launch", "launches_of"]

WARP = 32
DIVISOR = 16  # Triton compiles apart for arguments that are multiples of it, as addresses from torch are
NUM_ITEMS = 100
SOME_ADDRESS = 1 << 40


@final
@dataclass(frozen=True)
class NotedLaunch:
    """One kernel with its arguments and constants, not started."""

    kernel: Any
    arguments: tuple[int | None, ...]
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.kernel.fn.__name__)

    def signature(self) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
        """(type of each parameter, values of the constants, hints), as a launch would derive them."""
        types, constants, hints = {}, dict(self.constants), {}
        given = dict(zip(self.kernel.arg_names, self.arguments, strict=False))
        for position, parameter in enumerate(self.kernel.params):
            name = parameter.name
            value = given.get(name)
            if name in constants or value is None:
                types[name] = "constexpr"
                constants.setdefault(name, None)
                continue
            types[name] = parameter.annotation_type or mangle_type(value)
            if value % DIVISOR == 0 and not parameter.do_not_specialize:
                hints[(position,)] = [["tt.divisibility", DIVISOR]]
        return types, constants, hints


@final
@dataclass(frozen=True)
class Compiled:
    """What came of a launch: machine code, and the assembly it was made from."""

    name: str
    arch: int
    cubin: bytes
    ptx: str


def launches_of(table: Table, columns: Sequence[str], index: str | None = None) -> list[NotedLaunch]:
    """Every launch of a gather, a sample and a draw of an index, each once."""
    core, number = table.core, table.index_number(index)
    facts, items = core.geometry, list(table.indexes.values())[number].items
    described = core.select(number, list(columns)).outputs
    plan = OutputPlan.make(described, core.layout, items, table.spec.expand_stack(items.stack))
    noted: list[NotedLaunch] = []

    def note(kernel: Any, grid: tuple[int, ...], *arguments: int | None, **constants: Any) -> None:
        if not any((one.kernel, one.constants) == (kernel, constants) for one in noted):
            noted.append(NotedLaunch(kernel, arguments, constants))

    rounds = Rounds(RegionLayout.from_facts(facts), IndexLayout.from_facts(facts, number, items), start=note)
    host = torch.device("cpu")
    scratch, span = Scratch(NUM_ITEMS, host), Span(SOME_ADDRESS, 1)
    keys = torch.zeros(NUM_ITEMS, dtype=torch.int64)
    drawing = Drawing(keys.to(torch.int32), keys, keys, keys.to(torch.float64), 0)
    out = plan.buffers(NUM_ITEMS, None, host)
    rounds.gather(span, scratch, keys, plan, out)
    rounds.sample(span, scratch, drawing, NUM_ITEMS, plan, out)
    rounds.draw(span, scratch, drawing, NUM_ITEMS)
    return noted


def compile_launch(launch: NotedLaunch, arch: int) -> Compiled:
    """Machine code for compute capability arch (80: A100, 90: H100). Raises what Triton's compiler raises."""
    if triton.knobs.runtime.interpret:
        raise InvalidConfig("TRITON_INTERPRET", "not set, to compile", "1")
    types, constants, hints = launch.signature()
    source = ASTSource(fn=launch.kernel, signature=types, constexprs=constants, attrs=hints)
    made = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=dict(COMPILE_OPTIONS))
    return Compiled(launch.name, arch, made.asm["cubin"], made.asm["ptx"])
