"""Correct before fast: greedy tokens in float32 beside transformers' on tiny models of every architecture, whole and resumed; the
same seed alone and in a batch. Called by `gpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu_model import Measured
from benchmarks.gpu_report import Figure
from python_backends.engine.torch_engine import TorchEngine
from tests.cpu.tiny_models import TINY, Agreement, Serving, TinyModel, build, random_requests

QUICK = ("gemma2", "llama_grouped")  # a window, capped scores; grouped heads


def tokens(measured: Measured) -> Iterator[Figure]:
    torch.backends.cuda.matmul.allow_tf32 = False
    names, count = (QUICK, 4) if measured.quick else (tuple(sorted(TINY)), 16)
    for name in names:
        yield parity(name, measured.directory / "tiny" / name, measured.device, count)
    yield seeds(measured.directory / "tiny" / names[0], measured.device)


def parity(name: str, directory: Path, device: str, count: int) -> Figure:
    """`count` requests over four slots, then each again behind its first ten tokens. The reference runs on the CPU."""
    tiny = TinyModel(directory, build(name), Agreement())
    tiny.model.save_pretrained(directory)
    engine, requests = _engine(tiny, device), random_requests(count)
    whole, resumed = dict(Serving(engine).run(requests)), Serving(engine)
    for request in requests:
        resumed.submit(request, whole[request.request_id][:10])
    resumed.run()
    wrong, note = 0, ""
    for request in requests:
        for answer in (whole[request.request_id], resumed.answers[request.request_id]):
            try:
                tiny.check(request, answer)
            except AssertionError as error:
                wrong, note = wrong + 1, str(error).splitlines()[0]
    note = note or f"of {tiny.agreement.num_tokens} tokens, {tiny.agreement.num_ties} ties"
    return Figure("tokens", f"{name}: answers unlike transformers'", wrong, "", "<= 0", note)


def seeds(directory: Path, device: str) -> Figure:
    engine = _engine(TinyModel(directory, None, Agreement()), device)
    requests = random_requests(8, temperature=1.0, top_k=40, top_p=0.9, seed=5)
    together = dict(Serving(engine).run(requests))
    unequal = sum(Serving(engine).run([request])[request.request_id] != together[request.request_id] for request in requests)
    return Figure("tokens", "answers unlike the same seed's in a batch", unequal, "", "<= 0", f"of {len(requests)}")


def _engine(tiny: TinyModel, device: str) -> TorchEngine:
    settings = tiny.settings()
    return TorchEngine(replace(settings, model=replace(settings.model, device=device)))
