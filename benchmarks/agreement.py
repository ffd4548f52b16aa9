"""Compares what layers in C++ and torch's operators compute in different types, with torch's operators in
float32.

    python -m benchmarks.agreement --prompts 8 --json benchmarks/results/agreement.json
    python -m benchmarks.agreement --model auto --by layers --json benchmarks/results/agreement_smollm2.json

The bundled model answers the held-out prompts of its eight tasks, greedily. *Tokens* is the share of the
reference's tokens before the first different one, *answers* the share of answers that are the same to the
end, *right* the share that are the correct text. Another model (`auto`: SmolLM2) reads the four texts of
`common/english.txt`, each token after the true ones before it. *Likeliest* is the share of places whose most
likely token is the reference's. *Memory* is that of the process at its end, in MiB. Every engine runs in its
own process, as it computes when it serves: layers in bfloat16 round activations where weights have 4 bits.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from tqdm import tqdm

from benchmarks import ROOT
from benchmarks.common.command_line import command_line
from benchmarks.common.scored_text import TEXTS, Scores, own_scores, text_agreement
from benchmarks.common.work import resident_mib, same_tokens

if TYPE_CHECKING:
    from python_backends.settings import Settings

Found = TypeVar("Found")
Kind = tuple[str, str, str]  # by, dtype, weights
MODEL = ROOT / "models" / "bundled"
REFERENCE = ("torch", "float32", "same")
BY = ("torch", "layers")
KINDS = [(b, d, w) for b in BY for d in ("float32", "bfloat16") for w in ("same", "int8", "int4")]
QUICK_KINDS = [("layers", "bfloat16", "same")]
MAX_TOKENS = 256
THREADS = 1  # of every engine


@dataclass(frozen=True, slots=True)
class Row:
    by: str  # torch: its operators; layers: in C++
    dtype: str
    weights: str
    tokens: float
    answers: float
    right: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class TextRow:
    by: str
    dtype: str
    weights: str
    likeliest: float
    perplexity: float
    memory_mib: float


def settings_of(kind: Kind, model: str = str(MODEL)) -> Settings:
    from commands.model import located
    from python_backends.settings import EngineSettings, ModelSettings, Settings

    by, dtype, weights = kind
    layers = "auto" if by == "layers" else "off"
    engine = EngineSettings("torch", threads=THREADS, cpp_layers=layers)
    return located(Settings(ModelSettings(model, dtype, weights), engine))


def answer(kind: Kind, prompts: list[list[int]], end: int) -> tuple[list[list[int]], float]:
    """Returns the tokens of every answer without its end, and the memory of the process in MiB."""
    from python_backends.instance.build import build
    from python_backends.nouns.request import Request, Sampling

    scheduler, engine = build(settings_of(kind))
    answers: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        request = Request(index, np.array(prompt, np.int32), Sampling(max_tokens=MAX_TOKENS, stop_ids=(end,)))
        scheduler.submit(request, np.zeros(0, np.int32))
    while (plan := scheduler.plan()) is not None:
        engine.launch(plan)
        events = scheduler.apply(plan, engine.collect())
        for index, token in zip(events.request_ids.tolist(), events.tokens.tolist(), strict=True):
            answers[index] += [token] if token != end else []
    return answers, resident_mib()


def read(model: str, kind: Kind) -> tuple[list[Scores], float]:
    """Returns the scores of the texts, and the memory of the process in MiB."""
    from python_backends.instance.build import build
    from python_backends.text.checkpoint import read_checkpoint

    settings = settings_of(kind, model)
    tokenizer = read_checkpoint(settings.model_directory).tokenizer
    _, engine = build(settings)
    texts = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return own_scores(engine, settings.engine.token_budget, texts), resident_mib()


def of_each(kinds: Sequence[Kind], call: Callable[[Kind], Found]) -> Iterator[tuple[Kind, Found]]:
    """What `call` returns in a process of its own, of the reference first."""
    context = multiprocessing.get_context("spawn")
    for kind in tqdm(dict.fromkeys((REFERENCE, *kinds)), desc="engines", disable=None):
        with context.Pool(1) as pool:
            yield kind, pool.apply(call, (kind,))


def compare(count: int, kinds: Sequence[Kind]) -> Sequence[Row | TextRow]:
    from transformers import AutoTokenizer

    from benchmarks.common.bundled_prompts import draw_prompts

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    drawn = list(draw_prompts(count))
    prompts, wanted = [each.prompt for each in drawn], [each.exercise.answer for each in drawn]
    rows, reference = [], list[list[int]]()
    call = partial(answer, prompts=prompts, end=tokenizer.eos_token_id)
    for kind, (answers, memory) in of_each(kinds, call):
        reference = reference or answers
        same = sum(same_tokens(*pair) for pair in zip(reference, answers, strict=True))
        right = [tokenizer.decode(tokens) == text for tokens, text in zip(answers, wanted, strict=True)]
        equal = [ours == theirs for ours, theirs in zip(reference, answers, strict=True)]
        rows.append(
            Row(*kind, same / sum(map(len, reference)), float(np.mean(equal)), float(np.mean(right)), memory)
        )
        tqdm.write(
            f"{', '.join(kind)}: {rows[-1].tokens:.1%} of the tokens, {rows[-1].answers:.1%} of the answers"
        )
    return rows


def compare_texts(model: str, kinds: Sequence[Kind]) -> Sequence[Row | TextRow]:
    rows, reference = [], list[Scores]()
    for kind, (scores, memory) in of_each(kinds, partial(read, model)):
        reference = reference or scores
        rows.append(TextRow(*kind, **asdict(text_agreement(reference, scores)), memory_mib=memory))
        tqdm.write(f"{', '.join(kind)}: {rows[-1].likeliest:.1%}, perplexity {rows[-1].perplexity:.2f}")
    return rows


def main() -> None:
    from benchmarks.results_file import table, write_result

    parser = command_line(__doc__, quick="one prompt of each task, two kinds: does it run at all?")
    parser.add_argument("--prompts", type=int, default=8, help="of each of the eight tasks")
    parser.add_argument("--model", help="that reads the texts, as in model.directory")
    parser.add_argument("--by", choices=BY, help="what computes; both")
    asked = parser.parse_args()
    count, some = (1, QUICK_KINDS) if asked.quick else (asked.prompts, KINDS)
    kinds = [kind for kind in some if asked.by in (None, kind[0])]
    rows = compare_texts(asked.model, kinds) if asked.model else compare(count, kinds)
    if asked.json:
        work = {"model": asked.model} if asked.model else {"prompts_a_task": count}
        write_result(asked.json, {**work, "threads": THREADS, "rows": [asdict(row) for row in rows]})
    print(
        table(
            [
                {name: f"{v:.3f}" if isinstance(v, float) else v for name, v in asdict(row).items()}
                for row in rows
            ]
        )
    )


if __name__ == "__main__":
    main()
