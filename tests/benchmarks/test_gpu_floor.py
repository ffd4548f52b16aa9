"""The model of launches and bytes: what it counts is what the engine launches, and its arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_floor
from benchmarks.gpu.counts import Counted, CountedModel, Launch
from benchmarks.gpu.model import TINY
from benchmarks.gpu_floor import BETTER, GPUS

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("triton.language", reason="the package triton is not installed")

# kernels of ours that the interpreter runs in a steady step of the engine, by name
RUN = """
import collections, json, tempfile
from pathlib import Path
from triton.runtime import interpreter
from tests.support.tiny_models import Agreement, Serving, TinyModel, build, random_requests

run, names = interpreter.GridExecutor.__call__, []

def recorded(self, *args, **options):
    names.append(self.fn.__name__)
    return run(self, *args, **options)

interpreter.GridExecutor.__call__ = recorded
with tempfile.TemporaryDirectory() as directory:
    model = TinyModel(Path(directory), build("llama_grouped"), Agreement())
    model.model.save_pretrained(model.directory)
    engine = model.engine(slots=2, cuda_graphs="eager")
    launch, steps = engine.launch, []
    def launched(plan):
        first = len(names)
        launch(plan)
        launched = collections.Counter(names[first:])
        steps.append((len(plan.operations), len(plan.tokens), len(plan.slots), launched))
    engine.launch = launched
    Serving(engine).run(random_requests(2, seed=3, max_tokens=6, stop_ids=()))
steady = [names for operations, tokens, slots, names in steps if not operations and not tokens and slots == 2]
mixed = [names for operations, tokens, slots, names in steps if tokens]
print(json.dumps([steady[-1], mixed[0], model.model.config.to_dict()]))
"""


def ours(counted: Counted) -> dict[str, int]:
    names = [launch.name for launch in counted.launches if launch.kind == "ours"]
    return {name: names.count(name) for name in names}


def test_it_counts_the_kernels_that_the_engine_launches() -> None:
    """The same model in the interpreter of the Triton language, where kernels really run."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    said = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    steady, prompts, config = json.loads(said.stdout)
    shape = {name: config[name] for name in TINY}
    model = CountedModel(gpu_floor.config_of(shape), 2, 128, 20)
    assert ours(model.decode(drawn=False)) == steady
    assert ours(CountedModel(gpu_floor.config_of(shape), 1, 1024, 20).mixed()).keys() == prompts.keys()


@pytest.mark.parametrize("drawn", [False, True])
def test_a_layer_has_eight_launches_and_all_of_a_decode_step_is_captured(drawn: bool) -> None:
    """Four products, two norms, the gate and one kernel for all of attention."""
    counted = [model(layers).decode(drawn=drawn) for layers in (2, 3, 4)]
    first, second, third = (len(each.launches) for each in counted)
    assert second - first == third - second == 8
    assert any(launch.name == "_draw" for launch in counted[0].launches) == drawn
    assert all(launch.is_captured for each in counted for launch in each.launches)
    assert all(each.num_before == each.num_after == 0 for each in counted)


def test_weights_are_those_of_the_products_and_every_one_is_read_by_a_step() -> None:
    found = model(2)
    hidden, inner, head_dim = TINY["hidden_size"], TINY["intermediate_size"], 16
    attention = hidden * head_dim * (2 * TINY["num_attention_heads"] + 2 * TINY["num_key_value_heads"])
    wanted = 2 * (attention + 3 * hidden * inner) + hidden * TINY["vocab_size"]
    assert found.weight_bytes == 2 * wanted  # bfloat16
    assert sum(launch.num_bytes for launch in found.decode(drawn=False).launches) > found.weight_bytes


def test_kv_tokens_are_read_once_by_every_layer() -> None:
    """Twice the context adds KV and nothing else."""
    short, long = (
        sum(launch.num_bytes for launch in model(2, tokens).decode(drawn=False).launches)
        for tokens in (512, 1024)
    )
    kv = gpu_floor.kv_token_bytes(gpu_floor.config_of(TINY))
    assert long - short == 3 * 512 * kv


def test_a_step_takes_the_longer_of_host_and_device() -> None:
    gpu, reads = GPUS[0], Launch("mul", "torch", round(1e-3 * GPUS[0].bandwidth), is_captured=True)
    step = Counted((reads,) * 2, 0, 0, 1)
    assert gpu_floor.step_s(step, gpu, BETTER) == pytest.approx(2e-3 + 2 * BETTER.kernel_s)
    small = Counted((Launch("mul", "torch", 0),) * 100, 0, 0, 0)
    assert gpu_floor.step_s(small, gpu, BETTER) == pytest.approx(100 * BETTER.torch_s)


def test_the_gap_is_what_stands_between_the_marks_of_two_steps() -> None:
    gpu, launch = GPUS[0], Launch("mul", "torch", 0)
    plain, mixed = Counted((launch,) * 9, 0, 0, 2), Counted((launch,) * 9, 3, 4, 0)
    gaps = gpu_floor.gaps_s((plain, mixed), gpu, BETTER)
    kernels = [round(seconds / BETTER.kernel_s) - 1 for _, seconds in gaps]
    assert kernels == [0, 3, 4, 7]
    assert gpu_floor.quantile(gaps, 0.5) == pytest.approx(BETTER.kernel_s)
    assert gpu_floor.quantile(gaps, 0.99) == pytest.approx(8 * BETTER.kernel_s)


def test_the_script_prints_its_table_last_and_says_what_it_assumed(tmp_path: Path) -> None:
    path = tmp_path / "floor.json"
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_floor", "--quick", "--json", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result: dict[str, Any] = json.loads(path.read_text())
    assert [row["step"] for row in result["rows"]] == ["greedy", "drawn", "mixed"]
    assert result["assumed"]["better"]["kernel_s"] < result["assumed"]["worse"]["kernel_s"]
    assert said.stdout.splitlines()[-1].startswith("| tiny | 4 | mixed |")


def model(layers: int, tokens: int = 512) -> CountedModel:
    return CountedModel(gpu_floor.config_of(TINY | {"num_hidden_layers": layers}), 3, 2048, tokens)
