"""What guides cost: tokens per second where every answer follows one, compared with the same work where none
does, and the time to compile them.

    python -m benchmarks.guided_cost --json benchmarks/results/guided_cost.json

The instance's loop without Triton, closed loop, 16 in flight, greedy. Every answer has as many tokens as
without a guide: the schemas ask for lists that are longer than that. `S` and `M` have random weights and the
lengths of `workload.json`, its first requests, with answers of at most 64 tokens. Another name is that of a
checkpoint, as in `model.directory` (`auto`: SmolLM2); it gets prompts of `real_prompts` by its chat template,
and gives answers of 64 tokens.
One of many tools must be called, as `tool_choice: required` asks; they are not in the prompts, which are the
same in all cases. The cases take turns; each round begins with another one. Five rounds take one to four
minutes a model. "processor" is the processor time a token, of that without a guide: other programs on the
machine change it less than tokens per second.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks.common.clients import ClosedLoop
from benchmarks.common.command_line import command_line
from benchmarks.common.models import SHAPES, VOCABULARY, make_model
from benchmarks.common.work import Job, Work, load_work
from benchmarks.real_prompts.prompts import read_prompts
from benchmarks.results_file import table, write_result
from benchmarks.triton_cost import make_tokenizer
from commands.model import located
from front.guided.writing import call_form, must_call
from front.tools import Tool
from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import Guides
from python_backends.instance.build import build, start_guides
from python_backends.instance.loop import Instance, Parts
from python_backends.nouns.request import Request, Sampling
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, ModelSettings, Settings
from python_backends.text.checkpoint import Checkpoint, read_checkpoint
from python_backends.text.door.chat_template import template_of
from python_backends.text.door.encoder import PromptEncoder
from python_backends.text.vocabulary import vocabulary_of

NUM_TOOLS = (1, 50, 500)
NUM_JOBS, NUM_TOKENS, IN_FLIGHT = 24, 64, 16
NUM_QUICK, QUICK_TOKENS = 3, 12
MOST_TOKENS = 1024  # of a prompt with its answer
PLAIN = "no guide"


def listed(item: dict[str, Any]) -> dict[str, Any]:
    """More items than an answer has tokens."""
    return {"type": "array", "items": item, "minItems": 200}


RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["person", "place", "thing"]},
        "since": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 3},
        "is_open": {"type": "boolean"},
    },
    "required": ["name", "kind", "since", "tags", "is_open"],
    "additionalProperties": False,
}


def tools(count: int) -> list[Tool]:
    return [{"type": "function", "function": function(number)} for number in range(count)]


def function(number: int) -> dict[str, Any]:
    """Small, so that 500 of them are a guide that the door takes."""
    fields = {f"a{number}": listed({"type": "integer"})}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"name": f"f{number}", "parameters": schema}


def grammars(counts: Sequence[int]) -> dict[str, str]:
    """By case."""
    found = {PLAIN: "", "JSON of a schema": grammar_of("json_schema", json.dumps(listed(RECORD)))}
    for count in counts:
        guide = must_call(call_form(None, False), tools(count), True, "", "tools")
        found[f"one of {count} tools"] = grammar_of(guide.kind, guide.guide)
    return found


class Cost(NamedTuple):
    """Of a token."""

    clock_s: float
    processor_s: float


class Served:
    """An instance's loop over one model, which follows guides."""

    def __init__(self, directory: str, dtype: str) -> None:
        model = ModelSettings(directory=directory, dtype=dtype, max_model_tokens=MOST_TOKENS)
        self._settings = located(Settings(model=model, engine=EngineSettings(slots=IN_FLIGHT)))
        scheduler, self._engine = build(self._settings)
        self.limits = scheduler.limits
        self.checkpoint = read_checkpoint(self._settings.model_directory)
        self._guided = start_guides(self._settings, scheduler, self._engine, lambda: None)

    def run(self, work: Work, grammar: str) -> Cost:
        """Raises RuntimeError if a guide can't be followed, or an answer has fewer tokens than wanted."""
        scheduler = SlotScheduler(self.limits, self._settings.engine.token_budget)  # no earlier prefixes
        clients = ClosedLoop(work, partial(follows, grammar, self.checkpoint.eos_ids if grammar else ()))
        ahead, parts = self._settings.steps_ahead, Parts(guided=self._guided)
        instance = Instance(scheduler, self._engine, clients, lambda _: None, ahead, parts)
        began = Cost(time.perf_counter(), time.process_time())
        while not clients.is_done:
            instance.turn()
        took_s, processor_s = time.perf_counter() - began.clock_s, time.process_time() - began.processor_s
        wanted = sum(job.max_tokens for job in work.jobs)
        if (count := sum(len(timing.tokens) for timing in clients.timings)) != wanted:
            raise RuntimeError(f"{count} tokens instead of {wanted}: an answer ended early")
        return Cost(took_s / wanted, processor_s / wanted)

    def compile_ms(self, grammar: str) -> float:
        """By one that knows the vocabulary and no grammar."""
        guides = Guides(partial(vocabulary_of, self.checkpoint, self.limits.vocab_size))
        guides.check(grammar_of("regex", "a"))
        began_s = time.perf_counter()
        guides.check(grammar)
        return (time.perf_counter() - began_s) * 1e3

    def close(self) -> None:
        self._engine.close()


def follows(grammar: str, stop_ids: tuple[int, ...], request_id: int, job: Job) -> Request:
    """A request whose answer follows `grammar`, if it is not empty."""
    sampling = Sampling(job.max_tokens, grammar=grammar, stop_ids=stop_ids)
    return Request(request_id, np.array(job.prompt, np.int32), sampling)


def random_work() -> Work:
    work = load_work(quick=False)
    jobs = [replace(job, max_tokens=min(job.max_tokens, NUM_TOKENS)) for job in work.jobs[:NUM_JOBS]]
    return replace(work, jobs=jobs)


def chats(checkpoint: Checkpoint, count: int = NUM_JOBS) -> Work:
    """As people write them."""
    special, template = template_of(checkpoint)
    if template is None:
        raise SystemExit("a checkpoint without a chat template gets no prompts")
    encoder = PromptEncoder(checkpoint.tokenizer, special)
    prompts = [encoder.encode(template.render(each.messages)).tolist() for each in read_prompts()[:count]]
    jobs = [Job(prompt[-MOST_TOKENS // 2 :], NUM_TOKENS) for prompt in prompts]
    return Work(jobs, IN_FLIGHT, MOST_TOKENS)


def shortened(work: Work) -> Work:
    jobs = [replace(job, max_tokens=min(job.max_tokens, QUICK_TOKENS)) for job in work.jobs[:NUM_QUICK]]
    return replace(work, jobs=jobs)


def measure(
    model: str, served: Served, work: Work, rounds: int, counts: Sequence[int]
) -> list[dict[str, Any]]:
    found = grammars(counts)
    cases = list(found)
    costs: dict[str, list[Cost]] = {case: [] for case in cases}
    compiled: dict[str, list[float]] = {case: [] for case in cases}
    for grammar in found.values():
        served.run(shortened(work), grammar)  # warms up
    with tqdm(total=rounds * len(cases), desc=model, unit="pass", disable=None) as bar:
        for number in range(rounds):
            for case in [*cases[number % len(cases) :], *cases[: number % len(cases)]]:
                costs[case].append(served.run(work, found[case]))
                compiled[case] += [served.compile_ms(found[case])] if found[case] else []
                bar.update()
    return [row_of(model, case, costs, compiled[case]) for case in cases]


def row_of(model: str, case: str, costs: dict[str, list[Cost]], compiled: Sequence[float]) -> dict[str, Any]:
    mine, plain = np.array(costs[case]), np.array(costs[PLAIN])  # [rounds, 2]
    ratios = plain[:, 0] / mine[:, 0]
    return {
        "model": model,
        "guide": case,
        "tok_s": round(float(1 / np.median(mine[:, 0])), 1),
        "of no guide": round(float(np.median(ratios)), 3),
        "least": round(float(ratios.min()), 3),
        "most": round(float(ratios.max()), 3),
        "processor": round(float(np.median(mine[:, 1] / plain[:, 1])), 3),
        "compile_ms": round(float(np.median(compiled)), 1) if compiled else "",
    }


def make_shape(shape: str, dtype: str, directory: Path) -> None:
    """Answers of it end with the last id, so that they can follow guides."""
    make_model(shape, dtype, directory)
    (directory / "tokenizer.json").write_text(words())
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": VOCABULARY - 1}))


@cache
def words() -> str:
    """A vocabulary as large as that of the shapes, of what programs are written in."""
    with tempfile.TemporaryDirectory() as directory:
        make_tokenizer(Path(directory))
        return (Path(directory) / "tokenizer.json").read_text()


def measured(model: str, dtype: str, rounds: int, is_quick: bool) -> list[dict[str, Any]]:
    counts = NUM_TOOLS[:2] if is_quick else NUM_TOOLS
    with tempfile.TemporaryDirectory() as directory:
        if model in SHAPES:
            make_shape(model, dtype, Path(directory))
        with contextlib.closing(Served(directory if model in SHAPES else model, dtype)) as served:
            work = random_work() if model in SHAPES else chats(served.checkpoint)
            return measure(model, served, shortened(work) if is_quick else work, rounds, counts)


def main() -> None:
    parser = command_line(__doc__, quick="a few short answers, one round: does it run at all?")
    parser.add_argument(
        "--models", help=f"of {', '.join(SHAPES)}, and checkpoints; S,M,auto, where auto is SmolLM2"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    asked = parser.parse_args()
    models = (asked.models or ("bundled" if asked.quick else "S,M,auto")).split(",")
    rounds = 1 if asked.quick else asked.rounds
    rows = [row for model in models for row in measured(model, asked.dtype, rounds, asked.quick)]
    if asked.json:
        write_result(asked.json, {"rounds": rounds, "dtype": asked.dtype, "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
