"""Answers to the first prompts of the workload, and the model's states while they are written.

The tokens are those of our own engine at temperature 0.7, as a server gives them with the prompts' first
seed; the states are computed from them by transformers in float32. Both are kept in files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.real_lengths.states import encoded
from benchmarks.real_prompts.__main__ import TEMPERATURE
from benchmarks.real_prompts.answers import SEEDS
from benchmarks.real_prompts.prompts import Prompt
from python_backends.instance.build import build
from python_backends.nouns.request import Floats, Request, Sampling
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, ModelSettings, Settings

EVERY, UNTIL = 32, 256  # tokens
TOKEN_BUDGET = 256
NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """One row for each 32 tokens of each answer that had not ended by then, up to 256 tokens."""

    prompt: NDArray[np.int32]  # [rows]
    made: NDArray[np.int32]  # [rows] tokens: 32, 64, …
    newest: Floats  # [rows, width] at token number `made`
    lengths: NDArray[np.int32]  # [answers] negative: cut

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **{name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def load(path: Path) -> Written:
        with np.load(path) as arrays:
            return Written(**{name: arrays[name] for name in Written.__slots__})


def answers_of(
    tokens: Sequence[Sequence[int]], directory: Path, ends: tuple[int, ...], most: int, slots: int, path: Path
) -> list[NDArray[np.int32]]:
    """The answers' tokens, with their end. Read from `path`, or made by the engine and kept there."""
    if path.exists():
        with np.load(path) as arrays:
            return list(np.split(arrays["tokens"], arrays["ends"][:-1]))
    longest = most + max(len(each) for each in tokens)
    engine_settings = EngineSettings(slots=slots, token_budget=TOKEN_BUDGET)
    blocks = slots * -(-longest // engine_settings.block_tokens)
    model = ModelSettings(directory=str(directory), max_model_tokens=longest)
    _, engine = build(Settings(model=model, engine=replace(engine_settings, kv_blocks=blocks)))
    scheduler = SlotScheduler(engine.limits, TOKEN_BUDGET)
    sampling = Sampling(max_tokens=most, temperature=TEMPERATURE, seed=SEEDS[0], stop_ids=ends)
    for number, each in enumerate(tokens):
        scheduler.submit(Request(number, np.array(each, np.int32), sampling), NOTHING)
    made: list[list[int]] = [[] for _ in tokens]
    with tqdm(total=len(tokens), desc="answers", unit="answer", smoothing=0.02) as bar:
        while (plan := scheduler.plan()) is not None:
            engine.launch(plan)
            events = scheduler.apply(plan, engine.collect())
            for number, token in zip(events.request_ids.tolist(), events.tokens.tolist(), strict=True):
                made[number].append(token)
            bar.update(int(np.count_nonzero(events.finishes)))
    engine.close()
    found = [np.array(each, np.int32) for each in made]
    np.savez(path, tokens=np.concatenate(found), ends=np.cumsum([len(each) for each in found]))
    return found


def states_while_written(
    prompts: Sequence[Prompt],
    answers: Sequence[NDArray[np.int32]],
    layer: int,
    directory: Path,
    ends: tuple[int, ...],
) -> Written:
    """The states are those of `layer`; 0 is the embedding."""
    import torch
    from transformers import AutoModelForCausalLM

    tokens, _ = encoded(prompts, directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    prompt, made, newest = [], [], []
    with torch.no_grad():
        for number, answer in enumerate(tqdm(answers, desc="states of answers", unit="answer")):
            if len(answer) <= EVERY:
                continue
            first = len(tokens[number])
            ids = torch.tensor([[*tokens[number], *answer[:UNTIL].tolist()]])
            states = model.model(ids, output_hidden_states=True).hidden_states[layer][0, first:]
            for count in range(EVERY, min(len(answer), UNTIL + 1), EVERY):
                prompt.append(number)
                made.append(count)
                newest.append(states[count - 1].numpy())
    lengths = [len(each) if each[-1] in ends else -len(each) for each in answers]
    return Written(
        np.array(prompt, np.int32),
        np.array(made, np.int32),
        np.stack(newest).astype(np.float32),
        np.array(lengths, np.int32),
    )
