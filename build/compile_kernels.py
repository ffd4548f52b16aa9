"""Compiles all kernels of Gapless for a GPU, which this machine need not have, and prints the resources that
each variant needs.

    python -m build.compile_kernels           # compute capability 9.0 (H100, H200), all variants, 2 minutes
    python -m build.compile_kernels --quick   # heads of 128, and one variant for each dtype of other kernels

Prints registers per thread, bytes spilled per thread (stores and loads), and KiB of shared memory per
program. Exit code 1 if a variant does not compile, spills more than --most-spills, or needs more shared
memory than the GPU has for one program. Needs the package triton (requirements-kernels.lock), which includes
NVIDIA's assembler, but neither a GPU nor CUDA. It does not measure the speed of kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from tqdm import tqdm
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from python_backends.engine.model.description import Activation
from python_backends.engine.slots import draw_kernel, token_kernels, write_kernel
from python_backends.engine.slots.columns import Column, Share
from python_backends.engine.torch import (
    expert_kernel,
    fused_kernels,
    int8_kernel,
    paged_attention,
    paged_chunks,
    paged_parts,
)
from python_backends.engine.torch.attention_spans import chunk_rows
from python_backends.engine.torch.projection import MOST_KERNEL_ROWS
from python_backends.nouns.request import LEAST_TEMPERATURE, Finish

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SHARED_BYTES = {90: 232_448, 80: 166_912, 89: 101_376}  # of a program, by compute capability
MOST_SPILLS = 16  # bytes per thread: what chunks of heads of 80 in float32 with a window take
BLOCK_TOKENS = 32
GROUPS = (1, 4)  # query heads that share a KV head
DIMS = (64, 80, 128, 256)  # of a head
WIDTH = 4096


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation. `signature` has the types of the arguments that are not constants, in Triton's
    notation.
    """

    kernel: str
    what: str
    function: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    # arguments that are not assumed to be aligned or divisible by 16
    unaligned: frozenset[str] = field(default_factory=frozenset)
    warps: int = 4


@dataclass(frozen=True, slots=True)
class Compiled:
    kernel: str
    what: str
    registers: int  # a thread
    spilled_bytes: int  # a thread, stores and loads
    shared_bytes: int  # a program
    seconds: float
    error: str = ""


def variants(is_quick: bool) -> Iterator[Variant]:
    yield from _attention(is_quick)
    yield from _between_products(is_quick)
    types = {
        "writes": "*i64",
        "first": "*i64",
        "second": "*i64",
        "third": "*i64",
        "fourth": "*fp32",
        "count": "i32",
    }
    yield Variant(
        "write", "", write_kernel._write, types, {"TILE": write_kernel.WRITES}, frozenset(("count",))
    )
    yield from _of_rows()
    yield from _draws()
    yield from _int8()
    yield from _experts()


def _of_rows() -> Iterator[Variant]:
    """Kernels that take a number for each row."""
    width = {"WIDTH": len(Column)}
    types = dict.fromkeys(("counts", "slots", "tokens", "positions"), "*i64") | {"count": "i32"}
    columns = {"LAST_TOKEN": int(Column.LAST_TOKEN), "LENGTH": int(Column.LENGTH), "TILE": token_kernels.ROWS}
    constants: dict[str, Any] = width | columns
    yield Variant("last_tokens", "", token_kernels._last_tokens, types, constants, frozenset(("count",)))
    types = dict.fromkeys(("counts", "stop_ids", "slots", "tokens", "out"), "*i64")
    appended = tuple(int(column) for column in token_kernels.APPENDED)
    ends = {"STOPPED": int(Finish.STOP), "FULL": int(Finish.LENGTH), "STOPS": 20, "PADDED": 32}
    yield Variant("append", "", token_kernels._append, types, {**width, "COLUMNS": appended, **ends})
    types = {"positions": "*i64", "items": "*i32", "arrived": "*i32"}
    types |= dict.fromkeys(("count", "num_items", "extra", "window"), "i32")
    constants = {"ROWS": 512, "KV_HEADS": 8, "PART": paged_parts.PART_TOKENS, "HAS_WINDOW": True}
    unaligned = frozenset(("count", "num_items", "extra"))
    yield Variant("divide", "512 rows", paged_parts._divide, types, constants, unaligned)


def _int8() -> Iterator[Variant]:
    tile = {"ROWS": MOST_KERNEL_ROWS, "OUTPUTS": int8_kernel.OUTPUTS}
    sizes = dict.fromkeys(("num_rows", "num_outputs", "num_inputs", "x_stride"), "i32")
    for dtype in DTYPES:
        pointer = f"*{dtype}"
        types = {"x": pointer, "weight": "*i8", "scale": pointer, "out": pointer, **sizes}
        product, unaligned = int8_kernel._int8_product, frozenset(("num_rows",))
        constants = tile | {"INPUTS": int8_kernel.inputs_of(DTYPES[dtype])}
        yield Variant("int8_product", dtype, product, types, constants, unaligned)


def _experts() -> Iterator[Variant]:
    for dtype in DTYPES:
        for has_scale in (False, True):
            pointer = f"*{dtype}"
            types = {"x": pointer, "ends": "*i64", "weight": "*i8" if has_scale else pointer}
            types |= {"scale": pointer, "out": pointer, "num_outputs": "i32", "num_inputs": "i32"}
            constants: dict[str, Any] = {"EXPERTS": 128, "PADDED": 128, "HAS_SCALE": has_scale}
            constants |= {"ROWS": expert_kernel.ROWS, "OUTPUTS": int8_kernel.OUTPUTS}
            constants |= {"INPUTS": int8_kernel.inputs_of(DTYPES[dtype])}
            what = f"{dtype}{' int8' if has_scale else ''}"
            yield Variant("expert_product", what, expert_kernel._expert_product, types, constants)


def _draws() -> Iterator[Variant]:
    tables = {"slots": "*i64", "counts": "*i64", "shares": "*fp32", "tokens": "*i64"}
    constants = {
        "COUNTS": len(Column),
        "SHARES": len(Share),
        "COLUMNS": tuple(map(int, draw_kernel.COLUMNS)),
        "FRACTIONS": tuple(map(int, draw_kernel.FRACTIONS)),
        "LEAST": LEAST_TEMPERATURE,
        "TILE": draw_kernel.TILE,
    }
    for dtype in DTYPES:
        types = {"logits": f"*{dtype}", **tables, "width": "i32", "stride": "i32"}
        yield Variant("draw", dtype, draw_kernel._draw, types, constants, warps=draw_kernel.WARPS)


def _attention(is_quick: bool) -> Iterator[Variant]:
    for dtype in DTYPES:
        for dim in (128,) if is_quick else DIMS:
            for group in GROUPS[1:] if is_quick else GROUPS:
                for window, cap in (
                    ((False, False),) if is_quick else ((False, False), (True, False), (True, True))
                ):
                    if not window or cap:  # windows are no variant of it
                        yield _part(dtype, dim, group, cap)
                    yield _chunk(dtype, dim, group, window, cap)


def _part(dtype: str, dim: int, group: int, cap: bool) -> Variant:
    pointer = f"*{dtype}"
    signature = {"qkv": pointer, "blocks": pointer, **dict.fromkeys(("table", "slots", "positions"), "*i64")}
    signature |= {"cos": pointer, "sin": pointer, "items": "*i32", "weighted_parts": "*fp32"}
    signature |= {"maxima": "*fp32", "sums": "*fp32", "arrived": "*i32", "out": pointer, "qkv_stride": "i32"}
    signature |= {name: kind for name, kind in _rest_of_attention().items() if name != "window"}
    constants = {**_constants(dtype, dim, group, cap, decodes=True), "TURNS": True}
    what = _named(dtype, dim, group, False, cap)
    return Variant("attend_part", what, paged_attention._attend_part, signature, constants)


def _chunk(dtype: str, dim: int, group: int, window: bool, cap: bool) -> Variant:
    pointer = f"*{dtype}"
    signature = {"qkv": pointer, "blocks": pointer, "table": "*i64", "tiles": "*i64", "out": pointer}
    signature |= {"row_stride": "i32", **_rest_of_attention()}
    constants = {**_constants(dtype, dim, group, cap, decodes=False), "HAS_WINDOW": window}
    what = _named(dtype, dim, group, window, cap)
    warps = paged_chunks.chunk_warps(DTYPES[dtype], dim)
    return Variant("attend_chunk", what, paged_chunks._attend_chunk, signature, constants, warps=warps)


def _rest_of_attention() -> dict[str, str]:
    strides = dict.fromkeys(("table_stride", "block_stride", "values_offset"), "i32")
    return {**strides, "scale": "fp32", "window": "i32", "softcap": "fp32"}


def _constants(dtype: str, dim: int, group: int, cap: bool, decodes: bool) -> dict[str, Any]:
    tile = paged_chunks.tile_tokens(DTYPES[dtype], decodes)
    rows = triton.next_power_of_2(max(group, paged_chunks.LEAST_ROWS))
    rows = rows if decodes else chunk_rows(DTYPES[dtype])
    sizes = {"GROUP": group, "ROWS": rows, "DIM": dim, "PADDED": triton.next_power_of_2(dim), "TILE": tile}
    return {**sizes, "BLOCK_TOKENS": BLOCK_TOKENS, "HAS_SOFTCAP": cap}


def _named(dtype: str, dim: int, group: int, window: bool, cap: bool) -> str:
    return f"{dtype}, heads of {dim}, groups of {group}{', window' * window}{', cap' * cap}"


def _between_products(is_quick: bool) -> Iterator[Variant]:
    for dtype in DTYPES:
        pointer = f"*{dtype}"
        place = {**dict.fromkeys(("qkv", "cos", "sin", "blocks"), pointer), "first_row": "i32"}
        place |= dict.fromkeys(("positions", "slots", "table"), "*i64") | {"qkv_stride": "i32"}
        place |= dict.fromkeys(("table_stride", "block_stride", "values_offset"), "i32")
        for half in (64,) if is_quick else (32, 40, 64, 128):
            sizes = {"NUM_QUERY": 32, "NUM_KV": 8, "HALF": half, "PADDED": triton.next_power_of_2(half)}
            constants = {**sizes, "HEADS": fused_kernels.HEADS, "BLOCK_TOKENS": BLOCK_TOKENS, "TURNS": True}
            what, unaligned = f"{dtype}, heads of {2 * half}", frozenset(("first_row",))
            yield Variant("place", what, fused_kernels._place, place, constants, unaligned)
        gated = {"up": pointer, "out": pointer, "width": "i32"}
        for activation in (Activation.SILU,) if is_quick else Activation:
            constants = {"ACTIVATION": str(activation), "TILE": fused_kernels.TILE}
            yield Variant("gated", f"{dtype}, {activation}", fused_kernels._gated, gated, constants)
        norm = dict.fromkeys(("x", "y", "weight", "bias", "out"), pointer) | {"scale": "fp32", "eps": "fp32"}
        for layer in (False,) if is_quick else (False, True):
            constants = {"WIDTH": WIDTH, "PADDED": WIDTH, "CENTRES": layer, "HAS_BIAS": layer}
            what = f"{dtype}, {'LayerNorm' if layer else 'RMSNorm'} of {WIDTH}"
            yield Variant("add_and_norm", what, fused_kernels._add_and_norm, norm, constants)


def compiled(variant: Variant, capability: int) -> Compiled:
    """Compiles a variant for aligned pointers and strides divisible by 16, the common case while serving."""
    began_s = time.monotonic()
    names = variant.function.arg_names
    signature = {name: variant.signature.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in variant.constants.items()}
    divisible = [
        name for name, kind in variant.signature.items() if kind != "fp32" and name not in variant.unaligned
    ]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    source = ASTSource(fn=variant.function, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", capability, 32)
    try:
        made = triton.compile(source, target=target, options={"num_warps": variant.warps})
        registers, spilled = _assembled(made.asm["ptx"], capability)
    except Exception as error:  # any error is reported for this variant, and the others go on
        return Compiled(
            variant.kernel,
            variant.what,
            0,
            0,
            0,
            time.monotonic() - began_s,
            f"{type(error).__name__}: {error}",
        )
    return Compiled(
        variant.kernel, variant.what, registers, spilled, made.metadata.shared, time.monotonic() - began_s
    )


def _assembled(ptx: str, capability: int) -> tuple[int, int]:
    """Returns registers and bytes spilled (stores and loads), as reported by NVIDIA's assembler."""
    suffix = "a" if capability == 90 else ""  # as Triton does for code that needs it
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [
            knobs.nvidia.ptxas.path,
            f"-arch=sm_{capability}{suffix}",
            "-v",
            "-o",
            "/dev/null",
            file.name,
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = max(map(int, re.findall(r"Used (\d+) registers", said)))
    return registers, sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))


def verdict(found: Compiled, most_spills: int, shared_bytes: int) -> str:
    if found.error:
        return "FAIL: " + found.error.splitlines()[0]
    if found.spilled_bytes > most_spills:
        return f"FAIL: spills more than {most_spills} bytes"
    if found.shared_bytes > shared_bytes:
        return f"FAIL: more than {shared_bytes / 1024:.0f} KiB of shared memory"
    return "ok"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--capability", type=int, default=90, choices=sorted(SHARED_BYTES), help="of the GPU, times 10"
    )
    parser.add_argument(
        "--most-spills", type=int, default=MOST_SPILLS, help="bytes a thread, stores and loads"
    )
    parser.add_argument("--quick", action="store_true", help="few variants of every kernel")
    parser.add_argument("--json", type=Path, help="also write the results here")
    asked = parser.parse_args()
    asked_for = list(variants(asked.quick))
    results = []
    with tempfile.TemporaryDirectory() as directory, knobs.cache.scope():
        knobs.cache.dir = directory  # empty, so that each is compiled now
        for variant in tqdm(asked_for, "compiling"):
            found = compiled(variant, asked.capability)
            results.append((found, verdict(found, asked.most_spills, SHARED_BYTES[asked.capability])))
    print(f"{'kernel':14}{'variant':48}{'registers':>10}{'spilled B':>10}{'shared KiB':>11}{'s':>6}  verdict")
    for found, said in results:
        sizes = f"{found.registers:10}{found.spilled_bytes:10}{found.shared_bytes / 1024:11.1f}"
        numbers = f"{sizes}{found.seconds:6.1f}"
        print(f"{found.kernel:14}{found.what:48}{numbers}  {said}")
    if asked.json:
        rows = [{**asdict(found), "verdict": said} for found, said in results]
        asked.json.write_text(
            json.dumps(
                {"capability": asked.capability, "triton": triton.__version__, "kernels": rows}, indent=1
            )
        )
    return int(any(said != "ok" for _, said in results))


if __name__ == "__main__":
    sys.exit(main())
