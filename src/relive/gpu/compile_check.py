"""Compiles every kernel for a GPU architecture, without such a GPU: for continuous integration.

The launches are those of launch.py for a real table, noted instead of started. So the compiled code is the code that a
reader of such a table launches. TRITON_INTERPRET must not be set when this module is imported.
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
from relive.gpu.launch import WARP, Drawing, Rounds, compile_options, facts_on
from relive.gpu.layout_args import IndexLayout, RegionLayout, step_items_of
from relive.gpu.outputs import OutputPlan
from relive.gpu.region_view import Span
from relive.table.table import Table

__all__ = ["Compiled", "NotedLaunch", "compile_launch", "launches_of", "region_loads"]

DIVISOR = 16  # Triton compiles separately for arguments that are multiples of 16, as addresses from torch are
NUM_ITEMS = 10_000  # more than the pages of the tables of the check: words are copied, too
SOME_ADDRESS = 1 << 40


@final
@dataclass(frozen=True)
class NotedLaunch:
    """A launch that was not started: the kernel, its arguments and its constants."""

    kernel: Any
    arguments: tuple[int, ...]
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return str(self.kernel.fn.__name__)

    @property
    def num_specialized(self) -> int:
        """The number of parameters that Triton compiles separately for: for a value of 1, or multiples of 16."""
        return sum(not (one.is_constexpr or one.do_not_specialize) for one in self.kernel.params)

    def signature(self) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
        """Returns (type of each parameter, values of the constants, hints), as a launch derives them."""
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
    """A compiled launch: the machine code, and the assembly that it was made from."""

    name: str
    arch: int
    variant: str  # the same for launches that share one compilation
    cubin: bytes
    ptx: str


def launches_of(table: Table, columns: Sequence[str]) -> list[NotedLaunch]:
    """Returns every launch of a gather, a sample and a draw of all indexes of a table, each once.

    Args:
        table: the table.
        columns: the columns to gather.
    """
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
    """Compiles a launch.

    Args:
        launch: the launch.
        arch: compute capability: 80 is an A100, 90 an H100.

    Raises:
        InvalidConfig: TRITON_INTERPRET is set. Triton's compiler raises further errors.
    """
    if triton.knobs.runtime.interpret:
        raise InvalidConfig("TRITON_INTERPRET", "not set, to compile", "1")
    types, constants, hints = launch.signature()
    source = ASTSource(fn=launch.kernel, signature=types, constexprs=constants, attrs=hints)
    made = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=compile_options(launch.constants))
    return Compiled(launch.name, arch, made.hash, made.asm["cubin"], made.asm["ptx"])


def region_loads(compiled: Compiled) -> list[str]:
    """Returns the instructions that load from an address inside the region, without predicates and operands.

    Such an address is made of the kernel's first parameter `region` by moves and arithmetic. A loaded number is not an
    address, nor is the result of a comparison.
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
    """(operation, registers that it writes, registers and names that it reads) of every instruction."""
    for line in ptx.splitlines():
        found = re.match(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.*);", line.strip())
        if found is None:
            continue
        operation, operands = found.groups()
        written, _, read = operands.partition("}," if operands.startswith("{") else ",")
        if operation.startswith("st."):
            written, read = "", operands
        yield operation, re.findall(r"%\w+", written), re.findall(r"[%\w]+", read)
