"""Correct before fast: greedy tokens in float32 beside transformers' on tiny models of every architecture, whole and resumed; the
same seed alone and in a batch. Called by `gpu.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.gpu_model import Measured
from benchmarks.gpu_report import Figure
from python_backends.engine.attention import is_paged, score_operator
from python_backends.engine.attention_spans import PagedRows
from python_backends.engine.description import Heads
from python_backends.engine.torch_engine import TorchEngine
from tests.cpu.tiny_models import TINY, Agreement, Serving, TinyModel, build, random_requests

WINDOWS_AND_CAPS = tuple(itertools.product((None, 16), (None, 8.0)))
QUICK = ("gemma2", "llama_grouped")  # a window, capped scores; grouped heads


def tokens(measured: Measured) -> Iterator[Figure]:
    torch.backends.cuda.matmul.allow_tf32 = False
    if is_paged(torch.device(measured.device)):
        for dtype, allowed in ((torch.float32, 1e-4), (torch.bfloat16, 0.02)):
            error = max(kernel_error(Heads(32, 8, 128, 128**-0.5), *case, dtype, measured.device) for case in WINDOWS_AND_CAPS)
            yield Figure("tokens", f"attention over blocks beside torch's, {dtype}, largest error", error, "", f"<= {allowed}")
    names, count = (QUICK, 4) if measured.quick else (tuple(sorted(TINY)), 16)
    for name in names:
        yield parity(name, measured, count)
    yield seeds(names[0], measured)


def capture(measured: Measured) -> Iterator[Figure]:
    """Whether steps of `measured.cuda_graphs` run at all, and give the right tokens."""
    figure = parity("llama_grouped", measured, 4)
    yield replace(figure, part="capture", what=f"cuda_graphs = {measured.cuda_graphs}: {figure.what}")


def parity(name: str, measured: Measured, count: int) -> Figure:
    """`count` requests over four slots, then each again behind its first ten tokens. The reference runs on the CPU."""
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
    unequal = sum(Serving(engine).run([request])[request.request_id] != together[request.request_id] for request in requests)
    return Figure("tokens", "answers unlike the same seed's in a batch", unequal, "", "<= 0", f"of {len(requests)}")


def _engine(tiny: TinyModel, measured: Measured) -> TorchEngine:
    return tiny.engine(device=measured.device, cuda_graphs=measured.cuda_graphs)


def kernel_error(heads: Heads, window: int | None, softcap: float | None, dtype: torch.dtype, device: str) -> float:
    """The largest difference between attention straight over scattered blocks and torch's operators over gathered ones in float32."""
    from python_backends.engine.paged_attention import paged_attention  # needs the Triton language

    torch.manual_seed(0)
    lengths = [1, 5, 64, 77, 200]
    blocks = torch.randn((130, 3, 2, heads.num_kv_heads, 8, heads.head_dim), dtype=dtype, device=device)[:, 1]
    table = torch.randperm(130)[:125].view(5, 25).to(device)
    positions = torch.tensor(lengths, device=device) - 1
    q = torch.randn((5, heads.query_width + 8), dtype=dtype, device=device)[:, : heads.query_width]  # rows with something between them
    found = paged_attention(q, blocks, PagedRows(0, 5, table, positions, window), heads, softcap)
    keys, values = blocks[table].permute(2, 0, 3, 1, 4, 5).reshape(2, 5, heads.num_kv_heads, -1, heads.head_dim).float()
    token = torch.arange(keys.shape[2], device=device)
    hidden = token > positions[:, None]
    if window is not None:
        hidden |= token <= positions[:, None] - window
    mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))[:, None, None]
    rows = q.reshape(5, heads.num_kv_heads, heads.group, heads.head_dim).float()
    wanted = score_operator(softcap)(rows, keys, values, attn_mask=mask, scale=heads.scale).reshape(5, -1)
    return float((found.float() - wanted).abs().max())
