"""How much of an answer is still to come after 32, 128 and 256 tokens: what was said at the prompt's end,
given that the answer has lasted so long, compared with regressions on later states, and what a server says.

    python -m benchmarks.real_lengths.rest --model DIRECTORY --json benchmarks/results/real_lengths_rest.json

The first --answers prompts are answered by our own engine at temperature 0.7 and their states computed by
transformers, once; both are kept. *Error*: mean, absolute, in tokens still to come, of the predicted median.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.real_lengths.regression import Spread, parts, quantile, says
from benchmarks.real_lengths.scores import SPLITS
from benchmarks.real_lengths.stages import Stages
from benchmarks.real_lengths.states import States, encoded, kept_file, states_of
from benchmarks.real_lengths.written import Written, answers_of, states_while_written
from benchmarks.real_prompts.prompts import Prompt, folds, read_prompts
from benchmarks.results_file import table, write_result
from commands.logged_answers import rank_correlation
from python_backends.checkpoint.facts import read_facts
from python_backends.checkpoint.opening import open_source
from python_backends.nouns.request import Floats
from python_backends.prediction.lengths import Doubles, Flags
from python_backends.prediction.ridge import Decomposed
from python_backends.settings import ROOT

STRENGTH = 1000.0
SHARES = (0.6, 0.8)  # of the depth: the layers whose states are kept
AT = (32, 128, 256)  # tokens
MOST = 1024
QUICK = 40  # answers


class Rest:
    def __init__(self, prompts: list[Prompt], written: Written, ends: Floats) -> None:
        """`ends` [answers, width]: the states at the prompts' ends."""
        self.prompts, self.written, self.ends = prompts, written, ends
        self.lengths, self.ended = np.abs(written.lengths).astype(np.float64), written.lengths > 0

    def features(self) -> dict[str, tuple[bool, Floats | None]]:
        """By name: whether what was said at the prompt's end is the base; [rows, …] what is known besides."""
        written = self.written
        newest, means, entropies = written.newest, written.means, written.entropies
        return {
            "prompt's end, given that it has lasted": (True, None),
            "newest state alone": (False, newest[:, 0]),
            "base and tokens so far": (True, newest[:, 0, :0]),
            "base and newest state": (True, newest[:, 0]),
            "base and newest state of a later layer": (True, newest[:, 1]),
            "base and mean of the states": (True, means[:, 0]),
            "base, newest and mean": (True, np.hstack([newest[:, 0], means[:, 0]])),
            "base and entropy of the next token": (True, entropies),
            "base, mean and entropy": (True, np.hstack([means[:, 0], entropies])),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"split": split} | row
            for split, by in SPLITS.items()
            for name, told in tqdm(self.features().items(), desc=split)
            for row in self._rows(name, *told, by)
        ]

    def served_rows(self) -> list[dict[str, Any]]:
        """What a server says at each stage."""
        stages = Stages(self.written, self.ends, MOST)
        return [
            {"split": split} | row
            for split, by in SPLITS.items()
            for row in stages.rows(parts(folds(self.prompts, by)))  # type: ignore[arg-type]
        ]

    def _rows(self, name: str, on_base: bool, features: Floats | None, by: str) -> list[dict[str, Any]]:
        written = self.written
        median, rest = np.zeros(len(written.made)), self.lengths[written.prompt] - written.made
        for part in parts(folds(self.prompts, by)):  # type: ignore[arg-type]
            asked = part[written.prompt]
            median[asked] = self._predict(~part, asked, on_base, features)
        found = []
        for made in AT:
            at = written.made == made
            if at.sum() < 2:
                continue
            middle = float(np.median(rest[at]))
            found.append(
                {
                    "after": made,
                    "from": name,
                    "answers": int(at.sum()),
                    "error": round(float(np.abs(median - rest)[at].mean()), 1),
                    "rank_correlation": round(rank_correlation(median[at], rest[at]), 3),
                    "error_of_a_constant": round(float(np.abs(middle - rest)[at].mean()), 1),
                }
            )
        return found

    def _predict(self, seen: Flags, asked: Flags, on_base: bool, features: Floats | None) -> Doubles:
        """[asked rows] the median of what is still to come."""
        written, most = self.written, np.log(MOST)
        ends, logs = Decomposed.of(self.ends[seen]), np.log(self.lengths[seen])
        ridge = ends.fit_cut(logs, self.ended[seen], STRENGTH)
        said = np.minimum(says(ridge, self.ends), most)
        said[seen] = np.minimum(ridge.left_out, most)
        known = Spread.of(said[seen], self.lengths[seen], self.ended[seen])
        rows = zip(said[written.prompt], written.made, strict=True)
        base = np.array([self._lasted(known, float(each), int(made)) for each, made in rows])
        if features is None:
            return base[asked]
        learned = seen[written.prompt]
        rest = self.lengths[written.prompt] - written.made
        start = np.log(base) if on_base else np.zeros(len(base))
        x = np.hstack([np.log(written.made)[:, None], np.log(base)[:, None] * on_base, features])
        target, ended = np.log(rest.clip(1)) - start, self.ended[written.prompt]
        later = Decomposed.of(x[learned]).fit_cut(target[learned], ended[learned], STRENGTH)
        limit = np.log(MOST)
        around = Spread.of(
            np.minimum(start[learned] + later.left_out, limit), rest[learned].clip(1), ended[learned]
        )
        told = [around.near(float(each)) for each in np.minimum(start[asked] + says(later, x[asked]), limit)]
        return np.minimum([quantile(*each, 0.5) for each in told], MOST - written.made[asked])

    @staticmethod
    def _lasted(known: Spread, said: float, made: int) -> float:
        """The median of what is to come of an answer that has `made` tokens."""
        lengths, chances = known.near(float(said))
        longer = lengths > made
        if not longer.any():
            return max(1.0, made * 0.25)
        chances = chances * longer
        if chances.sum() <= 0:
            return float(lengths[longer].min() - made)
        return max(1.0, min(quantile(lengths, chances / chances.sum(), 0.5), MOST) - made)


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
    states: States = states_of(prompts, given.model, given.kept)
    layers = [round(share * (states.ends.shape[1] - 1)) for share in SHARES]
    kept, path = (
        kept_file(given.kept, what, prompts[:count], given.model) for what in ("written", "answers")
    )
    if not kept.exists():
        tokens, _ = encoded(prompts[:count], given.model)
        ends = read_facts(open_source(given.model)).end_ids
        answers = answers_of(tokens, given.model, ends, MOST, given.slots, path)
        states_while_written(prompts[:count], answers, layers, given.model, ends).save(kept)
    rest = Rest(prompts[:count], Written.load(kept), states.ends[:count, layers[0]])
    rows, served = rest.rows(), rest.served_rows()
    if given.json:
        write_result(given.json, {"answers": count, "layers": layers, "rows": rows, "as_served": served})
    print(table(rows), *([table(served)] if served else []), sep="\n\n")


if __name__ == "__main__":
    main()
