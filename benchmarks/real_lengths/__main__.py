"""Measures how well the lengths of a published model's answers can be predicted, and from what: 2,000 real
prompts, cross-validated on topics and on kinds of prompts that were not learned from. DIRECTORY has
SmolLM2-135M-Instruct with safetensors.

    python -m benchmarks.real_lengths --model DIRECTORY --json benchmarks/results/real_lengths.json

The answers' lengths are those of `benchmarks/real_prompts/smollm2.json`: the first to each prompt is learned
from, all are predicted; prompts that have not been asked yet are left out. The model's states are computed by
transformers in float32, once, and kept in `--kept`. *Error*: mean, absolute, in tokens, of the predicted
median. *Covered*: the share of answers that are not longer than the predicted 0.9 quantile. Costs are
processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.real_lengths import baselines, texts
from benchmarks.real_lengths.scores import SPLITS, Answers, ByRidge, Predictor, crossed, score
from benchmarks.real_lengths.states import CHUNKS, States, encoded, states_of
from benchmarks.real_prompts.prompts import FOLDER, digest, read_prompts
from benchmarks.results_file import table, write_result
from python_backends.prediction.state_model import NEIGHBOURS
from python_backends.settings import ROOT

STRENGTH = 1000.0
STRENGTHS = (1.0, 10.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0)
SIZES = (100, 200, 300, 500, 1000, 2000)
QUICK = 300  # prompts
BEST = 0.53  # of the depth: the layer of the tables that compare something else, as served
STAGES = ("history", "forest", "words", "state")
MOSTS = (64, 128, 256, 512, 1024)  # max_tokens, one drawn for each answer


@dataclass(frozen=True, slots=True)
class Case:
    table: str
    name: str
    predictor: Predictor
    learned: int = 0  # answers; 0: all
    us: float | None = None  # of a request before its prediction is there
    only: str = ""  # the split


class Study:
    """Of the prompts at `places`."""

    def __init__(
        self, places: list[int], answers: Answers, states: States, tokens: Sequence[Sequence[int]] = ()
    ) -> None:
        """`tokens`: of the same prompts; empty: what they say is not measured."""
        prompts = read_prompts()
        self.tokens = [np.array(each, np.int32) for each in tokens]
        self.places, self.prompts = places, [prompts[place] for place in places]
        self.answers, self.states = answers, states
        self.layers = states.ends.shape[1]
        self._ends = states.ends[:, self.layer(BEST)]
        self.best = ByRidge(self._ends, answers)

    def layer(self, share: float) -> int:
        return round(share * (self.layers - 1))

    def cases(self) -> Iterator[Case]:
        yield from self._after_the_prompt()
        yield from self._strengths()
        yield from self._sizes()
        yield from self._spreads()
        yield from self._before_the_prompt()

    def _after_the_prompt(self) -> Iterator[Case]:
        name, answers, prompts = "what knows best", self.answers, self.prompts
        yield Case(name, "a constant: the median", baselines.constant(answers))
        yield Case(name, "the kind's median", baselines.by_kind(answers, prompts), only="new topics")
        if np.isfinite(answers.lengths[:, 1:]).any():
            yield Case(name, "another answer to the same prompt", baselines.another_answer(answers))
        yield Case(
            name,
            "recent history (before anything is learned)",
            baselines.history(answers, prompts, self.states),
        )
        yield Case(name, "21 features and forest", baselines.forest(answers, prompts, self.states))
        for layer in sorted({*range(0, self.layers, 2), *range(self.layer(0.5), self.layer(0.7))}):
            ridge = ByRidge(self.states.ends[:, layer], answers)
            yield Case(name, f"state at the prompt's end, layer {layer}", ridge.at(STRENGTH))
        yield Case(name, f"as served, layer {self.layer(BEST)}", baselines.served(answers, self._ends))
        pair = [self.layer(BEST), self.layer(0.3)]
        yield Case(name, f"the same, layers {pair[1]} and {pair[0]}", self._ridge(self.states.ends[:, pair]))
        both = np.stack([self.states.ends[:, pair[0]], self.states.means[:, pair[0]]], axis=1)
        yield Case(name, f"layer {pair[0]}, and its mean over the message", self._ridge(both))
        yield Case(name, f"layer {pair[0]}, and hashed words", self._joined(pair[0]))

    def stages(self) -> dict[str, Predictor]:
        """What the simulated runs of `scheduling.real` compare."""
        return {
            "history": baselines.history(self.answers, self.prompts, self.states),
            "forest": baselines.forest(self.answers, self.prompts, self.states),
            "words": self._ridge(texts.hashed(self.prompts)),
            "state": self.best.at(STRENGTH),
        }

    def _ridge(self, features: Any, strength: float = STRENGTH) -> Predictor:
        return ByRidge(features.reshape(len(features), -1), self.answers).at(strength)

    def _joined(self, layer: int) -> Predictor:
        return self._ridge(np.hstack([self.states.ends[:, layer], texts.hashed(self.prompts)]))

    def _strengths(self) -> Iterator[Case]:
        for strength in STRENGTHS:
            yield Case("strength of the ridge", f"{strength:g}", self.best.at(strength))

    def _sizes(self) -> Iterator[Case]:
        for size in SIZES:
            if size <= len(self.prompts):
                yield Case("how many answers", str(size), baselines.served(self.answers, self._ends), size)

    def _spreads(self) -> Iterator[Case]:
        name = "spread and cut answers"
        for neighbours in (50, NEIGHBOURS, 200, 10_000):
            yield Case(name, f"residuals of {neighbours} neighbours", self.best.at(STRENGTH, neighbours))
        yield Case(name, "lengths of 100 neighbours", self.best.at(STRENGTH, shifted=False))
        cut = baselines.cut(self.answers, MOSTS)
        cut_ridge = ByRidge(self.states.ends[:, self.layer(BEST)], cut)
        yield Case(name, "learned from answers cut at 64 to 1,024", cut_ridge.at(STRENGTH))
        yield Case(name, "the same, cut ones as if they had ended", cut_ridge.at(STRENGTH, plain=True))

    def _before_the_prompt(self) -> Iterator[Case]:
        name, states, prompts = "before the prompt", self.states, self.prompts
        for width in (256, 1024, 2048):
            words = texts.hashed(prompts, width)
            yield Case(
                name,
                f"words and pairs, {width} numbers",
                self._ridge(words),
                us=baselines.cost_of_words(prompts, width),
            )
        if self.tokens:
            counts = np.stack([baselines.counts_of(each) for each in self.tokens])
            cost = baselines.cost(lambda n: baselines.counts_of(self.tokens[n]), len(self.tokens))
            served = baselines.served(self.answers, counts, by_distance=False)
            yield Case(name, "tokens of the prompt, as served", served, us=cost)
        for layer in (0, self.layer(0.15)):
            where = "token embeddings" if layer == 0 else f"states of layer {layer} (needs the prompt)"
            us = baselines.cost_of_embeddings(states) if layer == 0 else None
            yield Case(name, f"mean of the message's {where}", self._ridge(states.means[:, layer]), us=us)
        both = np.hstack([states.means[:, 0], texts.hashed(prompts)])
        yield Case(name, "words, pairs and token embeddings", self._ridge(both))
        instructions, inputs = texts.sentences(prompts)
        us = baselines.cost_of_sentences(prompts)
        yield Case(name, "sentence encoder, 384 numbers of the message", self._ridge(inputs), us=us)
        yield Case(
            name,
            "the same, and 384 of the instruction",
            self._ridge(np.hstack([inputs, instructions])),
            us=us,
        )
        for chunk, count in enumerate(CHUNKS):
            for share in (0.15, 0.3, BEST):
                layer = self.layer(share)
                yield Case(
                    name, f"layer {layer} after {count} tokens", self._ridge(states.starts[:, chunk, layer])
                )
        for what, features in (("words", texts.hashed(prompts)), ("token embeddings", states.means[:, 0])):
            yield Case(name, f"history of the 24 nearest {what}", baselines.nearest(self.answers, features))

    def row(self, case: Case, split: str) -> dict[str, Any]:
        learned = np.ones(len(self.prompts), bool)
        if case.learned:
            # an eighth of them is not learned from
            count = min(len(learned), round(case.learned * 8 / 7))
            learned = np.zeros(len(self.prompts), bool)
            learned[np.random.default_rng(1).permutation(len(learned))[:count]] = True
        found = score(crossed(case.predictor, self.prompts, SPLITS[split], learned), self.answers)
        return {"table": case.table, "from": case.name, "split": split} | asdict(found) | {"us": case.us}


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__, quick=f"{QUICK} prompts")
    parser.add_argument("--model", type=Path, required=True, help="its directory, with safetensors")
    parser.add_argument("--lengths", type=Path, default=FOLDER / "smollm2.json", help="of its answers")
    parser.add_argument("--kept", type=Path, default=ROOT / "run" / "real_lengths", help="folder for states")
    parser.add_argument(
        "--predictions", type=Path, help="write those of new topics here, for `scheduling.real`"
    )
    parser.add_argument("--only", default="", help="the table with this word in its name")
    given = parser.parse_args()
    if not (given.model / "config.json").is_file():
        parser.error(f"--model: {given.model}: no directory of a model")
    return given


def study_of(given: argparse.Namespace) -> Study:
    prompts = read_prompts()
    answers, places = Answers.read(given.lengths, prompts, QUICK if given.quick else None)
    states = states_of(prompts, given.model, given.kept)
    tokens, _ = encoded([prompts[place] for place in places], given.model)
    return Study(places, answers, states.of(places), tokens)


def write_predictions(path: Path, study: Study) -> None:
    """One line for each prompt, [stages, 1 + levels]: means and quantiles, in whole tokens."""
    stages = study.stages()
    said = {
        name: crossed(stages[name], study.prompts, SPLITS["new topics"])
        for name in tqdm(STAGES, desc="predictions")
    }
    rows = np.stack([np.hstack([each.mean[:, None], each.quantiles]) for each in said.values()], axis=1)
    lines = ",\n".join(json.dumps(row) for row in rows.round().astype(int).tolist())
    head = {
        "prompts": digest(read_prompts()),
        "places": study.places,
        "stages": STAGES,
        "prompt_tokens": study.states.num_tokens.tolist(),
    }
    path.write_text(f'{json.dumps(head)[:-1]}, "predicted": [\n{lines}\n]}}\n', "utf-8")


def main() -> None:
    given = arguments()
    study = study_of(given)
    if given.predictions:
        write_predictions(given.predictions, study)
    rows = []
    for case in tqdm(
        (case for case in study.cases() if given.only in case.table), desc="predictors", unit=""
    ):
        rows += [study.row(case, split) for split in SPLITS if case.only in ("", split)]
        tqdm.write(" ".join(map(str, rows[-1].values())))
    if given.json:
        about = {
            "prompts": len(study.prompts),
            "answers": int(np.isfinite(study.answers.lengths).sum()),
            "mean_length": round(float(np.nanmean(study.answers.lengths)), 1),
        }
        write_result(given.json, about | {"rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
