"""What an instance says of itself five times a second: `Load`, its heartbeat."""

from __future__ import annotations

from python_backends.nouns.request import Noun, WaitReason

# of late tokens, as an instance counts them (docs/token_way.md)
LATE_CAUSES = ("decode", "prompts", "spare_time", "slow_step", "host", "evicted")
JOB_STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")


class TrainingLoad(Noun, frozen=True):
    """What an instance has trained since its last heartbeat."""

    tokens: int = 0  # of whole optimiser steps
    wasted_tokens: int = 0  # that an instance trained before it died, after its last saved state
    steps: int = 0
    loss: float = 0.0  # of the latest step, in nats a token; 0 before the first
    jobs: tuple[int, ...] = ()  # of the job directory, by JOB_STATUSES


class Load(Noun, frozen=True):
    """Heartbeat of an instance, and what it carries at the moment."""

    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    num_used_blocks: int = 0
    num_retained_blocks: int = 0
    num_blocks: int = 0
    num_evictions: int = 0
    peak_blocks: int = 0  # that will be in use at most, as admission reckons
    # token gaps since the last heartbeat, as the histogram of metrics counts them
    gap_counts: tuple[int, ...] = ()
    gap_sum_s: float = 0.0
    late_tokens: tuple[int, ...] = ()  # since the last heartbeat, by LATE_CAUSES; empty: none
    is_contested: bool = False  # requests compete for slots or memory: then it matters whose turn it is
    wait_reason: WaitReason | None = None  # of those that wait there; None: none does
    last_submit: int = 0  # number of the last Submit that is counted here
    num_reserved_slots: int = 0  # for requests that are about to move here
    num_high_priority: int = 0  # requests that run or wait, of a priority above 0
    waiting_blocks: int = 0  # KV blocks that the requests that wait need for their tokens so far
    head_blocks: int = 0  # of these: for the request whose turn is next
    future_blocks: int = 0  # that the requests with a slot will use at most, as predicted
    num_prefill_tokens: int = 0  # of requests that have a slot, still to be computed before their next token
    step_s: float = 0.0  # what a step takes at present; 0: not known yet
    longest_step_s: float = 0.0  # the longest of the latest steps: so long it may be silent
    moved_bytes: int = 0  # of KV blocks, sent to other instances since the last heartbeat
    num_borrowed_blocks: int = 0  # KV blocks that training uses; they count as free
    num_adapters: int = 0  # LoRA adapters in the engine's memory
    training: TrainingLoad | None = None  # None: there are no jobs
