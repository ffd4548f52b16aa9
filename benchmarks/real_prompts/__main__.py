r"""Asks a running server every prompt of the workload, three times with other seeds, and writes how long the
answers were.

    python -m benchmarks.real_prompts --model SmolLM2-135M-Instruct \
        --json benchmarks/real_prompts/smollm2.json

`--plain` asks by `text_input`, for a model without a chat template. A file that
is there already is completed, so Ctrl-C loses no answer.
"""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.real_prompts.answers import SEEDS, Answers, Question
from benchmarks.real_prompts.prompts import Prompt, digest, read_prompts
from client import AsyncClient

TEMPERATURE = 0.7
QUICK = 20  # prompts
SAVED_EVERY = 100  # answers
SHOWN = 12  # kinds in the table


class Asking:
    """Takes one question after another; `streams` of them run at the same time."""

    def __init__(self, client: AsyncClient, answers: Answers, plain: bool, most: int) -> None:
        self._client, self._answers, self._plain, self._most = client, answers, plain, most
        self._num_asked = 0

    async def run(self, questions: Sequence[Question], streams: int) -> None:
        """Raises GaplessError with the first answer that fails."""
        waiting = iter(tqdm(questions, desc="asking", unit="answer", smoothing=0.02))
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(self._one_by_one(waiting))

    async def _one_by_one(self, waiting: Iterator[Question]) -> None:
        for question in waiting:
            prompt = question.prompt
            piece = await self._client.generate(
                prompt.text if self._plain else list(prompt.messages),
                max_tokens=self._most,
                temperature=TEMPERATURE,
                seed=question.seed,
                return_num_output_tokens=True,
            )
            self._answers.note(question, piece.num_output_tokens or 0, piece.finish_reason == "stop")
            self._num_asked += 1
            if self._num_asked % SAVED_EVERY == 0:
                self._answers.save()


async def ask(
    asked: Sequence[Question], answers: Answers, url: str, plain: bool, most: int, streams: int
) -> None:
    """Notes all answers; Ctrl-C ends it early."""
    async with AsyncClient(url) as client:
        work = asyncio.create_task(Asking(client, answers, plain, most).run(asked, streams))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            pass
        finally:
            answers.save()


def show(prompts: Sequence[Prompt], answers: Answers) -> None:
    """Half of the kinds with the shortest answers, and half with the longest ones."""
    by_kind: dict[str, list[int]] = defaultdict(list)
    for prompt, lengths in zip(prompts, answers.lengths, strict=True):
        by_kind[prompt.kind] += [length for length in lengths if length is not None]
    known = sorted(
        (kind for kind in by_kind if by_kind[kind]), key=lambda kind: median(map(abs, by_kind[kind]))
    )
    table = Table("kind", "answers", "median tokens", "cut")
    for kind in known if len(known) <= SHOWN else [*known[: SHOWN // 2], *known[-SHOWN // 2 :]]:
        cut = sum(length < 0 for length in by_kind[kind]) / len(by_kind[kind])
        table.add_row(kind, str(len(by_kind[kind])), f"{median(map(abs, by_kind[kind])):.0f}", f"{cut:.0%}")
    Console().print(table)


def main() -> int:
    parser = command_line(__doc__, f"{QUICK} prompts, not all")
    parser.add_argument("--url", default="127.0.0.1:8001", help="the server (default: 127.0.0.1:8001)")
    parser.add_argument("--model", required=True, help="what it serves, for the file")
    parser.add_argument("--plain", action="store_true", help="ask by text_input, without a chat template")
    parser.add_argument("--max-tokens", type=int, default=1024, help="longest answer (default: 1024)")
    parser.add_argument("--streams", type=int, default=16, help="requests at the same time (default: 16)")
    given = parser.parse_args()
    prompts = read_prompts()
    about = {
        "model": given.model,
        "prompts": digest(prompts),
        "plain": given.plain,
        "temperature": TEMPERATURE,
        "max_tokens": given.max_tokens,
        "seeds": list(SEEDS),
    }
    try:
        answers = Answers(given.json, about, len(prompts))
    except ValueError as error:
        parser.error(str(error))
    asked = list(answers.missing(prompts[:QUICK] if given.quick else prompts))
    asyncio.run(ask(asked, answers, given.url, given.plain, given.max_tokens, given.streams))
    show(prompts, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
