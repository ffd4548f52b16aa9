"""[finetuning]: how LoRA adapters are trained. Tested in tests/pure/test_house.py."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class FinetuningSettings:
    enabled: bool = setting(
        True,
        "whether a server with the torch engine on a CPU trains the jobs that it finds, in the time that"
        " serving leaves; while it does, the layers' weights are in memory twice",
    )
    tpot_ms: float = setting(
        100.0,
        "milliseconds that a step and the training before it may take while requests decode: the time per"
        " output token that readers accept",
        1.0,
        10_000.0,
    )
    idle_ms: float = setting(
        25.0, "milliseconds that a request waits at most for training when the server was idle", 1.0, 10_000.0
    )
    windows: str = setting(
        "separate",
        "where the forward pass of training is computed while requests decode: separate is between two steps,"
        " layer by layer; fused in the products of a step",
        choices=("fused", "separate"),
    )
    max_jobs: int = setting(2, "jobs that an instance trains at the same time, in turn", 1, 64)
    directory: str = setting(
        "run/finetuning",
        "the jobs, in one directory for each checkpoint; relative to this folder",
    )
    keep: str = setting(
        "auto",
        "what a forward pass keeps for the backward pass: products is fastest; attention computes gate and up"
        " again, inputs whole layers, for less memory; auto: as much as fits",
        choices=("auto", "products", "attention", "inputs"),
    )
    pack_tokens: int = setting(
        1024,
        "tokens whose activations are kept at a time; a longer example is computed by itself",
        16,
        1 << 20,
    )
    memory_share: float = setting(
        0.5, "share of the KV blocks without a request that training may borrow for a pack", 0.01, 1.0
    )
    checkpoint_every_s: float = setting(
        60.0, "seconds from one checkpoint of a job to the next", 0.0, 86400.0
    )
