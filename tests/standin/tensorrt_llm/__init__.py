"""A stand-in for TensorRT-LLM, with its signatures and its manners, for machines without a GPU.

Its tokens are those of the toy engine, so that tests of the whole pipeline expect the same texts. It keeps
what an adapter can trip over: `generate_async` wants the event loop's thread, results are one object that
changes, tokens come one iteration late, max_tokens is 32 by default and clamped, a request that is aborted in
the queue is never answered, errors come late, and when the engine dies everything raises. Which prompts fail,
and how, is said in `manners`. Signatures are compared with `tests/trtllm_api.json` by a test.
"""

from __future__ import annotations

from tensorrt_llm.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
