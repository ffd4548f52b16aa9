"""Measures the cost of Triton: the same work through the engine, the instance and the ensemble, in turn in
one run.

    python -m benchmarks.triton_cost --rounds 5 --json benchmarks/results/triton_cost.json

`engine` is engine and slot scheduler in one process, which takes new requests exactly between two steps;
`instance` is the instance process, its loop driven over its own wire, as the scheduler model drives it;
`ensemble` is the whole way through Triton, streaming over HTTP. Shape S with random weights (see peers.py),
the lengths of `workload.json` with text as prompts, closed loop, 16 streams, greedy, EOS ignored; the client
runs on Triton's processors. Time to first token: from submission to the first token or text.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.common.clients import ClosedLoop
from benchmarks.common.command_line import command_line
from benchmarks.common.figures import figures_of, median, medians
from benchmarks.common.http_streams import EnsembleStreams
from benchmarks.common.models import VOCABULARY, make_model
from benchmarks.common.work import Job, Timing, Work, load_work
from benchmarks.peers.engines import TOKEN_BUDGET
from benchmarks.peers.process import EngineProcess
from benchmarks.peers.setups import SETUPS
from benchmarks.results_file import table, write_result
from python_backends.engine.kinds import kind_of
from python_backends.linux.large_pages import with_large_pages
from python_backends.linux.loop_processor import keep_off
from python_backends.linux.process_group import end_group, start_group
from python_backends.settings import ROOT, Settings, dump, load
from python_backends.wires.sessions import InstanceReady, SchedulerEnd
from tests.support.server.serving import Gapless

MODES = ("engine", "instance", "ensemble")


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    tok_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    chunks_a_token: float


class Instance:
    """The instance process without Triton; this process is in the place of the scheduler model."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        dump(settings, directory / "settings.json")
        self._link = SchedulerEnd(directory, dead_after_s=600)
        command = [sys.executable, "-m", "python_backends.instance", str(directory), "0"]
        self._process = start_group(command, with_large_pages(os.environ), cwd=ROOT)
        while not any(isinstance(news, InstanceReady) for news in self._link.receive(1.0)):
            pass
        self._num_asked = 0

    def run(self, work: Work) -> list[Timing]:
        clients = ClosedLoop(work, first_id=self._num_asked)
        self._num_asked += len(work.jobs)
        while not clients.is_done:
            self._link.send(0, clients.receive(0.0))
            clients.publish(self._link.receive(1.0))
        return clients.timings

    def close(self) -> None:
        end_group(self._process, wait_s=10)
        self._link.close()


def make_tokenizer(directory: Path) -> Tokenizer:
    """Trains a byte-level BPE of 32,000 entries on the sources of the standard library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(path) for path in sources()], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer


def sources() -> list[Path]:
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def make_texts(tokenizer: Tokenizer, work: Work, number: int) -> tuple[list[str], Work]:
    """Returns texts about as long as the workload's prompts, and the work with their ids. They differ in
    every round, so that no prefix is found.
    """
    ids = tokenizer.encode("\n".join(path.read_text() for path in sources()[:40])).ids
    rng = random.Random(number)
    starts = [rng.randrange(len(ids) - 512) for _ in work.jobs]
    texts = [
        tokenizer.decode(ids[start : start + len(job.prompt)])
        for start, job in zip(starts, work.jobs, strict=True)
    ]
    jobs = [
        Job(tokenizer.encode(text).ids, job.max_tokens) for text, job in zip(texts, work.jobs, strict=True)
    ]
    return texts, replace(work, jobs=jobs)


def row_of(mode: str, work: Work, timings: list[Timing], num_chunks: int) -> Row:
    made = figures_of(work, timings)
    chunks_a_token = num_chunks / sum(job.max_tokens for job in work.jobs)
    return Row(mode, made.tok_s, made.ttft_p50_ms, made.ttft_p99_ms, chunks_a_token)


def measure(
    directory: Path, dtype: str, rounds: int, work: Work, overrides: dict[str, str]
) -> dict[str, list[Row]]:
    make_model("S", dtype, directory)
    tokenizer = make_tokenizer(directory)
    settings = {
        "model.directory": str(directory),
        "model.dtype": dtype,
        "model.max_model_tokens": str(work.max_model_tokens),
        "engine.token_budget": str(TOKEN_BUDGET),
        "engine.kind": "torch",
        **overrides,
    }
    rows: dict[str, list[Row]] = {mode: [] for mode in MODES}
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(
            contextlib.closing(EngineProcess(SETUPS["gapless"], directory, dtype, work))
        )
        loaded = load(ROOT / "gapless.toml", settings)
        instance = stack.enter_context(contextlib.closing(Instance(loaded, directory)))
        served = stack.enter_context(Gapless(**settings))
        ensemble = EnsembleStreams(served.http_port, work.in_flight, lambda event: bool(event["text_output"]))
        stack.callback(ensemble.close)
        if kind_of(loaded).gives_way(loaded):
            keep_off()  # as Triton's processes do; a client elsewhere would not use the loop's processor
        for number in range(rounds + 1):
            texts, round_work = make_texts(tokenizer, work, number)
            timings = {"engine": engine.run(round_work)[0], "instance": instance.run(round_work)}
            before = ensemble.num_events
            timings["ensemble"] = ensemble.ask(texts, round_work)
            made = {
                mode: row_of(mode, round_work, timings[mode], ensemble.num_events - before) for mode in MODES
            }
            said = ", ".join(
                f"{row.mode} {row.tok_s:.0f} tokens/s, first token {row.ttft_p50_ms:.0f} ms"
                for row in made.values()
            )
            print(f"{'round ' + str(number) if number else 'warm-up'}: {said}", flush=True)
            for mode in MODES if number else ():
                rows[mode].append(made[mode])
    return rows


def summary(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Returns medians of each figure, and of the ensemble's figures compared with the others', round by
    round.
    """
    result: dict[str, Any] = {"rows": medians((row for mode in MODES for row in rows[mode]), ("mode",), 3)}
    for mode in MODES[:-1]:
        pairs = list(zip(rows[mode], rows["ensemble"], strict=True))
        result[f"tok_s_of_{mode}"] = median([through.tok_s / alone.tok_s for alone, through in pairs], 3)
        result[f"ttft_p50_ms_more_than_{mode}"] = median(
            [through.ttft_p50_ms - alone.ttft_p50_ms for alone, through in pairs], 3
        )
    return result


def main() -> None:
    parser = command_line(__doc__, quick="a few short requests, one round: does it run at all?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="a setting of the served side",
    )
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    settings = dict(item.partition("=")[::2] for item in arguments.set)
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(Path(directory), arguments.dtype, rounds, load_work(arguments.quick), settings)
    result = summary(rows)
    if arguments.json:
        write_result(arguments.json, {"rounds": rounds, **result})
    for mode in MODES[:-1]:
        share, more = result[f"tok_s_of_{mode}"], result[f"ttft_p50_ms_more_than_{mode}"]
        print(f"ensemble / {mode}: {share:.2f} of the tokens per second, first token {more:+.1f} ms")
    print(
        table(
            [
                {name: f"{v:.2f}" if isinstance(v, float) else v for name, v in row.items()}
                for row in result["rows"]
            ]
        )
    )


if __name__ == "__main__":
    main()
