"""What it costs engines that every answer follows a JSON schema, in turn in one run.

    python -m benchmarks.guided_peers --json benchmarks/results/guided_peers.json

Gapless's loop with llguidance, vLLM with xgrammar, and llama.cpp's server with its own grammars, as `peers`
runs them (vLLM as its trial mostly chose: glibc's allocator, in the client's process), with SmolLM2. The same
chats for all, greedy, 64 tokens an answer; the schema asks for more. 1, 4 and 16 are asked at once, with it
and without; each round begins with another engine, after a short one that warms up. `records`: how many items
of the last round are whole, and so valid by `jsonschema`; the others are cut. An engine that can't be
started, dies or answers wrongly is named and left out (`left_out`).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
from tokenizers import Tokenizer

from benchmarks.common.command_line import command_line
from benchmarks.common.models import make_published
from benchmarks.common.work import PUBLISHED, Timing, Work
from benchmarks.guided_cost import RECORD, chats, listed
from benchmarks.peers.__main__ import names_of
from benchmarks.peers.measurement import CANNOT, REST_S, LeftOut, rotated
from benchmarks.peers.process import EngineProcess, prepare_model
from benchmarks.peers.setups import SETUPS
from benchmarks.results_file import table, write_result
from commands.model import located
from python_backends.settings import ModelSettings, Settings
from python_backends.text.checkpoint import read_checkpoint

ENGINES = {name: SETUPS[name] for name in ("gapless", "vllm", "llama_cpp")}
SHORT_TOKENS = 12
REQUESTS = {1: 3, 4: 8, 16: 32}  # by how many are asked at once
SCHEMA = json.dumps(listed(RECORD))
Row = dict[str, Any]
Passes = dict[tuple[str, int, bool], list[list[Timing]]]  # by engine, at once, with the schema


def load_of(chats: Work, at_once: int, is_guided: bool) -> Work:
    schema = SCHEMA if is_guided else ""
    jobs = [replace(job, schema=schema) for job in chats.jobs[: REQUESTS[at_once]]]
    return replace(chats, jobs=jobs, in_flight=at_once)


@contextlib.contextmanager
def started(
    names: Sequence[str], directory: Path, dtype: str, work: Work, left_out: LeftOut
) -> Iterator[dict[str, EngineProcess]]:
    """Those that can be started."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in names:
            try:
                prepare_model(ENGINES[name], directory)
                found[name] = EngineProcess(ENGINES[name], directory, dtype, work)
            except CANNOT as error:
                left_out.add(name, error)
                continue
            stack.callback(found[name].close)
            print(f"{name}: up", flush=True)
        yield found


def measure(engines: dict[str, EngineProcess], work: Work, rounds: int, left_out: LeftOut) -> Passes:
    """Removes an engine that fails from `engines`, and all of its passes."""
    passes: Passes = {}
    for number in range(rounds + 1):
        for name in rotated(list(engines), number):
            time.sleep(REST_S)
            try:
                found = one_round(engines[name], work, number)
            except RuntimeError as error:
                left_out.add(name, error)
                del engines[name]
                passes = {case: each for case, each in passes.items() if case[0] != name}
                continue
            if number:
                for case, timings in found.items():
                    passes.setdefault((name, *case), []).append(timings)
            print(f"{name}: {f'round {number}' if number else 'warm'}", flush=True)
    return passes


def one_round(engine: EngineProcess, work: Work, number: int) -> dict[tuple[int, bool], list[Timing]]:
    """By how many are asked at once, and whether with the schema. Round 0 is short: it warms up."""
    found = {}
    for at_once in REQUESTS:
        for is_guided in (number % 2 == 0, number % 2 == 1):
            load = load_of(work, at_once, is_guided)
            load = load if number else short(load)
            found[at_once, is_guided] = whole(engine.run(load)[0], load)
    return found


def short(load: Work) -> Work:
    jobs = [replace(job, max_tokens=min(job.max_tokens, SHORT_TOKENS)) for job in load.jobs]
    return replace(load, jobs=jobs)


def whole(timings: list[Timing], load: Work) -> list[Timing]:
    """Raises RuntimeError if an answer has another number of tokens than was asked for."""
    counts = [len(each.tokens) for each in timings]
    if counts != [job.max_tokens for job in load.jobs]:
        raise RuntimeError(f"an answer has another number of tokens: {counts}")
    return timings


def rows_of(passes: Passes, tokenizer: Tokenizer, left_out: LeftOut) -> list[Row]:
    """None where an answer does not follow the schema."""
    rows = []
    for name, at_once in [(name, at_once) for name, at_once, is_guided in passes if is_guided]:
        try:
            rows.append(row_of(passes, name, at_once, tokenizer))
        except jsonschema.ValidationError as error:
            left_out.add(f"{name}, {at_once} at once", error.message)
    return rows


def row_of(passes: Passes, name: str, at_once: int, tokenizer: Tokenizer) -> Row:
    guided, plain = passes[name, at_once, True], passes[name, at_once, False]
    speeds = [[tok_s(timings) for timings in each] for each in (guided, plain)]
    ratios = [mine / other for mine, other in zip(*speeds, strict=True)]
    return {
        "engine": name,
        "at once": at_once,
        "no guide, tok/s": round(float(np.median(speeds[1])), 1),
        "JSON, tok/s": round(float(np.median(speeds[0])), 1),
        "of no guide": round(float(np.median(ratios)), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "records": sum(num_records(tokenizer.decode(each.ids)) for each in guided[-1]),
    }


def tok_s(timings: Sequence[Timing]) -> float:
    took_s = max(each.ended for each in timings) - min(each.submitted for each in timings)
    return sum(len(each.tokens) for each in timings) / took_s


def num_records(text: str) -> int:
    """How many whole ones a list has that was cut. Raises jsonschema.ValidationError."""
    rest, count = text.lstrip().removeprefix("[").lstrip(), 0
    while rest.startswith("{"):
        try:
            found, end = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            break
        jsonschema.validate(found, RECORD)
        rest, count = rest[end:].lstrip().removeprefix(",").lstrip(), count + 1
    return count


def main() -> None:
    parser = command_line(__doc__, quick="one round of short answers: does it run at all?")
    parser.add_argument("--only", help=f"engines, of {', '.join(ENGINES)}; all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    asked = parser.parse_args()
    names = names_of(ENGINES, asked.only) if asked.only else list(ENGINES)
    checkpoint = read_checkpoint(located(Settings(model=ModelSettings(directory="auto"))).model_directory)
    work = chats(checkpoint, max(REQUESTS.values()))
    work = short(work) if asked.quick else work
    rounds, left_out = 1 if asked.quick else asked.rounds, LeftOut()
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        make_published(asked.dtype, directory)
        with started(names, directory, asked.dtype, work, left_out) as engines:
            versions = {name: each.versions for name, each in engines.items()}
            passes = measure(engines, work, rounds, left_out)
    rows = rows_of(passes, checkpoint.tokenizer, left_out)
    if asked.json:
        said = {"model": PUBLISHED, "rounds": rounds, "dtype": asked.dtype, "environments": versions}
        write_result(asked.json, {**said, "left_out": left_out.reasons, "rows": rows})
    print(table(rows) if rows else "nothing was measured")


if __name__ == "__main__":
    main()
