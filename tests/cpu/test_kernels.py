"""Our kernels beside torch's operators, in the interpreter of the Triton language, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "the package triton is not installed: build/set-up dev kernels brings it (700 MB)"
CASES = """
import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu.kernels import WINDOWS_AND_CAPS
from python_backends.engine.model.description import Heads
from python_backends.engine.torch.paged_parts import divided, extra_parts

for number, (window, softcap) in enumerate(WINDOWS_AND_CAPS):
    heads = (Heads(4, 2, 16, 0.25), Heads(6, 1, 24, 0.2))[number % 2]
    error = gpu_kernels.attention_error(heads, window, softcap, torch.float32, "cpu")
    assert error < 1e-5, (heads, window, softcap, error)
dot = InterpreterBuilder.create_dot

def widened(handle):  # the interpreter multiplies the bits of bfloat16
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
assert gpu_kernels.attention_error(Heads(4, 2, 16, 0.25), 16, 8.0, torch.bfloat16, "cpu") < 0.02
for width in (64, 1100):
    for dtype, allowed in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):  # the interpreter truncates
        assert max(gpu_kernels.int8_errors(dtype, "cpu")) < allowed, dtype
        assert max(gpu_kernels.expert_errors(dtype, "cpu")) < allowed, dtype
        errors = [case() for case in gpu_kernels.fused_errors(width, dtype, "cpu")]
        assert max(errors) < allowed, (width, dtype, errors)
for lengths in ([1], [7, 64, 65], [40_000] + [200] * 63, [100] * 256):
    positions = torch.tensor(lengths) - 1
    for window, seen in ((None, lengths), (128, [min(length, 128) for length in lengths])):
        parts = divided(positions, len(lengths), 257, window, Heads(8, 4, 16, 0.25))
        extra = extra_parts(len(lengths), 4)
        most = -(-sum(seen) // extra // 64) * 64 + 64
        used = [item for item in parts.items.tolist() if item[4]]
        assert len(parts.items) == len(lengths) + extra
        for row, (length, count) in enumerate(zip(lengths, seen)):
            mine = [item for item in used if item[0] == row]
            ends = [item[2] for item in mine]
            assert [item[1] for item in mine] == [length - count, *ends[:-1]]
            assert ends[-1] == length and all(0 < item[2] - item[1] <= most for item in mine)
            assert {(item[3], item[4]) for item in mine} == {(used.index(mine[0]), len(mine))}
        assert not parts.arrived.any()
        if lengths[0] == 40_000 and window is None:  # a long row is divided in a batch of any size
            assert used[0][4] > 50 and used[-1][4] == 1
assert gpu_kernels.tokens_drawn_otherwise(1000, "cpu") == 0
assert gpu_kernels.slots_written_otherwise("cpu") == 0
print("equal")
"""
ENGINE = """
import tempfile
from pathlib import Path
from tests.support.tiny_models import Agreement, Serving, TinyModel, build, random_requests
from python_backends.engine.torch.kernel_trial import kernel_obstacle

with tempfile.TemporaryDirectory() as directory:
    for name in ("qwen3_moe", "gemma2", "gpt_neox", "gpt2", "llama_grouped"):
        model = TinyModel(Path(directory) / name, build(name), Agreement())
        model.model.save_pretrained(model.directory)
        requests = random_requests(2, seed=24, max_tokens=3)  # short prompts, one of them in two chunks
        engine = model.engine(slots=2, cuda_graphs="eager")
        assert not kernel_obstacle(engine.device)
        launcher, flat = engine._launcher, []
        launcher._flat = lambda plan, run=launcher._flat: (flat.append(plan), run(plan))[1]
        serving = Serving(engine)
        answers = dict(serving.run(requests))
        assert not flat  # steps with prompts had a fixed shape
        for request_id, answer in answers.items():
            model.check(requests[request_id], answer)
    # the last model once more, as a step runs that no fixed shape holds
    launcher.mixed_steps = None
    other = Serving(engine)
    assert dict(other.run(requests)) == answers and flat
    assert sorted(other.states) == sorted(serving.states) == [(0, 0), (1, 0)]
    for place, state in other.states.items():
        assert abs(serving.states[place] - state).max() < 1e-4 * abs(state).max()
    # the last model again: rows that draw, alone and next to greedy ones, by our kernel and by torch
    asked = dict(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, max_tokens=4)
    drawn, plain = random_requests(3, seed=24, **asked), random_requests(1, seed=23, max_tokens=3)[0]
    requests = [*drawn[:2], plain.changed(request_id=2), drawn[2].changed(request_id=3)]
    bias = tuple((token, float(token % 5 - 2)) for token in range(0, 512, 3))
    requests[1:3] = [each.changed(sampling=each.sampling.changed(logit_bias=bias)) for each in requests[1:3]]
    engines = [model.engine(slots=2, cuda_graphs=how) for how in ("eager", "off")]
    answers = [Serving(each).run(requests) for each in engines]
    assert answers[0] == answers[1], answers
print("equal")
"""

SCORED = """
import tempfile
from pathlib import Path
from tests.cpu.test_prompt_log_probs import asking, check_all
from tests.support.tiny_models import Agreement, TinyModel, build, random_requests

with tempfile.TemporaryDirectory() as directory:
    model = TinyModel(Path(directory), build("llama_grouped"), Agreement())
    model.model.save_pretrained(model.directory)
    engine = model.engine(slots=3, cuda_graphs="eager")
    assert engine._launcher.mixed_steps is not None
    check_all(model, engine, asking(random_requests(4, seed=24, max_tokens=3)), token_budget=20)
print("equal")
"""

FIRST_STEPS = """
import tempfile
from pathlib import Path
from triton.runtime import interpreter
from python_backends.engine.torch import fused_kernels, paged_attention, paged_chunks, paged_parts
from python_backends.engine.slots import draw_kernel, token_kernels, write_kernel
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.instance.warm_up import warm_up
from tests.support.tiny_models import Agreement, TinyModel, build

run, names = interpreter.GridExecutor.__call__, set()
interpreter.GridExecutor.__call__ = lambda self, *args, **options: (names.add(self.fn.__name__), run(self, *args, **options))[1]
with tempfile.TemporaryDirectory() as directory:
    model = TinyModel(Path(directory), build("llama_grouped"), Agreement())
    model.model.save_pretrained(model.directory)
    engine = model.engine(slots=2, cuda_graphs="eager")
    warm_up(engine, SlotScheduler(engine.limits))
modules = (fused_kernels, paged_attention, paged_chunks, paged_parts, draw_kernel, token_kernels, write_kernel)
defined = {name for each in modules for name, value in vars(each).items() if isinstance(value, interpreter.InterpretedFunction)}
parts = {"_turned", "capped", "_joined"}  # of others
parts |= {"_greatest", "_weights", "_mass", "_least", "_winner", "_noise", "_exponential", "_mixed"}
assert names == defined - parts, (names, defined)
print("all")
"""

SERVING = """
import tempfile
import torch
from pathlib import Path
from triton.backends.compiler import BaseBackend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature
from benchmarks.gpu import kernels as gpu_kernels
from python_backends.engine.model.description import Heads
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.instance.warm_up import warm_up
from tests.support.tiny_models import Agreement, Serving, TinyModel, build, random_requests

run, variants, launched = InterpretedFunction.run, set(), []

def recorded(self, *args, grid, warmup, **options):
    jit = JITFunction(self.fn, **{name: self.kwargs[name] for name in ("do_not_specialize", "do_not_specialize_on_alignment")})
    values = {name: value for name, value in options.items() if name in self.arg_names}
    _, specialised, _ = create_function_from_signature(jit.signature, jit.params, BaseBackend)(*args, **values)
    variants.add((self.fn.__name__, *map(str, specialised)))
    launched.append(self.fn.__name__)
    return run(self, *args, grid=grid, warmup=warmup, **options)

InterpretedFunction.run = recorded
with tempfile.TemporaryDirectory() as directory:
    model = TinyModel(Path(directory), build("llama_grouped"), Agreement())
    model.model.save_pretrained(model.directory)
    engine = model.engine(slots=3, cuda_graphs="eager")
    warm_up(engine, SlotScheduler(engine.limits, token_budget=24))
    known, before = set(variants), len(launched)
    asked = dict(temperature=1.0, top_k=9, top_p=0.9, min_p=0.01, log_probs=True, max_tokens=2)
    mixed = random_requests(3, seed=5, **asked) + random_requests(2, seed=23, max_tokens=2, stop_ids=(1, 2, 3))
    Serving(engine, token_budget=24).run([request.changed(request_id=number) for number, request in enumerate(mixed)])
    assert len(launched) > before + 100
    assert variants == known, variants - known
# kernels whose number of rows or first row changes from step to step, for numbers of heads that divide nothing by 16
heads = Heads(3, 1, 12, 0.3)
variants.clear()
for rows in (1, 2, 5):
    gpu_kernels.attention_error(heads, None, None, torch.float32, "cpu", rows)
names = [each[0] for each in variants]
assert {"_attend_part", "_attend_chunk", "_place", "_last_tokens"} < set(names)
assert len(names) == len(set(names)) + 1, variants  # _divide: as many rows as there are slots
print("none")
"""

COMPILED = """
import collections, tempfile
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from benchmarks.gpu.counts import CountedModel
from benchmarks.gpu_floor import config_of
from benchmarks.gpu.model import TINY

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = get_current_stream = staticmethod(lambda *_: 0)

driver.set_active(Hopper())
run, made = JITFunction.run, collections.defaultdict(set)

def compiled(kernel, *args, grid, **options):
    made[kernel.fn.__name__].add(run(kernel, *args, grid=grid, warmup=True, **options).hash)

with tempfile.TemporaryDirectory() as directory, knobs.cache.scope():
    knobs.cache.dir = directory
    model = CountedModel(config_of(TINY | {"vocab_size": 4000}), 24, 2048, 512, compiled)
    for drawn in (False, True):
        model.decode(drawn)
    model.mixed()
assert len(made) == 10, made
print({len(each) for each in made.values()})
"""


@pytest.mark.parametrize(
    "code",
    [CASES, ENGINE, SCORED],
    ids=["beside torch's operators", "in the engine beside transformers", "where prompts are scored"],
)
def test_the_kernels_compute_what_torch_does(code: str) -> None:
    """Grouped heads, scattered blocks, lengths from one token on, windows,
    capped scores; then whole steps, mixed and padded.
    """
    assert interpreted(code) == "equal\n"


def test_no_kernel_is_left_to_be_compiled_under_the_first_prompt() -> None:
    assert interpreted(FIRST_STEPS) == "all\n"


def test_requests_launch_no_kernel_in_a_variant_that_the_first_steps_did_not() -> None:
    """The language compiles a kernel again where a pointer is otherwise
    aligned, or a number is 1 or divisible by 16.
    """
    assert interpreted(SERVING) == "none\n"


def test_steps_of_any_number_of_rows_compile_one_variant_of_each_kernel_for_a_gpu() -> None:
    """By the way of a launch itself, for a GPU that is not here: six buckets, steps that draw, and mixed ones."""
    pytest.importorskip("triton.language", reason=WITHOUT)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILED]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout == "{1}\n"


def interpreted(code: str) -> str:
    """What `code` prints where kernels run in the interpreter."""
    pytest.importorskip("triton.language", reason=WITHOUT)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert said.returncode == 0, said.stderr
    return said.stdout
