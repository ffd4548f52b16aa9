"""The flat batch of a step with a window of training: the rows of requests, then those of the window.

Tested in tests/cpu/test_fused_windows.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from python_backends.engine.torch.attention_spans import AttentionSpans
from python_backends.engine.torch.step_batch import StepBatch


def joined(decodes: StepBatch, window: StepBatch) -> StepBatch:
    """`decodes` are rows that decode, all of a step; `window` has chunks in blocks of the same cache, and the
    padding of both. Sampled are the rows of `decodes`, and only these have adapters of requests.
    """
    count = len(decodes.tokens)
    spans = {}
    for sliding, each in decodes.spans.items():
        chunks = window.spans[sliding]
        assert isinstance(each, AttentionSpans)  # no kernels where adapters are trained
        assert isinstance(chunks, AttentionSpans)
        spans[sliding] = each.followed_by(chunks, count)
    return replace(
        decodes,
        tokens=torch.cat((decodes.tokens, window.tokens)),
        positions=torch.cat((decodes.positions, window.positions)),
        spans=spans,
        sampling_rows=torch.arange(count, device=decodes.tokens.device),
    )
