"""How much of an answer is still to come after 128 and 256 tokens: what a server says then, from states of
its tokens, compared with what was said at the prompt's end, given that the answer has lasted so long.

    python -m benchmarks.real_lengths.rest --model DIRECTORY --json benchmarks/results/real_lengths_rest.json

The first --answers prompts are answered by our own engine at temperature 0.7 and their states computed by
transformers, once; both are kept. *Error*: mean, absolute, in tokens still to come, of the predicted median.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.command_line import command_line
from benchmarks.real_lengths.regression import parts
from benchmarks.real_lengths.scores import SPLITS
from benchmarks.real_lengths.stages import Stages
from benchmarks.real_lengths.states import encoded, kept_file, states_of
from benchmarks.real_lengths.written import Written, answers_of, states_while_written
from benchmarks.real_prompts.prompts import Prompt, folds, read_prompts
from benchmarks.results_file import table, write_result
from python_backends.checkpoint.facts import read_facts
from python_backends.checkpoint.opening import open_source
from python_backends.settings import ROOT

SHARE = 0.6  # of the depth: the layer whose states are kept
MOST = 1024
QUICK = 40  # answers


def rows_of(stages: Stages, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """`prompts`: of the answers that `stages` has."""
    return [
        {"split": split} | row
        for split, by in SPLITS.items()
        for row in stages.rows(parts(folds(list(prompts), by)))  # type: ignore[arg-type]
    ]


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__, quick=f"{QUICK} answers")
    parser.add_argument("--model", type=Path, required=True, help="its directory, with safetensors")
    parser.add_argument("--answers", type=int, default=500, help="prompts that are answered")
    parser.add_argument("--slots", type=int, default=32, help="answers at the same time")
    parser.add_argument("--kept", type=Path, default=ROOT / "run" / "real_lengths", help="folder for states")
    given = parser.parse_args()
    if not (given.model / "config.json").is_file():
        parser.error(f"--model: {given.model}: no directory of a model")
    return given


def main() -> None:
    given = arguments()
    count = QUICK if given.quick else given.answers
    prompts = read_prompts()
    states = states_of(prompts, given.model, given.kept)
    prompts, layer = prompts[:count], round(SHARE * (states.ends.shape[1] - 1))
    kept, path = (kept_file(given.kept, what, prompts, given.model) for what in ("written", "answers"))
    if not kept.exists():
        tokens, _ = encoded(prompts, given.model)
        ends = read_facts(open_source(given.model)).end_ids
        answers = answers_of(tokens, given.model, ends, MOST, given.slots, path)
        states_while_written(prompts, answers, layer, given.model, ends).save(kept)
    rows = rows_of(Stages(Written.load(kept), states.ends[:count, layer], MOST), prompts)
    if given.json:
        write_result(given.json, {"answers": count, "layer": layer, "rows": rows})
    print(table(rows) if rows else "no answer lasts so long")


if __name__ == "__main__":
    main()
