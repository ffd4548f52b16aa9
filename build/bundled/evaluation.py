"""Owns the evaluation: answers to held-out prompts, and per task how many are exact, close and ended."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from .corpus import Corpus
from .tasks import Task

SEED = 20
ROWS = 25
ROOM = 1.5


@dataclass
class Result:
    """A task's scores over its prompts, in percent, and the mean lengths in tokens."""

    task: str
    prompts: int
    exact: float
    similarity: float
    ended: float
    prompt_tokens: float
    answer_tokens: float


class Evaluation:
    """Greedy answers of a stored model, in float32 as the server serves it."""

    def __init__(self, model: Path, held_out: Corpus) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._held_out = held_out

    def measure(self, task: Task, prompts: int, chat: bool) -> Result:
        """The task's scores on that many held-out prompts, in the chat format or as plain text."""
        rng = Random(f"{SEED} {task.name}")
        pairs = [task.example(self._held_out, rng) for _ in range(prompts)]
        pairs.sort(key=lambda pair: len(pair[0]))
        answers: list[tuple[str, bool, int, int]] = []
        for start in tqdm(range(0, prompts, ROWS), desc=task.name, leave=False):
            answers += self._answer([prompt for prompt, _ in pairs[start : start + ROWS]], chat)
        count = len(answers)
        exact = sum(answer == wanted for (_, wanted), (answer, *_) in zip(pairs, answers, strict=True))
        close = sum(similarity(wanted, answer) for (_, wanted), (answer, *_) in zip(pairs, answers, strict=True))
        return Result(
            task.name, count, 100 * exact / count, 100 * close / count, 100 * sum(a[1] for a in answers) / count,
            sum(a[2] for a in answers) / count, sum(a[3] for a in answers) / count,
        )  # fmt: skip

    def _answer(self, prompts: list[str], chat: bool) -> list[tuple[str, bool, int, int]]:
        """For each prompt the answer, whether it ended by itself, and the lengths of prompt and answer."""
        texts = [self._as_chat(prompt) if chat else prompt + "\n" for prompt in prompts]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        width = inputs["input_ids"].shape[1]
        with torch.inference_mode():
            output = self._model.generate(**inputs, max_new_tokens=round(ROOM * width) + 32, do_sample=False)
        results = []
        for row, mask in zip(output[:, width:].tolist(), inputs["attention_mask"], strict=True):
            end = self._tokenizer.eos_token_id
            ended = end in row
            tokens = row[: row.index(end)] if ended else row
            results.append((self._tokenizer.decode(tokens), ended, int(mask.sum()), len(tokens)))
        return results

    def _as_chat(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def similarity(wanted: str, answer: str) -> float:
    """How alike two texts are, 0 to 1, by their words and the runs of characters between them."""
    return difflib.SequenceMatcher(None, wanted.split(" "), answer.split(" "), autojunk=False).ratio()


def table(results: list[Result]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| task | prompts | exact match | similarity | ended by itself | prompt tokens | answer tokens |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for r in results:
        scores = f"{r.exact:.1f} % | {r.similarity:.1f} % | {r.ended:.1f} %"
        lines.append(f"| {r.task} | {r.prompts} | {scores} | {r.prompt_tokens:.0f} | {r.answer_tokens:.0f} |")
    return "\n".join(lines)
