"""LoRA training next to decoding on one device: our trainer alone and PEFT's, decodes of 8 and 64 slots with
training in their slack, and decodes with adapters. Called by `gpu`.

Training and decodes share one stream: pieces of training stand between two steps, as on a CPU. A second
stream with a low priority is not there to be measured. Steps are neither captured nor computed by our
kernels, because the engine does not train with these yet.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.common.clients import Clients, jobs_of, requests_of
from benchmarks.common.finetuning_trainers import ADAPTER, SEED, PeftTrainer, random_examples
from benchmarks.coserving.counts import Counts, counted
from benchmarks.coserving.requests import NONE, OpenLoop
from benchmarks.coserving.specs import BATCH_SIZE, endless_job
from benchmarks.gpu.model import Measured
from benchmarks.gpu.report import Figure, LeftOutError
from python_backends.engine.device import take_device
from python_backends.engine.torch.adapters import peft_files
from python_backends.engine.torch.engine import TorchEngine
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.pieces import Kind
from python_backends.finetuning.trainer import Files, Trainer
from python_backends.instance.build import build_training, spare_time
from python_backends.instance.loop import Instance, Parts
from python_backends.instance.spare_time import SpareTime
from python_backends.instance.warm_up import warm_up
from python_backends.nouns.request import AdapterVersion, Request, Sampling
from python_backends.nouns.training import Keep
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import TRAINS, SchedulingSettings

PACK_TOKENS, CONTEXT_TOKENS = 2048, 512
SLOTS, SLOS_MS, NUM_ADAPTERS = (8, 64), (45.0, 20.0), (0, 1, 8)
LEAST_OF_PEFT = {8: 0.8, 64: 0.5}
ALONE_S, IDLE_S, DECODES = 3.0, 2.0, 192


class Amount:
    """Sizes of the measurements: those of the model, or the smallest that run at all."""

    def __init__(self, quick: bool) -> None:
        self.pack_tokens, self.context = (64, 16) if quick else (PACK_TOKENS, CONTEXT_TOKENS)
        self.slots = (1, 4) if quick else SLOTS
        self.most_slots = 32 if quick else SLOTS[-1]
        self.slos_ms = (200.0,) if quick else SLOS_MS
        self.num_adapters = (0, 2) if quick else NUM_ADAPTERS
        self.alone_s, self.idle_s, self.decodes = (0.5, 0.5, 8) if quick else (ALONE_S, IDLE_S, DECODES)
        self.lengths = [self.pack_tokens // BATCH_SIZE] * 64


def finetune(measured: Measured) -> Iterator[Figure]:
    part = Part(measured)
    peft_tok_s = part.peft_alone()
    if peft_tok_s is not None:
        yield Figure("finetune", "PEFT alone", peft_tok_s, "tokens/s", note=f"packs of {part.pack_tokens}")
    part.build_engine()
    for keep in Keep:
        yield Figure("finetune", f"ours alone, keep = {keep}", part.alone(keep), "tokens/s")
    for slots in part.amount.slots:
        for slo_ms in part.amount.slos_ms:
            yield from part.decodes_with_training(slots, slo_ms, peft_tok_s)
    yield from part.decodes_with_adapters()


class Pieces:
    """The times of all pieces that trainers do, by their kind. Made once."""

    def __init__(self) -> None:
        self._seconds: dict[Kind, list[float]] = defaultdict(list)
        do = Trainer.do

        def timed(trainer: Trainer, tokens: int) -> None:
            kind, began_s = trainer.piece.kind, time.perf_counter()
            do(trainer, tokens)
            trainer.wait()
            self._seconds[kind].append(time.perf_counter() - began_s)

        mock.patch.object(Trainer, "do", timed).start()

    def take(self) -> str:
        """Of those since the last time: how many, and the median and the longest in milliseconds."""
        told = [
            f"{len(seconds)} {kind} {np.median(seconds) * 1e3:.2g} to {max(seconds) * 1e3:.2g} ms"
            for kind, seconds in self._seconds.items()
        ]
        self._seconds.clear()
        return "pieces: " + (", ".join(told) or "none")


class Part:
    def __init__(self, measured: Measured) -> None:
        self._measured, self.amount = measured, Amount(measured.quick)
        self.pack_tokens = self.amount.pack_tokens
        tokens = max(2 * self.amount.context, self.pack_tokens // BATCH_SIZE)
        self._settings = replace(measured, cuda_graphs="off").settings(
            self.amount.most_slots, tokens, 16 * self.amount.context
        )
        self._counts: Counts = counted(int(measured.shape["num_hidden_layers"]))
        self._pieces = Pieces()

    def peft_alone(self) -> float | None:
        """Trained tokens a second; None without PEFT."""
        with contextlib.suppress(ImportError):
            model = self._transformers_model()
            trainer = PeftTrainer(model, batched=True, float32_adapter=True)
            examples = random_examples(self.amount.lengths, 1.0, self._measured.vocabulary)
            found = self._peft_speed(trainer, examples)
            del model, trainer
            self._give_back()
            return found
        return None

    def _transformers_model(self) -> Any:
        """With random weights, as ours."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(self._settings.model_directory)
        torch.manual_seed(0)
        with take_device(self._measured.device):
            dtype = getattr(torch, self._settings.model.dtype)
            return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()

    def build_engine(self) -> None:
        """Raises LeftOutError if it trains nothing."""
        self._engine = TorchEngine(self._settings)
        if not self._engine.can_train:
            raise LeftOutError(TRAINS)
        self._new_adapter = self._engine.start_training()
        # a server knows the times of its steps before requests come
        self._step_times = warm_up(self._engine, SlotScheduler(self._engine.limits))

    def alone(self, keep: Keep) -> float:
        """Trained tokens a second of our trainer, with blocks of the engine."""
        scheduler = SlotScheduler(self._engine.limits)
        adapter = self._new_adapter(ADAPTER, SEED)
        with tempfile.TemporaryDirectory() as directory:
            job = endless_job(Path(directory), self.amount.lengths, self._measured.vocabulary)
            memory = PackMemory(adapter, scheduler.blocks, self.pack_tokens, [keep])
            files = Files(ThreadPoolExecutor(1))
            trainer = Trainer(job, adapter, memory, files)
            trainer.begin()
            for seconds in (self.amount.alone_s / 4, self.amount.alone_s):  # the first is the warm-up
                self._counts.take()
                began_s, before = time.perf_counter(), len(job.losses)
                while time.perf_counter() < began_s + seconds or len(job.losses) == before:
                    trainer.do(self.pack_tokens)
                self._synchronize()
                rate = self._counts.take().rates(began_s, time.perf_counter())[1]
            files.writer.shutdown()
        return rate

    def decodes_with_training(self, slots: int, slo_ms: float, peft_tok_s: float | None) -> Iterator[Figure]:
        """All slots decode, and a job is trained in their slack."""
        scheduler = SlotScheduler(self._engine.limits, self._settings.engine.token_budget)
        scheduler.outlook.step_time.learn(*self._step_times)
        context = self.amount.context
        asked = jobs_of(slots, self._measured.vocabulary, (context, context), (self.amount.decodes,) * 2)
        clients = Clients(requests_of(asked), [0.0] * slots)
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            spare = self._spare_time(scheduler, Path(directory), slo_ms, stack)
            self._turn(scheduler, spare, OpenLoop(NONE), time.perf_counter() + self.amount.idle_s)
            self._counts.take()
            self._pieces.take()
            self._turn(scheduler, spare, clients, float("inf"))
            marks, pieces = self._counts.take(), self._pieces.take()
            spare.close()
        begin_s = max(each.tokens[0] for each in clients.timings)
        end_s = min(each.ended for each in clients.timings)
        # while all slots decode: no prompt stands in these steps
        during = [[at for at in each.tokens if begin_s <= at <= end_s] for each in clients.timings]
        gaps_s = np.concatenate([np.diff(each) for each in during])
        trained = marks.rates(begin_s, end_s)[1]
        what = f"decodes of {slots} slots, SLO {slo_ms:g} ms"
        wanted, note = "", pieces
        if peft_tok_s is not None:
            note = f"{trained / peft_tok_s:.2f} of PEFT; {pieces}"
            wanted = f">= {LEAST_OF_PEFT.get(slots, 0) * peft_tok_s:.0f}"
        yield Figure(
            "finetune", f"{what}: trained", trained, "tokens/s", "" if self._measured.quick else wanted, note
        )
        p99_ms = float(np.percentile(gaps_s, 99)) * 1e3
        wanted = "" if self._measured.quick else f"<= {slo_ms:g}"
        plain_ms = float(np.median(gaps_s)) * 1e3
        note = (
            f"median {plain_ms:.4g} ms; a step expected to take {self._expected_ms(scheduler, slots):.4g} ms"
        )
        yield Figure("finetune", f"{what}: P99 between tokens", p99_ms, "ms", wanted, note)

    def _expected_ms(self, scheduler: SlotScheduler, slots: int) -> float:
        """In which all decode, by the times of the steps so far."""
        tokens = slots * (self.amount.context + self.amount.decodes)
        return 1e3 * scheduler.outlook.step_time.seconds(slots, tokens)

    def _spare_time(
        self, scheduler: SlotScheduler, directory: Path, slo_ms: float, stack: ExitStack
    ) -> SpareTime:
        job = endless_job(directory, self.amount.lengths, self._measured.vocabulary)
        scheduling = SchedulingSettings(late_token_ms=slo_ms)
        settings = replace(self._settings, scheduling=scheduling)
        training = build_training(settings, self._engine, scheduler)
        assert training is not None
        lock = stack.enter_context(ExitStack())
        lock.enter_context(job.locked())
        training.offer(job, lock)
        return spare_time(settings, training)

    def _turn(self, scheduler: SlotScheduler, spare: SpareTime, clients: Clients, until_s: float) -> None:
        """Until then, or until all requests are answered."""
        instance = Instance(scheduler, self._engine, clients, lambda _: None, parts=Parts(spare_time=spare))
        while time.perf_counter() < until_s and (until_s < float("inf") or not clients.is_done):
            instance.turn()

    def decodes_with_adapters(self) -> Iterator[Figure]:
        """The time of a step with so many adapters, compared with none."""
        slots, without_s = self.amount.slots[-1], 0.0
        for count in self.amount.num_adapters:
            step_s = self._step_s(slots, count)
            without_s = without_s or step_s
            wanted = "" if self._measured.quick or not count else "<= 1.1"
            what = f"decode step of {slots} slots with {count} adapters, of one without"
            yield Figure("finetune", what, step_s / without_s, "", wanted, f"{step_s * 1e3:.3f} ms")

    def _step_s(self, slots: int, num_adapters: int) -> float:
        scheduler = SlotScheduler(self._engine.limits, self._settings.engine.token_budget)
        scheduler.adapters.serve()
        versions = [self._installed(scheduler, number) for number in range(num_adapters)]
        prompts = np.random.default_rng(0).integers(
            0, self._measured.vocabulary, (slots, self.amount.context), np.int32
        )
        for number, prompt in enumerate(prompts):
            adapter = versions[number % num_adapters] if versions else AdapterVersion()
            request = Request(number, prompt, Sampling(max_tokens=self.amount.decodes), adapter=adapter)
            scheduler.submit(request, np.zeros(0, np.int32))
        times_s = []
        while (plan := scheduler.plan()) is not None:
            began_s = time.perf_counter()
            self._engine.launch(plan)
            scheduler.apply(plan, self._engine.collect())
            if len(plan.slots) == slots == plan.num_decodes and not len(plan.tokens):
                times_s.append(time.perf_counter() - began_s)
        for version in versions:
            self._engine.drop_adapter(version.digest)
        return float(np.median(times_s[2:]))

    def _installed(self, scheduler: SlotScheduler, number: int) -> AdapterVersion:
        """An adapter of random weights."""
        with tempfile.TemporaryDirectory() as made:
            weights: dict[str, Any] = self._new_adapter(ADAPTER, number).weights
            peft_files.write(Path(made), weights, ADAPTER, "random")
            adapter = self._engine.read_adapter(Path(made), Path(made))
        self._engine.install_adapter(adapter.digest, adapter.weights)
        scheduler.adapters.add(adapter.digest)
        return AdapterVersion(f"random-{number}", "1", adapter.digest)

    def _peft_speed(self, trainer: PeftTrainer, examples: Any) -> float:
        trainer.train(examples, BATCH_SIZE, 1, self._synchronize)
        began_s, steps = time.perf_counter(), 0
        while time.perf_counter() < began_s + self.amount.alone_s:
            trainer.train(examples, BATCH_SIZE, 1, self._synchronize)
            steps += 1
        return steps * self.pack_tokens / (time.perf_counter() - began_s)

    def _synchronize(self) -> None:
        if self._measured.device != "cpu":
            torch.cuda.synchronize()

    def _give_back(self) -> None:
        gc.collect()
        if self._measured.device != "cpu":
            torch.cuda.empty_cache()
