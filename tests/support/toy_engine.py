"""An engine whose tokens can be worked out by hand: `next token = (Σ (i + 1) · token_i + 7) mod vocabulary`.

The sum is taken over the content of the KV blocks of the slot's block table row, so that a wrong block, a
stale row, a lost or a doubled token changes the answer. Bad words, biases and log-probabilities are there, by
rules as simple; penalties and what restricts a draw change nothing. It keeps the manners of a real engine
(device-side rows, stop flags, steps launched ahead, a device that works while the loop goes on) and costs
nothing, so tests of everything around an engine use it: `engine.kind = TOY`.

The hidden state at the end of a prompt is (its length, slot).

`engine.options` are `load_s` (how long a start takes at least), `step_ms` (of each step), `poison_token` (the
process dies when it computes this token) and `block_bytes` (of a KV block that is copied; default: those of
its tokens).
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.engine.kinds import EngineKind
from python_backends.engine.kv.block_bytes import rows_of
from python_backends.guides.guides import Guides
from python_backends.guides.matcher import Matcher, num_words
from python_backends.guides.prepared import Followed
from python_backends.nouns.request import Finish, Ids, LogProbs, ModelLimits, Sampling
from python_backends.nouns.step import Admit, Grow, RowLogProbs, SlotOperation, StepOutput, StepPlan
from python_backends.settings import Settings

TOY = "tests.support.toy_engine:KIND"
DEFAULT_MODEL_TOKENS = 2048
DEFAULT_BLOCKS_A_SLOT = 64


def toy_next(
    tokens: Ids,
    sampling: Sampling,
    num_output_tokens: int,
    vocab_size: int,
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """The token after `tokens`. What may not come now is stepped over: stop ids before min_tokens, what would
    complete a bad word, tokens with a negative bias, what is not `allowed` [vocabulary] by a guide.

    Sampling adds the seed once per output index.
    """
    weights = np.arange(1, len(tokens) + 1, dtype=np.int64)
    token = int(weights @ tokens.astype(np.int64)) + 7
    if sampling.draws:
        token += sampling.seed * (num_output_tokens + 1)
    token %= vocab_size
    barred = {
        word[-1]
        for word in sampling.bad_words
        if tokens[len(tokens) - len(word) + 1 :].tolist() == list(word[:-1])
    }
    barred.update(token_id for token_id, value in sampling.logit_bias if value < 0)
    if num_output_tokens < sampling.min_tokens:
        barred.update(sampling.stop_ids)
    if allowed is not None and barred.issuperset(np.flatnonzero(allowed).tolist()):
        barred = set()
    while token in barred or not (allowed is None or allowed[token]):
        token = (token + 1) % vocab_size
    return token


def toy_log_probs(token: int, num_top: int, vocab_size: int) -> LogProbs:
    """Of one token: −(token mod 64) / 8, and one less for each of the ids from it on."""
    chosen = -(token % 64) / 8
    places = np.arange(num_top, dtype=np.int32)
    return LogProbs(
        np.array([chosen], np.float32), (token + places) % vocab_size, (chosen - places).astype(np.float32)
    )


@dataclass(slots=True)
class _Row:
    """What a device would hold of one slot."""

    sampling: Sampling
    num_prompt: int
    length: int  # tokens so far; the last one may not be computed
    last_token: int = 0
    ended: bool = False
    blocks: list[int] = field(default_factory=list)
    matcher: Matcher | None = None  # of its guide


class ToyEngine:
    plans_steps = False

    def __init__(self, settings: Settings) -> None:
        engine = settings.engine
        num_blocks = engine.kv_blocks or engine.slots * DEFAULT_BLOCKS_A_SLOT
        self.limits = ModelLimits(
            max_model_tokens=settings.model.max_model_tokens or DEFAULT_MODEL_TOKENS,
            vocab_size=_vocab_size(settings),
            num_slots=engine.slots,
            num_blocks=num_blocks,
            block_tokens=engine.block_tokens,
            fingerprint="toy",
            state_layer=int(settings.exports_states),
        )
        options = dict(option.split("=") for option in engine.options.split())
        time.sleep(float(options.get("load_s", 0)))
        self._step_s = float(options.get("step_ms", 0)) / 1000
        self._poison = int(options.get("poison_token", -1))
        self._rows: dict[int, _Row] = {}
        self._kv: Ids = np.full((num_blocks, engine.block_tokens), -1, np.int32)
        self.block_bytes = max(int(options.get("block_bytes", 0)), self._kv[0].nbytes)
        self.kv_format = f"toy {engine.block_tokens} {self.block_bytes}"
        self._outputs: deque[StepOutput] = deque()
        self._ends_s: deque[float] = deque()  # of the launched steps
        self._idle_s = 0.0  # when the device will have nothing more to do; 0: it has had nothing yet

    def follow(self, guides: Guides) -> None:
        self._guides = guides

    def launch(self, plan: StepPlan) -> None:
        for operation in plan.operations:
            self._operate(operation)
        chunks = iter(np.split(plan.tokens, np.cumsum(plan.lengths[plan.num_decodes :])[:-1]))
        sampled, states = [], []
        spans = zip(plan.slots, plan.starts, plan.samples, strict=True)
        for index, (slot, start, samples) in enumerate(spans):
            row = self._rows[int(slot)]
            tokens = np.array([row.last_token], np.int32) if index < plan.num_decodes else next(chunks)
            if not row.ended:
                self._compute(row, int(start), tokens)
            if samples:
                sampled.append(self._sample(row))
                states.append((row.num_prompt, start))
        tokens, finishes = np.array(sampled, np.int32).reshape(-1, 2).T.copy()
        scores = self._log_probs(plan, tokens)
        busy_s, gap_s = self._run_device()
        self._outputs.append(
            StepOutput(
                plan.number,
                tokens,
                finishes.astype(np.uint8),
                scores,
                busy_s,
                gap_s,
                np.array(states, np.float32)[plan.read] if len(plan.read) else None,
                self._prompt_log_probs(plan),
            )
        )
        self._ends_s.append(self._idle_s)

    def collect(self) -> StepOutput:
        time.sleep(max(0.0, self._ends_s.popleft() - time.monotonic()))
        return self._outputs.popleft()

    def close(self) -> None:
        self._rows.clear()

    def export_blocks(self, blocks: Ids) -> NDArray[np.uint8]:
        """The blocks' tokens, and zeros up to `block_bytes`."""
        data = np.zeros((len(blocks), self.block_bytes), np.uint8)
        data[:, : self._kv[0].nbytes] = self._kv.view(np.uint8)[blocks]
        return data.reshape(-1)

    def import_blocks(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Raises ValueError if `data` has another size. It need not wait: `launch` writes at once."""
        self._kv.view(np.uint8)[blocks] = rows_of(data, len(blocks), self.block_bytes)[
            :, : self._kv[0].nbytes
        ]

    def _run_device(self) -> tuple[float, float]:
        """Adds a step after what the device has to do. How long it takes,
        and how long the device had been idle.
        """
        now_s = time.monotonic()
        gap_s = max(0.0, now_s - self._idle_s) if self._idle_s else 0.0
        self._idle_s = max(now_s, self._idle_s) + self._step_s
        return self._step_s, gap_s

    def _operate(self, operation: SlotOperation) -> None:
        if isinstance(operation, Admit):
            length = operation.num_prompt_tokens + operation.num_output_tokens
            last = int(operation.tokens[-1]) if len(operation.tokens) else 0
            row = _Row(
                operation.sampling,
                operation.num_prompt_tokens,
                length,
                last,
                blocks=operation.blocks.tolist(),
                matcher=self._matcher(operation),
            )
            self._rows[operation.slot] = row
        elif isinstance(operation, Grow):
            last = operation.first + len(operation.blocks)
            self._rows[operation.slot].blocks[operation.first : last] = operation.blocks.tolist()
        else:
            del self._rows[operation.slot]

    def _matcher(self, admit: Admit) -> Matcher | None:
        grammar, output = admit.sampling.grammar, admit.tokens[admit.num_prompt_tokens :].tolist()
        followed = Followed(grammar, output, admit.sampling.stop_ids)
        return self._guides.matcher(followed) if grammar else None

    def _allowed(self, row: _Row) -> NDArray[np.bool_] | None:
        if row.matcher is None:
            return None
        words: NDArray[np.int32] = np.zeros(num_words(self.limits.vocab_size), np.int32)
        row.matcher.fill(words)
        return np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)

    def _compute(self, row: _Row, start: int, tokens: Ids) -> None:
        """Writes the "KV" of `tokens` at positions start, start + 1, …"""
        if self._poison in tokens.tolist():
            time.sleep(0.05)  # a device fault shows a while after the launch
            os._exit(86)  # and takes the process along
        size = self.limits.block_tokens
        for position, token in enumerate(tokens.tolist(), start):
            self._kv[row.blocks[position // size], position % size] = token

    def _sample(self, row: _Row) -> tuple[int, int]:
        if row.ended:
            return 0, Finish.RUNNING
        tokens = self._kv[row.blocks].reshape(-1)[: row.length]
        num_output = row.length - row.num_prompt
        row.last_token = toy_next(
            tokens, row.sampling, num_output, self.limits.vocab_size, self._allowed(row)
        )
        row.length += 1
        finish = self._finish(row, num_output + 1)
        row.ended = finish != Finish.RUNNING
        if row.matcher is not None and not row.ended:
            row.matcher.take([row.last_token])
        return row.last_token, finish

    def _log_probs(self, plan: StepPlan, tokens: Ids) -> RowLogProbs | None:
        samplings = [self._rows[int(slot)].sampling for slot in plan.slots[plan.samples]]
        asking = [row for row, sampling in enumerate(samplings) if sampling.log_probs]
        if not asking:
            return None
        num_top = max(samplings[row].num_top_log_probs for row in asking)
        values = self._scores([int(tokens[row]) for row in asking], num_top)
        return RowLogProbs(np.array(asking, np.int32), values)

    def _prompt_log_probs(self, plan: StepPlan) -> LogProbs | None:
        if plan.scored is None:
            return None
        return self._scores(plan.scored.next_tokens.tolist(), plan.scored.num_top)

    def _scores(self, tokens: list[int], num_top: int) -> LogProbs:
        parts = [toy_log_probs(token, num_top, self.limits.vocab_size) for token in tokens]
        chosen, top_ids, top = zip(*((part.chosen, part.top_ids, part.top) for part in parts), strict=True)
        return LogProbs(np.concatenate(chosen), np.concatenate(top_ids), np.concatenate(top))

    def _finish(self, row: _Row, num_output: int) -> Finish:
        if row.last_token in row.sampling.stop_ids and num_output > row.sampling.min_tokens:
            return Finish.STOP
        full = num_output == row.sampling.max_tokens or row.length == self.limits.max_model_tokens
        return Finish.LENGTH if full else Finish.RUNNING


def _vocab_size(settings: Settings) -> int:
    """One more than the greatest id of the model's tokenizer."""
    table = json.loads((settings.model_directory / "tokenizer.json").read_text())
    added = [token["id"] + 1 for token in table.get("added_tokens", [])]
    return int(max(len(table["model"]["vocab"]), *added, 0))


def toy_settings(model: Path | str, **options: float) -> dict[str, Any]:
    """The settings of a server of this engine."""
    text = " ".join(f"{name}={value}" for name, value in options.items())
    return {"model.directory": model, "engine.kind": TOY, "engine.options": text}


KIND = EngineKind(ToyEngine, warms_up=False, has_weights=False)
