"""The bundled model learns a ninth task in the slack of a server while it answers prompts of its eight: exact
match on held-out prompts by saved state, and the eight tasks' greedy texts before, during and after.

A real server (torch, float32) trains docs/examples/remove_comments.jsonl as `make finetune` submits it. A
closed loop of eight tasks' prompts asks meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import ROOT
from benchmarks.common.command_line import command_line
from benchmarks.results_file import table, write_result
from client import AsyncClient, RefusedError, user
from models.recipe.corpus import Corpus, is_held_out, load_corpora, read_corpus, standard_library_files
from models.recipe.evaluation import draw
from models.recipe.tasks import NINTH, Exercise, Task, all_tasks
from models.recipe.velin import read_lexicon
from python_backends.finetuning import saved_states
from python_backends.finetuning.jobs import ENDED, Job
from tests.support.server.serving import Gapless

DATA = ROOT / "docs" / "examples" / "remove_comments.jsonl"
OPTIONS = ("--rank", "8", "--learning-rate", "1e-3", "--seed", "0")
NAME = "no_comments"
MAX_TOKENS = 400
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked: prompts a task, streams at the same time, optimiser steps, examples each."""

    prompts: int
    held_out: int
    streams: int
    steps: int
    batch_size: int


FULL, QUICK = Scale(8, 100, 4, 48, 16), Scale(1, 2, 2, 2, 2)


class Asker:
    """Asks a server; `texts` returns greedy answers in the order of the prompts."""

    def __init__(self, client: AsyncClient, streams: int) -> None:
        self._client, self._free = client, asyncio.Semaphore(streams)

    async def texts(self, exercises: Sequence[Exercise], adapter: str = "", what: str = "") -> list[str]:
        with tqdm(total=len(exercises), desc=what, unit="answer", disable=None) as bar:
            return list(await asyncio.gather(*(self._text(each, adapter, bar) for each in exercises)))

    async def _text(self, exercise: Exercise, adapter: str, bar: tqdm[Any]) -> str:
        async with self._free:
            text = await self.text(exercise, adapter)
        bar.update()
        return text

    async def text(self, exercise: Exercise, adapter: str) -> str:
        asked: dict[str, Any] = {"max_tokens": MAX_TOKENS} | ({"lora_name": adapter} if adapter else {})
        return (await self._client.generate([user(exercise.prompt)], **asked)).text

    async def until_served(self, adapter: str, exercise: Exercise) -> None:
        """A server finds new adapters by itself."""
        while True:
            try:
                await self.text(exercise, adapter)
                return
            except RefusedError:
                await asyncio.sleep(LOOK_EVERY_S)


class Server:
    """With directories of its own for jobs and adapters."""

    def __init__(self, directory: Path) -> None:
        self.adapters, self._jobs = directory / "adapters", directory / "finetuning"
        self._served = Gapless(
            **{
                "model.dtype": "float32",
                "engine.kind": "torch",
                "adapters.directory": self.adapters,
                "finetuning.directory": self._jobs,
            }
        )

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self._served.grpc_port}"

    def submit(self, scale: Scale) -> Job:
        size = ("--steps", scale.steps, "--batch-size", scale.batch_size)
        words = ("submit", DATA, "--detach", "--name", NAME, *size, *OPTIONS)
        (path,) = self._jobs.glob(f"*/{self.run(*words).split()[0]}")
        return Job(path)

    def run(self, *words: object) -> str:
        """A verb of the command line; what it prints."""
        command = [sys.executable, "-m", "commands.finetune", "--set"]
        command += [
            f"finetuning.directory={self._jobs}",
            "--set",
            "model.directory=bundled",
            *map(str, words),
        ]
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

    def close(self) -> None:
        self._served.stop()


@dataclass(frozen=True, slots=True)
class Trained:
    job: Job
    seconds: float
    texts: list[list[str]]  # of each eight-task prompt, all answers to what was asked meanwhile
    num_ended: int  # of these answers, those that ended before the job did


async def train(server: Server, asker: Asker, eight: Sequence[Exercise], scale: Scale) -> Trained:
    """Submits the job, and asks the prompts again and again until it has ended and each was asked once: where
    a job is over sooner, the last answers come without it.
    """
    job, began_s = server.submit(scale), time.monotonic()
    texts: list[list[str]] = [[] for _ in eight]
    ended_s, num_ended = 0.0, 0

    async def ask(first: int) -> None:
        nonlocal num_ended
        number = first
        while not ended_s or number < len(eight):
            texts[number % len(eight)].append(await asker.text(eight[number % len(eight)], ""))
            number += scale.streams
            num_ended += not ended_s

    async def watch() -> None:
        nonlocal job, ended_s
        with tqdm(total=int(job.options["steps"]), desc="training", unit="step", disable=None) as bar:
            while (job := Job(job.directory)).status not in ENDED:
                bar.update(len(job.losses) - bar.n)
                await asyncio.sleep(LOOK_EVERY_S)
            bar.update(len(job.losses) - bar.n)
        ended_s = time.monotonic()

    await asyncio.gather(watch(), *(ask(first) for first in range(scale.streams)))
    if job.status != "succeeded":
        raise RuntimeError(f"{job.id}: {job.status}: {job.fields['error']}")
    return Trained(job, ended_s - began_s, texts, num_ended)


def exact(texts: Sequence[str], exercises: Sequence[Exercise]) -> float:
    """The share of answers that are the wanted text to the character, 0 to 1."""
    return sum(text == each.answer for text, each in zip(texts, exercises, strict=True)) / len(texts)


async def measure(server: Server, tasks: Sequence[Task], held_out: Corpus, scale: Scale) -> dict[str, Any]:
    eight = [each for task in tasks for each in draw(task, held_out, scale.prompts)]
    ninth = draw(NINTH, held_out, scale.held_out)
    async with AsyncClient(server.url) as client:
        asker = Asker(client, scale.streams)
        before = await asker.texts(eight, what="the eight tasks")
        base = await asker.texts(ninth, what="the ninth task, without an adapter")
        trained = await train(server, asker, eight, scale)
        after = await asker.texts(eight, what="the eight tasks")
        again = await asker.texts(ninth, what="the ninth task, without an adapter")
        points = [{"step": 0, "exact_match": exact(base, ninth)}]
        points += [await by_step(server, asker, trained.job, step, ninth) for step in kept(trained.job)]
    during = [(text, number) for number, each in enumerate(trained.texts) for text in each]
    return {
        "rows": [
            row("before", exact(base, ninth), before, eight, before),
            row(
                "while it trains",
                "–",
                [text for text, _ in during],
                [eight[number] for _, number in during],
                [before[number] for _, number in during],
            ),
            row("after, without the adapter", exact(again, ninth), after, eight, before),
            {
                "when": "after, with the adapter",
                "ninth task, exact match": f"{points[-1]['exact_match']:.1%}",
                **dict.fromkeys(("eight tasks, exact match", "answers", "as before"), "–"),
            },
        ],
        "scale": {name: getattr(scale, name) for name in scale.__slots__},
        "options": [str(each) for each in OPTIONS],
        "training_s": round(trained.seconds, 1),
        "answers_ended_while_it_trained": trained.num_ended,
        "trained_tokens": trained.job.fields["trained_tokens"],
        "exact_match_by_step": points,
        "losses": [line["loss"] for line in trained.job.losses],
    }


def row(
    when: str, ninth: float | str, texts: Sequence[str], exercises: Sequence[Exercise], before: Sequence[str]
) -> dict[str, Any]:
    return {
        "when": when,
        "ninth task, exact match": ninth if isinstance(ninth, str) else f"{ninth:.1%}",
        "eight tasks, exact match": f"{exact(texts, exercises):.1%}",
        "answers": len(texts),
        "as before": sum(text == first for text, first in zip(texts, before, strict=True)),
    }


def kept(job: Job) -> list[int]:
    return saved_states.steps(job.directory / "checkpoints")


async def by_step(
    server: Server, asker: Asker, job: Job, step: int, exercises: Sequence[Exercise]
) -> dict[str, Any]:
    """Exact match of the saved state after `step`, exported and served as a user would."""
    name = f"{NAME}-{step}"
    server.run("export", job.id, server.adapters / name / "1", "--step", step)
    await asker.until_served(name, exercises[0])
    texts = await asker.texts(exercises, name, f"the ninth task, after step {step}")
    return {"step": step, "exact_match": exact(texts, exercises)}


def held_out_text(is_quick: bool) -> Corpus:
    """Of the standard library, without what is in the other files too; `is_quick`: they are not read."""
    if is_quick:
        return read_corpus([path for path in standard_library_files() if is_held_out(path)])
    return load_corpora()[1]


def plot(result: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6))
    losses, points = result["losses"], result["exact_match_by_step"]
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, color="tab:gray")
    axes.set(xlabel="optimiser step", ylabel="loss (nats a token)", ylim=(0, None))
    share = axes.twinx()
    share.plot([point["step"] for point in points], [100 * point["exact_match"] for point in points], "o-")
    share.set(ylabel="exact match, % of held-out prompts", ylim=(0, 100))
    share.yaxis.label.set_color("tab:blue")
    axes.set_title("The bundled model learns a ninth task while it serves eight")
    figure.savefig(path, bbox_inches="tight", dpi=120)


def main() -> None:
    parser = command_line(
        __doc__,
        quick="a few prompts, two steps: does it run at all?",
        plot="draw loss and exact match by step here",
    )
    asked = parser.parse_args()
    scale = QUICK if asked.quick else FULL
    tasks, held_out = all_tasks(read_lexicon(ROOT / "models" / "bundled")), held_out_text(asked.quick)
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory))
        try:
            result = asyncio.run(measure(server, tasks, held_out, scale))
        finally:
            server.close()
    if asked.json:
        write_result(asked.json, result)
    if asked.plot:
        plot(result, asked.plot)
    print(f"trained for {result['training_s']} s, {result['trained_tokens']} tokens")
    print(json.dumps(result["exact_match_by_step"]))
    print(table(result["rows"]))


if __name__ == "__main__":
    main()
