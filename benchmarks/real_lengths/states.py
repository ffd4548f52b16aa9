"""What the served model itself has computed when it has read a prompt: its hidden states, by transformers in
float32.

Computed once for a model directory and kept in a file, because this takes minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.real_prompts.prompts import Prompt, digest
from python_backends.checkpoint.opening import open_source
from python_backends.nouns.request import Floats

BATCH = 16  # prompts of nearly the same length
CHUNKS = (16, 32, 64)  # tokens of the last message


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Of n prompts. Layer 0 is the embedding, the last one is after the final norm."""

    ends: Floats  # [n, layers, width] at the last token of the prompt
    means: Floats  # [n, layers, width] mean over the tokens of the last message
    starts: (
        Floats  # [n, chunks, layers, width] after the first CHUNKS tokens of the last message (or all of it)
    )
    entropies: Floats  # [n] of the answer's first token, nats
    num_tokens: NDArray[np.int32]  # [n] of the prompt
    num_input_tokens: NDArray[np.int32]  # [n] of the last message

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez(file, **{name: getattr(self, name) for name in self.__slots__})

    def of(self, places: Sequence[int]) -> States:
        return States(*(getattr(self, name)[list(places)] for name in self.__slots__))

    @staticmethod
    def load(path: Path) -> States:
        with np.load(path) as arrays:
            return States(**{name: arrays[name] for name in States.__slots__})


def states_of(prompts: Sequence[Prompt], directory: Path, kept: Path) -> States:
    """Reads them from the folder `kept`, or computes them by the model in `directory` and keeps them."""
    path = kept_file(kept, "states", prompts, directory)
    if not path.exists():
        _compute(prompts, directory).save(path)
    return States.load(path)


def kept_file(kept: Path, what: str, prompts: Sequence[Prompt], directory: Path) -> Path:
    """Where the folder `kept` has what the model in `directory` makes of these prompts."""
    return kept / f"{what}_{open_source(directory).digest()}_{digest(list(prompts))}.npz"


def encoded(prompts: Sequence[Prompt], directory: Path) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Returns the tokens of each prompt as the model's chat template writes it, and where its last message
    begins and ends among them.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    tokens, places = [], []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(
            list(prompt.messages), add_generation_prompt=True, tokenize=False
        )
        made = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        begin = text.rindex(prompt.text)
        end = begin + len(prompt.text)
        inside = [
            at for at, (first, last) in enumerate(made["offset_mapping"]) if last > begin and first < end
        ]
        tokens.append(made["input_ids"])
        places.append((inside[0], inside[-1] + 1))
    return tokens, places


def entropy_of(logits: Any) -> Any:
    """[…] in nats, of […, vocabulary]."""
    logs = logits.log_softmax(dim=-1)
    return -(logs.exp() * logs).sum(dim=-1)


def _compute(prompts: Sequence[Prompt], directory: Path) -> States:
    import torch
    from transformers import AutoModelForCausalLM

    tokens, places = encoded(prompts, directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
    rows: list[Any] = [None] * len(tokens)
    with torch.no_grad(), tqdm(total=len(tokens), desc="states", unit="prompt") as bar:
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            longest = max(len(tokens[number]) for number in part)
            # later tokens change no earlier state: the padding comes last
            ids = torch.tensor([tokens[n] + [0] * (longest - len(tokens[n])) for n in part])
            last = torch.tensor([len(tokens[number]) - 1 for number in part])
            found = model.model(ids, output_hidden_states=True)
            layers = torch.stack(found.hidden_states, dim=2)  # [batch, tokens, layers, width]
            logits = model.lm_head(layers[torch.arange(len(part)), last, -1])
            entropies = entropy_of(logits)
            for row, number in enumerate(part):
                begin, end = places[number]
                chunks = [min(begin + count, end) - 1 for count in CHUNKS]
                of = layers[row]
                rows[number] = (
                    of[last[row]].numpy(),
                    of[begin:end].mean(dim=0).numpy(),
                    of[chunks].numpy(),
                    float(entropies[row]),
                )
            bar.update(len(part))
    ends, means, starts, entropies_of = zip(*rows, strict=True)
    return States(
        np.stack(ends),
        np.stack(means),
        np.stack(starts),
        np.array(entropies_of, np.float32),
        np.array([len(each) for each in tokens], np.int32),
        np.array([end - begin for begin, end in places], np.int32),
    )
