"""Compiles every kernel for a GPU architecture that need not be present: for continuous integration.

Not under the interpreter: TRITON_INTERPRET must not be set when this module is imported. Constants are those of real
tables (packed records, stacks, large rows), so what is compiled is what a reader on such a table launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from relive.errors import InvalidConfig
from relive.gpu.kernels import draw, rows, windows
from relive.gpu.launch import COMPILE_OPTIONS, BlockSizes
from relive.gpu.layout_args import IndexLayout, RegionLayout
from relive.gpu.outputs import OutputPlan
from relive.index import Index
from relive.table import Table

__all__ = ["Compiled", "Variant", "compile_variant", "variants_of"]

WARP = 32
ADDRESSES = {"region", "keys", "windows", "status", "strata", "slots", "points", "probabilities", "out"}
DERIVED = ("reward", "discount", "terminated", "truncated", "episode_step", "first", "lane", "policy_version")
ADDRESSES |= {*DERIVED, "staleness", "num_steps"}
TYPES = {"count": "i32", "num_strata": "i32", "mapped_frames": "i64", "base": "u64"}


@final
@dataclass(frozen=True)
class Variant:
    """One kernel with one set of constants."""

    kernel: Any
    constants: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.kernel.fn.__name__)


@final
@dataclass(frozen=True)
class Compiled:
    """What came of a variant: machine code, and the assembly it was made from."""

    name: str
    arch: int
    cubin: bytes
    ptx: str


def variants_of(table: Table, index: str | None = None) -> Iterator[Variant]:
    """The kernels that a reader launches for every column of an index, and for its draws."""
    facts, columns = table._core.geometry, table._core.layout
    number = table._index_number(index)
    config: Index = list(table.indexes.values())[number]
    layout = RegionLayout.from_facts(facts)
    of_index = IndexLayout.from_facts(facts, number, config.items)
    names = (*table._default_columns(), "terminated", "truncated", "lane", "staleness")
    described = table._core.plan(number, list(names)).outputs
    plan = OutputPlan.make(described, columns, config.items, table.spec.expand_stack(config.items.stack))
    blocks = BlockSizes()
    common = {"LAYOUT": layout, "BLOCK": blocks.items}
    for by_key in (True, False):
        yield Variant(windows.note_words, {"BY_KEY": by_key, **common})
        yield Variant(windows.follow_links, {"BY_KEY": by_key, "INDEX": of_index, **common})
        yield Variant(windows.recheck, {"ONLY_GENERATION": by_key, **common})
    yield Variant(windows.walk_windows, {"NEEDS": plan.needs, "INDEX": of_index, **common})
    yield Variant(rows.fill_derived, {"NEEDS": plan.needs, **common})
    yield Variant(draw.draw_slots, {"points": None, "INDEX": of_index, "BLOCK": blocks.items})
    yield Variant(draw.take_leaves, {"INDEX": of_index, **common})
    for copy in dict.fromkeys(one.copy for one in plan.outputs if one.copy is not None):
        items, words = blocks.tile(copy)
        yield Variant(rows.copy_rows, {"COLUMN": copy, "LAYOUT": layout, "ITEMS": items, "WORDS": words})


def compile_variant(variant: Variant, arch: int) -> Compiled:
    """Machine code for compute capability arch (80: A100, 90: H100). Raises what Triton's compiler raises."""
    if triton.knobs.runtime.interpret:
        raise InvalidConfig("TRITON_INTERPRET", "not set, to compile", "1")
    signature, hints = {}, {}
    for position, name in enumerate(variant.kernel.arg_names):
        if name in variant.constants:
            signature[name] = "constexpr"
        elif name in ADDRESSES:
            signature[name] = "i64"
            hints[(position,)] = [["tt.divisibility", 16]]  # as torch allocates
        else:
            signature[name] = TYPES[name]
    source = ASTSource(fn=variant.kernel, signature=signature, constexprs=dict(variant.constants), attrs=hints)
    made = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=dict(COMPILE_OPTIONS))
    return Compiled(variant.name, arch, made.asm["cubin"], made.asm["ptx"])
