"""What this project builds on TensorRT-LLM doing, one function a promise. Each yields its verdicts: True,
False, or None for a note.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil

from build.tensorrt_checks.serving import Serving, TooLateError
from python_backends.engine.tensorrt_llm.request_loop import LOST_AFTER_S
from python_backends.nouns.request import Finish, Sampling
from python_backends.nouns.step import Admit, StepPlan

Verdict = tuple[bool | None, str]
Check = Callable[[Serving], Iterator[Verdict]]
SOON_S = 8.0  # an abort takes an iteration or two; one that is never answered is given up after 5 s


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 500, length)]


def whole_answers(serving: Serving) -> Iterator[Verdict]:
    for count in (1, 32, 100):
        asked = serving.answer(prompt(20), max_tokens=count)
        yield (
            len(asked.tokens) == count,
            f"max_tokens {count} gives {len(asked.tokens)} tokens, {asked.finish.reason}{asked.error}",
        )
    most = serving.scheduler.limits.max_model_tokens
    asked = serving.answer(prompt(most - 10), max_tokens=10)
    yield (
        len(asked.tokens) == 10,
        f"a prompt of {most - 10} tokens: to the end of the context ({asked.finish.reason}{asked.error})",
    )


def many_at_once(serving: Serving) -> Iterator[Verdict]:
    slots = serving.scheduler.limits.num_slots
    serving.rows.clear()
    asked = [serving.ask(prompt(10 + n, n), max_tokens=60) for n in range(3 * slots)]
    taken_s = serving.run()
    yield (
        all(len(one.tokens) == 60 for one in asked),
        f"{3 * slots} requests over {slots} slots: all answers whole",
    )
    yield serving.most_running <= slots, f"never more than {slots} were inside"
    together = sum(serving.rows) / max(1, len(serving.rows))
    yield (
        together > 0.5 * slots,
        f"the tokens of an iteration come together: {together:.1f} a message with {slots} slots",
    )
    yield None, f"{60 * 3 * slots / taken_s:.0f} tokens/s in {slots} slots"


def full_memory(serving: Serving) -> Iterator[Verdict]:
    limits = serving.scheduler.limits
    tokens = min(limits.num_blocks // limits.num_slots * limits.block_tokens, limits.max_model_tokens)
    asked = [serving.ask(prompt(20, n), max_tokens=tokens - 20) for n in range(limits.num_slots)]
    serving.run(lambda: all(one.tokens for one in asked))
    inside = serving.scheduler.blocks.num_used
    yield (
        not any(one.has_ended for one in asked),
        f"{inside} of {limits.num_blocks} blocks promised: nobody waits inside TensorRT-LLM",
    )
    for one in asked:
        serving.cancel(one)
    yield True, f"all of them cancelled: {serving.run():.1f} s until the last slot was free"


def stops(serving: Serving) -> Iterator[Verdict]:
    free = serving.answer(prompt(30), max_tokens=40).tokens
    unused = [token for token in range(3, 400) if token not in free][:2]
    for name, ids in (("end_id", (free[-1],)), ("stop_token_ids", (*unused, free[-1]))):
        asked = serving.answer(prompt(30), max_tokens=40, stop_ids=ids)
        ends = (
            asked.finish == Finish.STOP and asked.tokens[-1] in ids and not set(asked.tokens[:-1]) & set(ids)
        )
        yield (
            ends,
            (
                f"{name} ends the answer and is its last token ({len(asked.tokens)} tokens,"
                f" {asked.finish.reason}{asked.error})"
            ),
        )
    asked = serving.answer(prompt(30), max_tokens=40, min_tokens=12, stop_ids=(unused[0], *sorted(set(free))))
    yield (
        len(asked.tokens) >= 12,
        f"min_tokens 12 with {1 + len(set(free))} stop ids: {len(asked.tokens)} tokens",
    )
    asked = serving.answer(prompt(30), max_tokens=40, min_tokens=12, stop_ids=(free[0],))
    yield free[0] not in asked.tokens[:11], "a single stop id doesn't come before min_tokens"


def sampling(serving: Serving) -> Iterator[Verdict]:
    free = serving.answer(prompt(30), max_tokens=40).tokens
    banned = sorted(set(free))
    asked = serving.answer(prompt(30), max_tokens=40, bad_words=tuple((token,) for token in banned))
    come = len(set(banned) & set(asked.tokens))
    is_promised = "bad_words" not in serving.scheduler.limits.unsupported
    yield not come if is_promised else None, f"bad_words: {come} of {len(banned)} banned tokens come"
    asked = serving.answer(
        prompt(30), max_tokens=40, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.5
    )
    yield len(asked.tokens) == 40, "penalties are taken"
    yield (
        None,
        ("penalties changed the answer" if asked.tokens != free else "penalties changed nothing"),
    )
    draws = {seed: [_draw(serving, seed) for _ in range(2)] for seed in (1, 2)}
    yield (
        all(len(answer) == 40 for pair in draws.values() for answer in pair),
        "temperature, top_k, top_p and min_p are taken",
    )
    same = all(first == second for first, second in draws.values())
    yield (
        None,
        ("the same seed gave the same answer" if same else "the same seed gave two answers"),
    )
    yield (
        None,
        (
            "another seed gave another answer"
            if draws[1][0] != draws[2][0]
            else "another seed gave the same answer"
        ),
    )


def _draw(serving: Serving, seed: int) -> list[int]:
    return serving.answer(
        prompt(30), max_tokens=40, temperature=1.0, top_k=50, top_p=0.95, min_p=0.01, seed=seed
    ).tokens


def log_probabilities(serving: Serving) -> Iterator[Verdict]:
    asked = serving.answer(prompt(30), max_tokens=20, log_probs=True, num_top_log_probs=3)
    known = len(asked.chosen) == 20 and all(math.isfinite(value) and value <= 1e-3 for value in asked.chosen)
    yield (
        known,
        f"each of 20 tokens has a log-probability ({len(asked.chosen)} have)",
    )
    best = known and all(abs(a - b) < 1e-2 for a, b in zip(asked.chosen, asked.best, strict=True))
    yield best, "greedy takes the most probable token"
    drawn = serving.answer(
        prompt(30), max_tokens=20, temperature=2.0, seed=1, log_probs=True, num_top_log_probs=1
    )
    known = len(drawn.chosen) == len(drawn.tokens) and all(map(math.isfinite, drawn.chosen))
    yield known, "no drawn token comes without its log-probability"
    yield None, f"log-probabilities of 20 drawn tokens: {len(drawn.chosen)} have come {drawn.error}"


def resuming(serving: Serving) -> Iterator[Verdict]:
    whole = serving.answer(prompt(30), max_tokens=60).tokens
    rest = serving.answer(prompt(30), delivered=whole[:25], max_tokens=60).tokens
    same = next((i for i, (a, b) in enumerate(zip(rest, whole[25:], strict=False)) if a != b), len(rest))
    yield len(rest) == 35, f"behind 25 delivered tokens come the other {len(rest)} of 60"
    yield None, f"{same} of these 35 are those of the undisturbed run (rounding may differ)"


def cancelling(serving: Serving) -> Iterator[Verdict]:
    other = serving.ask(prompt(20, 1), max_tokens=300)
    gone = serving.ask(prompt(20, 2), max_tokens=900)
    serving.run(lambda: len(gone.tokens) > 3)
    serving.cancel(gone)
    yield from _free_again(serving, 1, "a cancelled request gives its slot back")
    early = serving.ask(prompt(200, 3), max_tokens=900)
    serving.run(lambda: serving.scheduler.num_running == 2)
    serving.cancel(early)
    yield from _free_again(serving, 1, "so does one that was cancelled before it began")
    serving.run()
    yield len(other.tokens) == 300, "their neighbour was not disturbed"


def _free_again(serving: Serving, num_running: int, text: str) -> Iterator[Verdict]:
    try:
        yield (
            True,
            f"{text} ({serving.run(lambda: serving.scheduler.num_running <= num_running, SOON_S):.2f} s)",
        )
    except TooLateError as error:
        yield False, f"{text}: {error}"


def refusals(serving: Serving) -> Iterator[Verdict]:
    """A prompt that is too long for TensorRT-LLM, past our own checks."""
    limits, none = serving.scheduler.limits, np.zeros(0, np.int32)
    tokens = np.array(prompt(limits.max_model_tokens + 50), np.int32)
    admit = Admit(0, 1 << 20, Sampling(max_tokens=5), len(tokens), 0, none, tokens)
    plan = StepPlan(0, (admit,), none, none, none, none, 0, none.astype(np.bool_), none)
    failures: tuple[object, ...] = ()
    end_s = time.monotonic() + 30
    while not failures and time.monotonic() < end_s:
        serving.engine.launch(plan)
        failures = getattr(serving.engine.collect(), "failures", ())
        plan = StepPlan(0, (), none, none, none, none, 0, none.astype(np.bool_), none)
    yield bool(failures), f"a prompt of {len(tokens)} tokens is refused alone: {str(failures)[:120]}"
    yield len(serving.answer(prompt(20), max_tokens=10).tokens) == 10, "and the engine goes on"


def overcommitting(serving: Serving) -> Iterator[Verdict]:
    """Predictions that are all far too short: TensorRT-LLM has to pause some."""
    limits = serving.scheduler.limits
    length = min(limits.kv_tokens // 2, limits.max_model_tokens) - 20
    asked = [serving.ask(prompt(20, n), likely=10, max_tokens=length) for n in range(limits.num_slots)]
    serving.run()
    yield (
        all(len(one.tokens) == length for one in asked),
        f"{len(asked)} answers of half of the memory each, predicted short",
    )


def adapters(serving: Serving) -> Iterator[Verdict]:
    if not serving.engine.limits.adapters:
        yield None, "LoRA was not checked: safetensors is missing, or --model was given"
        return
    plain = serving.answer(prompt(30), max_tokens=30)
    adapted = serving.answer(prompt(30), adapter=serving.engine.limits.adapters[0].name, max_tokens=30)
    yield len(adapted.tokens) == 30, f"a request with an adapter is answered {adapted.error}"
    yield (
        None,
        "the adapter changed the answer" if adapted.tokens != plain.tokens else "the adapter changed nothing",
    )


def death(serving: Serving) -> Iterator[Verdict]:
    """The last check: nothing works behind it."""
    workers = [
        process for process in psutil.Process().children(recursive=True) if "python" in process.name().lower()
    ]
    if not workers:
        yield None, "engine death was not checked: TensorRT-LLM runs no worker process here"
        return
    serving.ask(prompt(20), max_tokens=900)
    for worker in workers:
        worker.kill()
    started_s = time.monotonic()
    try:
        serving.run(timeout_s=LOST_AFTER_S + 30)
        yield False, "the workers were killed and nobody noticed"
    except TooLateError as error:
        yield False, f"the workers were killed: {error}"
    except Exception as error:
        yield (
            True,
            f"killed workers are noticed after {time.monotonic() - started_s:.1f} s: {str(error)[:80]}",
        )


USUAL: tuple[Check, ...] = (
    *(
        whole_answers,
        many_at_once,
        full_memory,
        stops,
        sampling,
        log_probabilities,
        resuming,
        cancelling,
        refusals,
        death,
    ),
)
OTHERWISE: tuple[Check, ...] = (overcommitting, adapters)  # with the other value of each setting
