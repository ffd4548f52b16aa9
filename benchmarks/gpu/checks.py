"""Checks of correctness: greedy tokens in float32 compared with transformers' on tiny models of every
architecture, whole and resumed; the same seed alone and in a batch. Called by `gpu`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.model import Measured
from benchmarks.gpu.report import Figure
from python_backends.engine.torch.engine import TorchEngine
from python_backends.engine.torch.kernel_trial import kernel_obstacle
from tests.support.tiny_models import TINY, Agreement, Serving, TinyModel, build, random_requests

QUICK = ("gemma2", "llama_grouped")  # a window, capped scores; grouped heads


def tokens(measured: Measured) -> Iterator[Figure]:
    torch.backends.cuda.matmul.allow_tf32 = False
    if not kernel_obstacle(torch.device(measured.device)):
        yield from kernels(measured.device)
    names, count = (QUICK, 4) if measured.quick else (tuple(sorted(TINY)), 16)
    for name in names:
        yield parity(name, measured, count)
    yield seeds(names[0], measured)


def capture(measured: Measured) -> Iterator[Figure]:
    """Checks that steps of kind `measured.cuda_graphs` run and give the right tokens."""
    figure = parity("llama_grouped", measured, 4)
    yield replace(figure, part="capture", what=f"{kind_of_step(measured)}: {figure.what}")


def kind_of_step(measured: Measured) -> str:
    return f"cuda_graphs = {measured.cuda_graphs}"


def parity(name: str, measured: Measured, count: int) -> Figure:
    """Runs `count` requests on four slots, then each one again, resumed after its first ten tokens. The
    reference runs on the CPU.
    """
    directory = measured.directory / "tiny" / name
    tiny = TinyModel(directory, build(name), Agreement())
    tiny.model.save_pretrained(directory)
    engine, requests = _engine(tiny, measured), random_requests(count)
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


def seeds(name: str, measured: Measured) -> Figure:
    engine = _engine(TinyModel(measured.directory / "tiny" / name, None, Agreement()), measured)
    requests = random_requests(8, temperature=1.0, top_k=40, top_p=0.9, seed=5)
    together = dict(Serving(engine).run(requests))
    unequal = sum(
        Serving(engine).run([request])[request.request_id] != together[request.request_id]
        for request in requests
    )
    return Figure(
        "tokens", "answers unlike the same seed's in a batch", unequal, "", "<= 0", f"of {len(requests)}"
    )


def _engine(tiny: TinyModel, measured: Measured) -> TorchEngine:
    return tiny.engine(device=measured.device, cuda_graphs=measured.cuda_graphs)
