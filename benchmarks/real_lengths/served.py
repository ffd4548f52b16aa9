"""Measures how well a server predicts the lengths of real answers: it learns from some prompts, is started
again so that it learns no more, and is asked others.

    python -m benchmarks.real_lengths.served --json benchmarks/results/real_lengths_served.json

Through Triton, with SmolLM2-135M-Instruct: 500 answers are learned from, then 300 prompts about topics that
none of them had are asked, and 300 of kinds that none of them had. Temperature 0.7, at most 1,024 tokens;
answers that are cut count as so long. *Constant*: the median of what was learned. A 0.9 quantile that is
the limit itself covers all answers; how many are covered by those below it is told, too.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.real_lengths.scores import MEDIAN, same_for_all
from benchmarks.real_prompts.__main__ import TEMPERATURE
from benchmarks.real_prompts.prompts import Prompt, folds, read_prompts
from benchmarks.results_file import table, write_result
from client import AsyncClient
from commands.logged_answers import HALF, Logged, logged, rank_correlation
from commands.stats import NINETY
from python_backends.nouns.stages import PROMPT_END, TEXT, name_of
from python_backends.prediction.learning import learn_regressions
from python_backends.prediction.request_log import RequestLog
from tests.support.server.serving import Gapless

LEARNED, ASKED = 500, 300
QUICK_LEARNED, QUICK_ASKED, QUICK_TOKENS = 60, 10, 32
MAX_TOKENS = 1024
LEFT_OUT = 2  # of eight parts of all topics, and of all kinds
STREAMS = 16
LEARNS_S, NEVER_S = 30.0, 86_400.0
WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    prompts: str
    stage: str
    answers: int
    cut: float  # share
    constant_error: float  # mean, absolute, tokens
    error: float  # of the predicted median
    of_constant: float
    rank_correlation: float
    covered_90: float
    below_limit: float  # share of answers whose 0.9 quantile is below the limit
    covered_90_below: float | None  # of these; None: there are none


class Served:
    """A server whose log and versions are in `directory`; it learns every `relearn_s`."""

    def __init__(self, directory: Path, relearn_s: float) -> None:
        self._directory = directory
        self._server = Gapless(
            **{
                "model.directory": "auto",
                "prediction.directory": directory,
                "prediction.relearn_s": relearn_s,
            }
        )

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def ask(self, name: str, prompts: Sequence[Prompt], most: int) -> list[Logged]:
        """Their answers, as the server's log has them."""
        before = len(self._logged())
        asyncio.run(self._ask(iter(tqdm(prompts, desc=name, unit="answer")), most))
        deadline = time.monotonic() + WAIT_S
        while len(found := self._logged()[before:]) < len(prompts):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the log has {len(found)} of {len(prompts)} answers")
            time.sleep(1)
        return found

    async def _ask(self, waiting: Iterator[Prompt], most: int) -> None:
        async def one_by_one() -> None:
            for prompt in waiting:
                await client.generate(list(prompt.messages), max_tokens=most, temperature=TEMPERATURE, seed=1)

        async with AsyncClient(f"127.0.0.1:{self._server.grpc_port}") as client, asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(one_by_one())

    def _logged(self) -> list[Logged]:
        try:
            log = RequestLog(self.place)
        except StopIteration:
            return []
        try:
            return logged(log, 10_000)
        finally:
            log.close()

    @property
    def place(self) -> Path:
        """Of what the model learns. Raises StopIteration before the learner has made it."""
        return next(path for path in self._directory.iterdir() if path.is_dir())


def chosen(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """What is learned from, and what is asked after it: no topic and no kind of those left out is learned."""
    topics, kinds = (np.array(folds(list(prompts), by)) < LEFT_OUT for by in ("topic", "kind"))
    flags = {"learned": ~topics & ~kinds, "new topics": topics & ~kinds, "new kinds": ~topics & kinds}
    return {name: [prompts[place] for place in np.flatnonzero(each)] for name, each in flags.items()}


def learn_in(directory: Path, prompts: Sequence[Prompt], most: int) -> list[Logged]:
    """Has a server answer them and learn. Returns their answers."""
    with Served(directory, LEARNS_S) as server:
        learned = server.ask("learned", prompts, most)
    learn_regressions(server.place)  # what has come since the server learned last
    return learned


def rows(name: str, learned: Sequence[Logged], asked: Sequence[Logged], most: int) -> Iterator[Row]:
    """One for each stage before the first token."""
    known, lengths = (np.array([each.length for each in some], np.float64) for some in (learned, asked))
    ended = np.array([each.ended for each in learned])
    constant = float(same_for_all(known, ended, 1).quantiles[0, MEDIAN])
    constant_error = float(np.abs(constant - lengths).mean())
    for stage in (TEXT, PROMPT_END):
        said = [each.said[stage] for each in asked]
        quantiles = np.stack([each.quantiles for each in said])
        error = float(np.abs(quantiles[:, HALF] - lengths).mean())
        covered, below = lengths <= quantiles[:, NINETY], quantiles[:, NINETY] < most
        yield Row(
            name,
            name_of(stage),
            len(asked),
            round(float(np.mean([not each.ended for each in asked])), 3),
            round(constant_error, 1),
            round(error, 1),
            round(error / constant_error, 3),
            round(rank_correlation(np.array([each.mean for each in said]), lengths), 3),
            round(float(covered.mean()), 3),
            round(float(below.mean()), 3),
            round(float(covered[below].mean()), 3) if below.any() else None,
        )


def main() -> None:
    parser = command_line(__doc__, f"{QUICK_LEARNED} answers of {QUICK_TOKENS} tokens, then {QUICK_ASKED}")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="a new one, for what was learned from")
    given = parser.parse_args()
    if given.keep and given.keep.exists():
        parser.error(f"--keep: {given.keep}: must be a new directory")
    first, after, most = (
        (QUICK_LEARNED, QUICK_ASKED, QUICK_TOKENS) if given.quick else (LEARNED, ASKED, MAX_TOKENS)
    )
    prompts = chosen(read_prompts())
    with tempfile.TemporaryDirectory(prefix="learned-") as folder:
        learned = learn_in(Path(folder), prompts.pop("learned")[:first], most)
        if given.keep:
            shutil.copytree(folder, given.keep)
        found: list[Row] = []
        with Served(Path(folder), NEVER_S) as server:
            for name, some in prompts.items():
                found += rows(name, learned, server.ask(name, some[:after], most), most)
    told = [asdict(each) for each in found]
    if given.json:
        write_result(given.json, {"learned": first, "max_tokens": most, "rows": told})
    print(table(told))


if __name__ == "__main__":
    main()
