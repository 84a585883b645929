"""Compiles every kernel for a GPU architecture that need not be present: for continuous integration.

Not under the interpreter: TRITON_INTERPRET must not be set when this module is imported. The launches are those of
launch.py for a real table, noted instead of started; so what is compiled is what a reader on such a table launches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from relive.errors import InvalidConfig
from relive.gpu.launch import COMPILE_OPTIONS, Drawing, Rounds, facts_on
from relive.gpu.layout_args import IndexLayout, RegionLayout, step_items_of
from relive.gpu.outputs import OutputPlan
from relive.gpu.region_view import Span
from relive.table.table import Table

__all__ = ["Compiled", "NotedLaunch", "compile_launch", "launches_of", "region_loads"]

WARP = 32
DIVISOR = 16  # Triton compiles apart for arguments that are multiples of it, as addresses from torch are
NUM_ITEMS = 100
SOME_ADDRESS = 1 << 40


@final
@dataclass(frozen=True)
class NotedLaunch:
    """One kernel with its arguments and constants, not started."""

    kernel: Any
    arguments: tuple[int, ...]
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.kernel.fn.__name__)

    @property
    def num_specialized(self) -> int:
        """Parameters for whose values Triton would compile anew: 1, or multiples of 16."""
        return sum(not (one.is_constexpr or one.do_not_specialize) for one in self.kernel.params)

    def signature(self) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
        """(type of each parameter, values of the constants, hints), as a launch would derive them."""
        types, constants, hints = {}, dict(self.constants), {}
        given = dict(zip(self.kernel.arg_names, self.arguments, strict=False))
        for position, parameter in enumerate(self.kernel.params):
            name = parameter.name
            if name in constants:
                types[name] = "constexpr"
                continue
            value = given[name]
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
    variant: str  # the same for launches that share one compilation
    cubin: bytes
    ptx: str


def launches_of(table: Table, columns: Sequence[str]) -> list[NotedLaunch]:
    """Every launch of a gather, a sample and a draw of all indexes, each once."""
    noted: list[NotedLaunch] = []

    def note(kernel: Any, grid: tuple[int, ...], *arguments: int, **constants: Any) -> None:
        if not any((one.kernel, one.constants) == (kernel, constants) for one in noted):
            noted.append(NotedLaunch(kernel, arguments, constants))

    for index in table.indexes:
        _note_launches(table, index, columns, note)
    return noted


def _note_launches(table: Table, index: str, columns: Sequence[str], note: Callable[..., None]) -> None:
    core, number, host = table.core, table.index_number(index), torch.device("cpu")
    facts, items = core.geometry, step_items_of(table.indexes, number)
    plan = OutputPlan.make(table.select(index, columns), core.layout, items, table.spec.expand_stack(items.stack))
    layout = IndexLayout.from_facts(facts, number, items)
    rounds = Rounds(layout, facts_on(host, RegionLayout.from_facts(facts), layout), start=note)
    keys = torch.zeros(NUM_ITEMS, dtype=torch.int64)
    drawing = Drawing(keys, keys.to(torch.float64), keys.to(torch.int32), 0, 0)
    room, span = plan.room(NUM_ITEMS, None, host), Span(SOME_ADDRESS, 1)
    rounds.gather(span, rounds.scratch(NUM_ITEMS), keys, room)
    rounds.sample(span, rounds.scratch(NUM_ITEMS), drawing, room)
    rounds.draw(span, rounds.scratch(NUM_ITEMS), drawing)


def compile_launch(launch: NotedLaunch, arch: int) -> Compiled:
    """Machine code for compute capability arch (80: A100, 90: H100). Raises what Triton's compiler raises."""
    if triton.knobs.runtime.interpret:
        raise InvalidConfig("TRITON_INTERPRET", "not set, to compile", "1")
    types, constants, hints = launch.signature()
    source = ASTSource(fn=launch.kernel, signature=types, constexprs=constants, attrs=hints)
    made = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=dict(COMPILE_OPTIONS))
    return Compiled(launch.name, arch, made.hash, made.asm["cubin"], made.asm["ptx"])


def region_loads(compiled: Compiled) -> list[str]:
    """The instructions, predicates and operands left off, that load from an address inside the region.

    Such an address is one that comes of the kernel's parameter `region`, its first, by moves and arithmetic. What was
    loaded is a number; comparisons give none.
    """
    instructions = list(_instructions(compiled.ptx))
    tainted: set[str] = set()
    shared = False
    while True:
        known = len(tainted), shared
        for operation, targets, sources in instructions:
            is_region = operation.startswith("ld.param") and any(word.endswith("_param_0") for word in sources)
            moves = not operation.startswith(("ld.", "setp", "atom", "st."))
            if is_region or (moves and tainted & set(sources)) or (operation.startswith("ld.shared") and shared):
                tainted |= set(targets)
            shared = shared or (operation.startswith("st.shared") and bool(tainted & set(sources)))
        if (len(tainted), shared) == known:
            break
    loads = (line for line in instructions if line[0].startswith("ld.") and not line[0].startswith("ld.param"))
    return [operation for operation, _, sources in loads if "shared" not in operation and tainted & set(sources)]


def _instructions(ptx: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """(operation, registers it writes, registers and names it reads) of every line that is an instruction."""
    for line in ptx.splitlines():
        found = re.match(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.*);", line.strip())
        if found is None:
            continue
        operation, operands = found.groups()
        written, _, read = operands.partition("}," if operands.startswith("{") else ",")
        if operation.startswith("st."):
            written, read = "", operands
        yield operation, re.findall(r"%\w+", written), re.findall(r"[%\w]+", read)
