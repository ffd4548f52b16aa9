"""Measures how fast LoRA adapters are trained: ours as `submit --alone` does it, and PEFT's modules with
torch's autograd, in turn in one process, on the same model, mini-batches and threads.

    python -m benchmarks.finetuning_speed --json benchmarks/results/finetuning_speed.json

First a trial of both trainers' settings; the fastest of each by processor time is measured. `tok_s` are
tokens a second, without padding, over forward pass, backward pass and optimiser: the median of the rounds,
with the least and the most. `of_peft` is the median of the rounds' ratios, `of_peft_processor` the same by
processor time, which other work on the machine disturbs less. Data: `text` has sequences of 256 tokens, all
learned; `answers` sequences of 64 to 448 tokens, of which the second half is learned. Mini-batches have 4
sequences, adapters rank 16 and all seven modules of a layer.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line

BATCH_SIZE = 4
STEPS = {"S": 3, "M": 1}  # of a round, and of a trial after the first
LENGTHS = {"text": [256] * 16, "answers": np.random.default_rng(7).integers(64, 449, 16).tolist()}
LEARNED = {"text": 1.0, "answers": 0.5}
PEFT_SETTINGS: tuple[dict[str, bool], ...] = ({"batched": True}, {"batched": False})
PEFT_BFLOAT16 = tuple(each | {"float32_adapter": True} for each in PEFT_SETTINGS)
OUR_SETTINGS: tuple[dict[str, int], ...] = ({"pack_tokens": 512}, {"pack_tokens": 1024})


@dataclass(frozen=True, slots=True)
class Row:
    shape: str
    dtype: str
    data: str
    trainer: str
    settings: dict[str, Any]
    tok_s: float
    least: float
    most: float
    of_peft: float
    of_peft_processor: float
    rounds_tok_s: list[float]
    rounds_tok_processor_s: list[float]


@dataclass(frozen=True, slots=True)
class Step:
    tokens: int
    seconds: float
    processor_s: float  # of all threads of this process


def step_times(trainer: Any, examples: list[Any], steps: int) -> list[Step]:
    """Of `steps` mini-batches, from the first on."""
    from benchmarks.common.finetuning_trainers import SEED
    from python_backends.finetuning.packs import mini_batch

    batches = [mini_batch(len(examples), BATCH_SIZE, SEED, step) for step in range(steps)]
    tokens = [sum(len(examples[i].ids) for i in batch) for batch in batches]
    clocks = [(time.perf_counter(), time.process_time())]
    trainer.train(
        examples, BATCH_SIZE, steps, lambda: clocks.append((time.perf_counter(), time.process_time()))
    )
    times = np.diff(clocks, axis=0).tolist()
    return [Step(count, *each) for count, each in zip(tokens, times, strict=True)]


def speed(trainer: Any, examples: list[Any], steps: int) -> tuple[float, float]:
    """Tokens a second over all steps, and tokens a second of processor time."""
    found = step_times(trainer, examples, steps)
    tokens = sum(step.tokens for step in found)
    return tokens / sum(step.seconds for step in found), tokens / sum(step.processor_s for step in found)


def fastest(make: Any, settings: tuple[dict[str, Any], ...], examples: list[Any], steps: int) -> Any:
    """The settings with the fastest mini-batch of `steps` after the first; without steps, the first settings.
    One trainer at a time lives.
    """
    if not steps:
        return settings[0]
    found = []
    for each in settings:
        trainer = make(**each)
        later = step_times(trainer, examples, 1 + steps)[1:]
        found.append((max(step.tokens / step.processor_s for step in later), each))
        tqdm.write(f"trial, {make.__name__}, {each}: {found[-1][0]:.0f} tokens a processor second")
    return max(found, key=lambda pair: pair[0])[1]


def measure(shape: str, dtype: str, data: str, rounds: int, steps: int, trial_steps: int) -> list[Row]:
    from benchmarks.common.finetuning_trainers import OurTrainer, PeftTrainer, build_model, random_examples

    examples = random_examples(LENGTHS[data], LEARNED[data])

    def ours(pack_tokens: int) -> OurTrainer:
        return OurTrainer(build_model(shape, dtype), pack_tokens=pack_tokens)

    def peft(**settings: bool) -> PeftTrainer:
        return PeftTrainer(build_model(shape, dtype), **settings)

    tried = PEFT_SETTINGS if dtype == "float32" else PEFT_SETTINGS + PEFT_BFLOAT16
    chosen = {
        "peft": fastest(peft, tried, examples, trial_steps),
        "ours": fastest(ours, OUR_SETTINGS, examples, trial_steps),
    }
    trainers = {"peft": peft(**chosen["peft"]), "ours": ours(**chosen["ours"])}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    for trainer in trainers.values():
        speed(trainer, examples, 1)
    for index in tqdm(range(rounds), desc=f"{shape}, {dtype}, {data}", disable=None):
        for name in list(trainers)[:: 1 if index % 2 else -1]:
            found[name].append(speed(trainers[name], examples, steps))
    return [
        row_of((shape, dtype, data, name), chosen[name], np.array(each), np.array(found["peft"]))
        for name, each in found.items()
    ]


def row_of(case: tuple[str, str, str, str], settings: dict[str, Any], rounds: Any, pefts: Any) -> Row:
    """`rounds` and `pefts`: [rounds, 2] tokens a second, and a second of processor time."""
    of_peft, of_peft_processor = np.median(rounds / pefts, axis=0).tolist()
    wall, processor = rounds.T.tolist()
    median = float(np.median(wall))
    return Row(*case, settings, median, min(wall), max(wall), of_peft, of_peft_processor, wall, processor)


def shape_names(asked: str) -> list[str]:
    names = asked.split(",")
    if wrong := [name for name in names if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(STEPS)}")
    return names


def main() -> None:
    import torch

    from benchmarks.results_file import table, write_result

    parser = command_line(
        __doc__, quick="one round of one mini-batch of the least work, no trials of settings"
    )
    parser.add_argument("--shapes", type=shape_names, default=list(STEPS), help="which of S and M")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--data", default="text,answers", help="which of text and answers")
    parser.add_argument("--threads", type=int, default=1, help="of both trainers")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if asked.quick:
        asked.shapes, asked.dtypes, asked.data, asked.rounds = ["S"], "float32", "text", 1
    torch.set_num_threads(asked.threads)
    cases = [
        (shape, dtype, data)
        for shape in asked.shapes
        for dtype in asked.dtypes.split(",")
        for data in asked.data.split(",")
    ]
    steps = {shape: (1, 0) if asked.quick else (STEPS[shape], STEPS[shape]) for shape in STEPS}
    rows = [row for case in cases for row in measure(*case, asked.rounds, *steps[case[0]])]
    if asked.json:
        about = {"threads": asked.threads, "batch_size": BATCH_SIZE}
        write_result(asked.json, {**about, "rows": [asdict(row) for row in rows]})
    print(table([_shown(row) for row in rows]))


def _shown(row: Row) -> dict[str, str]:
    return {
        "shape": f"{row.shape}, {row.dtype}",
        "data": row.data,
        "trainer": row.trainer,
        "tok_s": f"{row.tok_s:.0f} ({row.least:.0f}–{row.most:.0f})",
        "of_peft": f"{row.of_peft:.2f} ×",
        "of_peft_processor": f"{row.of_peft_processor:.2f} ×",
    }


if __name__ == "__main__":
    main()
