"""Compares the bundled model's answers by layers in C++ and by torch's operators, in different types: greedy,
on the held-out prompts of its eight tasks.

    python -m benchmarks.agreement --prompts 8 --json benchmarks/results/agreement.json

The reference is torch's operators in float32. *Tokens* is the share of the reference's tokens before the
first different one, *answers* the share of answers that are the same to the end, *right* the share that are
the correct text, *memory* the memory of the process after all answers, in MiB. Every engine runs in its own
process.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import asdict, dataclass

import numpy as np
from tqdm import tqdm

from benchmarks import ROOT
from benchmarks.common.command_line import command_line
from benchmarks.common.work import resident_mib, same_tokens

MODEL = ROOT / "models" / "bundled"
REFERENCE = ("torch", "float32", "same")
KINDS = [
    REFERENCE,
    *(
        (b, d, w)
        for b in ("torch", "layers")
        for d in ("float32", "bfloat16")
        for w in ("same", "int8", "int4")
    ),
]
QUICK_KINDS = [REFERENCE, ("layers", "bfloat16", "same")]
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


def answer(kind: tuple[str, str, str], prompts: list[list[int]], end: int) -> tuple[list[list[int]], float]:
    """Returns the tokens of every answer without its end, and the memory of the process in MiB."""
    from python_backends.instance.build import build
    from python_backends.nouns.request import Request, Sampling
    from python_backends.settings import EngineSettings, ModelSettings, Settings

    by, dtype, weights = kind
    layers = "auto" if by == "layers" else "off"
    settings = Settings(
        ModelSettings(str(MODEL), dtype, weights),
        EngineSettings("torch", threads=THREADS, cpp_layers=layers),
    )
    scheduler, engine = build(settings)
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


def compare(count: int, kinds: list[tuple[str, str, str]]) -> list[Row]:
    from transformers import AutoTokenizer

    from benchmarks.common.bundled_prompts import draw_prompts

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    drawn = list(draw_prompts(count))
    prompts, wanted = [each.prompt for each in drawn], [each.exercise.answer for each in drawn]
    context, rows, reference = multiprocessing.get_context("spawn"), [], list[list[int]]()
    for kind in tqdm(dict.fromkeys(kinds), desc="engines", disable=None):
        with context.Pool(1) as pool:
            answers, memory = pool.apply(answer, (kind, prompts, tokenizer.eos_token_id))
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


def main() -> None:
    from benchmarks.results_file import table, write_result

    parser = command_line(__doc__, quick="one prompt of each task, two kinds: does it run at all?")
    parser.add_argument("--prompts", type=int, default=8, help="of each of the eight tasks")
    arguments = parser.parse_args()
    count, kinds = (1, QUICK_KINDS) if arguments.quick else (arguments.prompts, KINDS)
    rows = compare(count, kinds)
    if arguments.json:
        about = {"prompts_a_task": count, "threads": THREADS}
        write_result(arguments.json, {**about, "rows": [asdict(row) for row in rows]})
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
