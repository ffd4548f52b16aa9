"""What the torch engine asks of a GPU before it serves on it, without one:
which device, kernels or not, how much memory.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.engine.device import take_device
from python_backends.engine.kv.kv_memory import SHARE
from python_backends.engine.largest_steps import largest_steps, prompt_lengths
from python_backends.engine.model.limits import block_shape
from python_backends.engine.model.loading import facts_of
from python_backends.engine.slots.slot_state import Choice
from python_backends.engine.step_timer import cuda_timer
from python_backends.engine.torch import engine as torch_engine
from python_backends.engine.torch import kernel_trial
from python_backends.engine.torch.engine import TorchEngine, uses_kernels
from python_backends.engine.torch.kernel_trial import kernel_obstacle
from python_backends.engine.torch.step_launcher import LaunchedStep, StepLauncher
from python_backends.nouns.request import MAX_STOP_WORDS, ModelLimits
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, SettingsError
from tests.support.tiny_models import Serving, TinyModel, random_requests

GPU = torch.device("cuda", 1)
WRITE_KERNEL = "python_backends.engine.slots.write_kernel"


def test_a_numbered_gpu_is_the_current_one_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert [take_device(name) for name in ("cuda:1", "cuda")] == [GPU, torch.device("cuda", 0)]
    assert taken == [1, 0]


def test_the_engine_takes_its_gpu_before_anything_else_touches_one(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)

    def touched(*_: Any) -> None:
        raise InterruptedError(taken)

    monkeypatch.setattr(torch_engine, "kernel_obstacle", touched)
    monkeypatch.setattr(torch_engine, "open_weights", touched)
    monkeypatch.setattr(torch_engine, "device_memory", touched)
    with pytest.raises(InterruptedError) as first:
        one.engine(device="cuda:1")
    assert first.value.args == ([1],)


@pytest.mark.parametrize("name", ["cuda:2", "cuda:7", "mps", "card"])
def test_a_device_that_is_not_there_is_refused_by_name(
    one: TinyModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SettingsError, match=rf"model.device = '{name}'"):
        one.engine(device=name)


@pytest.mark.parametrize(
    ("version", "says"), [(None, "DEVICE=cuda build/set-up"), ("12.8", "0 GPUs .* a driver for CUDA 12.8")]
)
def test_where_there_is_no_gpu_the_error_says_what_is_missing(
    version: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingsError, match=says):
        take_device("cuda")


def test_the_marks_of_a_step_are_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            pass

        def record(self, stream: Any = "of device 0") -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"of {device}")
    timer = cuda_timer(GPU)
    timer.begin()
    timer.end()
    assert recorded == ["of cuda:1", "of cuda:1"]


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with the package triton, on which the language fails as it does where there is no C compiler."""

    def write(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")

    kernel = ModuleType(WRITE_KERNEL)
    kernel.write = write  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, WRITE_KERNEL, kernel)
    zeros = torch.zeros
    monkeypatch.setattr(
        kernel_trial.torch, "zeros", lambda *sizes, **how: zeros(*sizes, **how | {"device": "cpu"})
    )
    tensor = torch.tensor
    monkeypatch.setattr(
        kernel_trial.torch, "tensor", lambda values, **how: tensor(values, **how | {"device": "cpu"})
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(kernel_trial.sysconfig, "get_paths", lambda: {"include": "/nowhere"})


@pytest.mark.usefixtures("without_compiler")
def test_without_a_c_compiler_no_kernels_run_and_the_reason_names_what_is_missing() -> None:
    reason = kernel_obstacle(GPU)
    assert "Failed to find C compiler" in reason
    assert "there is no C compiler (gcc, clang or the one that CC names)" in reason
    assert "there is no /nowhere/Python.h" in reason


@pytest.mark.usefixtures("without_compiler")
def test_the_engine_goes_on_without_kernels_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gapless.instance"):
        assert not uses_kernels("auto", GPU)
    assert "no kernels of ours" in caplog.text
    assert "there is no C compiler" in caplog.text


def test_without_the_package_triton_no_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert kernel_obstacle(GPU) == "the package triton is not installed"


# --- memory


class FakeMemory:
    """A GPU with so many bytes free, on which every step takes the same."""

    def __init__(self, free: int, step: int) -> None:
        self.free, self.step = free, step

    def give_back(self) -> int:
        return self.free

    def peak_of(self, work: Callable[[], None]) -> int:
        work()
        return self.step


def _with_memory(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch, free: int, step: int, **engine: Any
) -> TorchEngine:
    monkeypatch.setattr(torch_engine, "device_memory", lambda _: FakeMemory(free, step))
    return one.engine(**engine)


def _block_bytes(one: TinyModel) -> int:
    settings = one.settings()
    return block_shape(settings, facts_of(settings)).num_bytes


def test_kv_blocks_are_what_the_device_has_free_beside_two_of_the_largest_steps(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, step = _block_bytes(one), 1 << 20
    engine = _with_memory(one, monkeypatch, int(100 * size / SHARE) + int(2 * step / SHARE), step)
    # torch's operators gather the blocks of one of three layers, twice at most: a block costs 5 / 3 of its
    # size; one is for padding
    assert 58 <= engine.limits.num_blocks <= 59
    assert engine.cache.blocks.shape[0] == engine.limits.num_blocks + 1
    assert engine.state.table.shape[1] == -(-engine.limits.max_model_tokens // engine.limits.block_tokens)
    requests = random_requests(5)
    for number, answer in Serving(engine).run(requests).items():
        one.check(requests[number], answer)


def test_a_large_device_gives_twice_what_all_slots_can_use_and_no_more(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _with_memory(one, monkeypatch, 1 << 40, 1 << 20, slots=2)
    assert engine.limits.num_blocks == 2 * 2 * 384 // 8


@pytest.mark.parametrize("chosen", [{"kv_blocks": 77}, {"kv_memory_gib": 0.001}])
def test_what_is_set_is_not_measured(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    engine = _with_memory(one, monkeypatch, 1 << 40, 1 << 20, **chosen)
    assert engine.limits.num_blocks == chosen.get("kv_blocks", int(0.001 * 2**30) // _block_bytes(one))


def test_a_device_without_memory_for_blocks_is_refused_with_the_numbers(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        SettingsError, match=r"1\.00 GiB are free, a step takes up to 2\.00 GiB, 0\.00 GiB may hold KV blocks"
    ):
        _with_memory(one, monkeypatch, 1 << 30, 2 << 30)


def test_a_wanted_length_is_compared_with_what_was_measured_alone(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineSettings, "kv_bytes", _block_bytes(one))
    engine = _with_memory(one, monkeypatch, 1 << 30, 0, max_model_tokens=384)
    assert engine.limits.max_model_tokens == 384


def test_a_wanted_length_that_does_not_fit_is_refused(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        SettingsError, match=r"max_model_tokens = 384: only .* tokens fit what the device has free"
    ):
        _with_memory(one, monkeypatch, 20 * _block_bytes(one), 0, max_model_tokens=384)


def test_a_step_that_does_not_fit_is_found_at_the_start(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = TorchEngine.launch

    def launched(self: TorchEngine, plan: StepPlan) -> None:
        if plan.num_decodes == 4:
            raise torch.OutOfMemoryError("2.00 GiB are wanted, 1.00 GiB is free")
        launch(self, plan)

    monkeypatch.setattr(TorchEngine, "launch", launched)
    says = r"draws for 4 slots, does not fit next to the weights and 50 KV blocks: 2.00 GiB are wanted"
    with pytest.raises(SettingsError, match=says):
        _with_memory(one, monkeypatch, 1 << 30, 0, kv_blocks=50)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("describe", "model.directory, model.weights or .*: the weights do not fit"),
        ("Decoder", "model.directory, model.weights or .*: the weights do not fit"),
        ("StepLauncher.fix_shapes", "engine.slots or engine.token_budget: steps of up to 512 tokens"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_what_to_change(
    one: TinyModel, place: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("2.00 GiB are wanted")

    monkeypatch.setattr(f"{torch_engine.__name__}.{place}", full)
    with pytest.raises(SettingsError, match=rf"{says}.*: 2\.00 GiB are wanted"):
        one.engine(cuda_graphs="eager")


def test_the_largest_steps_are_as_large_as_the_slot_scheduler_plans_them(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more slots than `engine.token_budget`, steps have all decodes and a token of a chunk."""
    launch, fix_shapes, told = TorchEngine.launch, StepLauncher.fix_shapes, list[int]()

    def launched(self: TorchEngine, plan: StepPlan) -> None:
        told.append(len(plan.tokens))
        launch(self, plan)

    def fixed(self: StepLauncher, capture: Any, token_budget: int) -> None:
        told.append(token_budget)
        fix_shapes(self, capture, token_budget)

    monkeypatch.setattr(TorchEngine, "launch", launched)
    monkeypatch.setattr(StepLauncher, "fix_shapes", fixed)
    engine = _with_memory(one, monkeypatch, 1 << 30, 0, token_budget=2, cuda_graphs="eager")
    assert SlotScheduler(engine.limits, 2).token_budget == 5
    assert told == [5, 0, 0, 5, 5, 0, 0]  # measured, fixed, tried


def test_on_a_cpu_nothing_is_measured_and_blocks_have_a_gibibyte(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        TorchEngine, "_run_largest_steps", lambda *_: pytest.fail("nothing is run at the start")
    )
    assert one.settings().engine.kv_bytes == 2**30
    assert one.engine().limits.num_blocks == 2 * 4 * 384 // 8


@pytest.mark.parametrize(
    ("slots", "budget", "most", "lengths"),
    [(4, 10, 100, [3, 3, 2, 2]), (4, 3, 100, [1, 1, 1]), (2, 512, 9, [8, 8]), (1, 5, 2, [1])],
)
def test_the_largest_step_has_as_many_tokens_as_any(
    slots: int, budget: int, most: int, lengths: list[int]
) -> None:
    limits = ModelLimits(most, 100, slots, 1, 4)
    assert prompt_lengths(limits, budget).tolist() == lengths
    prompts, decodes, release = largest_steps(limits, budget, most)
    assert prompts.num_tokens == len(prompts.tokens) == sum(lengths)
    assert (decodes.num_decodes, set(decodes.starts.tolist())) == (slots, {most - 2})
    assert (release.num_tokens, len(release.operations)) == (0, slots)


def test_after_the_largest_steps_requests_are_answered_as_ever(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that can be asked for is asked for in them, and nothing of it is left."""
    engine = _with_memory(one, monkeypatch, 1 << 30, 0, cuda_graphs="eager")
    asked: list[bool] = []
    launch = TorchEngine.launch

    def launched(self: TorchEngine, plan: StepPlan) -> None:
        launch(self, plan)
        asked.append(self.state.choice(plan.slots) is not Choice.GREEDY)

    monkeypatch.setattr(TorchEngine, "launch", launched)
    requests = random_requests(6)
    for number, answer in Serving(engine).run(requests).items():
        one.check(requests[number], answer)
    assert asked
    assert not any(asked)


def test_a_step_of_which_no_row_samples_comes_to_the_host_like_all_others(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of a chunk in the middle of a prompt is empty, and lies on the device."""
    engine, requests = one.engine(), [random_requests(1)[0].changed(prompt=np.arange(60, dtype=np.int32))]
    choose, there = engine._launcher._choose, dict[int, torch.Tensor]()

    def on_the_device(*args: Any) -> LaunchedStep:
        step = choose(*args)
        placed = step.result.to("meta")  # refuses .numpy() as a GPU's tensor does
        there[id(placed)] = step.result
        return replace(step, result=placed)

    monkeypatch.setattr(engine._launcher, "_choose", on_the_device)
    monkeypatch.setattr(torch_engine, "_sent", lambda step: replace(step, result=there.pop(id(step.result))))
    monkeypatch.setattr(engine, "device", GPU)
    answers = Serving(engine, token_budget=24).run(requests)
    one.check(requests[0], answers[requests[0].request_id])


# --- stop ids


def test_the_table_of_stop_ids_stays_the_same_whatever_requests_bring(one: TinyModel) -> None:
    """Captured steps read it where it was when they were captured."""
    engine = one.engine(cuda_graphs="eager")
    before = engine.state.stop_ids
    most = MAX_STOP_WORDS + 1
    Serving(engine).run(random_requests(3, stop_ids=tuple(range(100, 100 + most)), max_tokens=4))
    assert engine.state.stop_ids is before
    assert before.shape[1] >= most


def test_stop_ids_of_the_checkpoint_have_their_place_beside_those_of_requests(
    one: TinyModel, tmp_path: Any
) -> None:
    one.model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2, 3, 4, 5, 6, 7, 8]}')
    settings = replace(
        one.settings(cuda_graphs="eager"), model=replace(one.settings().model, directory=str(tmp_path))
    )
    engine = TorchEngine(settings)
    assert engine.state.stop_ids.shape[1] >= MAX_STOP_WORDS + 1 + 8
    assert np.all(engine.state.stop_ids.numpy() == -1)
