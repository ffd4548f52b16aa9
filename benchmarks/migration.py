"""Live migration: the pause of a request that moves, and what a move costs the requests around it.

    python benchmarks/migration.py --moves 30 --json benchmarks/results/migration.json

Two instance processes on shape S (peers.py) in float32, each with half of the processors, and in this process
what the scheduler model is to them, without Triton. A request decodes while others do in both instances, and
moves once, to an instance that has nothing of it: with its KV blocks (`blocks`), and by computing its tokens
again (`recompute`), in turn. The pause is the gap between the last token of the source and the first of the
destination, less the request's median gap. Every answer must be that of an undisturbed run. Then: the tokens
per second of all requests with one move a second and without, in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.migration_front import Front
from benchmarks.peer_models import VOCABULARY, make_model, make_tokenizer
from benchmarks.results_file import table, write_result
from python_backends.settings import ClusterSettings, EngineSettings, ModelSettings, Settings

WAYS = ("blocks", "recompute")
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096), (64, 128)
MOVES, QUICK_MOVES = 30, 2
TOKENS_A_SIDE = 12  # that a request gets before its move, and after it
NUM_OTHERS = 8  # requests that decode beside it, in both instances together
OTHER_PROMPT, OTHER_TOKENS = 32, 200
NEIGHBOUR_LENGTH = 1024
ROUNDS, ROUND_S = 5, 20.0
POSITIONS = 8192  # of the model


@dataclass(slots=True)
class Pauses:
    """Of one way and length."""

    way: str
    length: int
    gaps_ms: list[float] = field(default_factory=list)  # of moves
    usual_ms: list[float] = field(default_factory=list)  # of all other tokens

    @property
    def step_ms(self) -> float:
        return float(np.median(self.usual_ms))

    def pause_ms(self, percentile: float) -> float:
        return float(np.percentile(self.gaps_ms, percentile)) - self.step_ms

    def row(self) -> dict[str, Any]:
        """For people."""
        names = {"pause p50 ms": 50, "p90": 90, "p99": 99, "max": 100}
        figures = {name: round(self.pause_ms(percentile), 1) for name, percentile in names.items()}
        return {
            "tokens": self.length,
            "way": self.way,
            "moves": len(self.gaps_ms),
            "step ms": round(self.step_ms, 1),
            **figures,
        }


class Others:
    """Requests that decode beside the one that moves; as one ends another one begins."""

    def __init__(self, front: Front, generator: np.random.Generator) -> None:
        self._front = front
        self._generator = generator
        self._open = [self._ask() for _ in range(NUM_OTHERS)]
        front.until(lambda: all(front.num_tokens(number) > 2 for number in self._open))

    def replace_ended(self) -> None:
        self._open = [self._ask() if number in self._front.answers else number for number in self._open]

    def _ask(self) -> int:
        return self._front.ask(prompt(self._generator, OTHER_PROMPT), OTHER_TOKENS)

    @property
    def num_tokens(self) -> int:
        """Of all of them so far, the ended ones too."""
        return sum(len(times) for times in self._front.times_s.values())


class Bench:
    def __init__(self, front: Front, asked: argparse.Namespace) -> None:
        self._front = front
        self._generator = np.random.default_rng(0)
        self._asked = asked
        self.num_checked = 0

    def pauses(self) -> list[Pauses]:
        lengths = QUICK_LENGTHS if self._asked.quick else LENGTHS
        num_moves = QUICK_MOVES if self._asked.quick else self._asked.moves
        others = Others(self._front, self._generator)
        found: list[Pauses] = []
        for length in lengths:
            pair = [Pauses(way, length) for way in WAYS]
            for number in range(num_moves):
                for pauses in pair:
                    self._move_one(pauses, others)
                print(f"{length} tokens: {number + 1} of {num_moves} moves in each way", flush=True)
            found += pair
        return found

    def _move_one(self, pauses: Pauses, others: Others) -> None:
        """A new prompt: moved, and then undisturbed."""
        ids = prompt(self._generator, pauses.length)
        front, number = self._front, self._front.ask(ids, 2 * TOKENS_A_SIDE)
        self._until(number, TOKENS_A_SIDE, others)
        moved = front.move(number, pauses.way)
        self._until(number, 2 * TOKENS_A_SIDE, others)
        gaps_ms = (1000 * np.diff(front.times_s[number])).tolist()
        pauses.gaps_ms.append(1000 * moved.gap_s)
        pauses.usual_ms += gaps_ms[: moved.index - 1] + gaps_ms[moved.index :]
        undisturbed = front.ask(ids, 2 * TOKENS_A_SIDE)
        self._until(undisturbed, 2 * TOKENS_A_SIDE, others)
        if front.answers[number] != front.answers[undisturbed]:
            raise SystemExit(f"{pauses.way}: a moved request of {pauses.length} tokens has another answer")
        self.num_checked += 1

    def _until(self, number: int, num_tokens: int, others: Others) -> None:
        """Until it has so many tokens, and has ended if these are all."""
        while self._front.num_tokens(number) < num_tokens:
            others.replace_ended()
            self._front.turn()
        self._front.until(lambda: num_tokens < 2 * TOKENS_A_SIDE or number in self._front.answers)

    def slowdown(self) -> list[float]:
        """Tokens per second of all requests with one move a second, as a share of those without; a round
        each.
        """
        rounds, round_s = (1, 3.0) if self._asked.quick else (ROUNDS, ROUND_S)
        others, ratios = Others(self._front, self._generator), []
        length = QUICK_LENGTHS[-1] if self._asked.quick else NEIGHBOUR_LENGTH
        for each in range(rounds):
            speeds = [self._speed(others, round_s, length, moves) for moves in (False, True)]
            ratios.append(speeds[1] / speeds[0])
            print(f"round {each + 1}: {speeds[0]:.0f} tokens/s, with moves {speeds[1]:.0f}", flush=True)
        return ratios

    def _speed(self, others: Others, round_s: float, length: int, moves: bool) -> float:
        front = self._front
        number = front.ask(prompt(self._generator, length), 2000)
        front.until(lambda: front.num_tokens(number) > 2)
        began_s, before = time.perf_counter(), others.num_tokens
        next_s = began_s + 0.5
        while (now_s := time.perf_counter()) < began_s + round_s:
            others.replace_ended()
            front.turn()
            if moves and now_s >= next_s:
                next_s += 1.0
                front.move(number, "blocks")
        speed = (others.num_tokens - before) / (time.perf_counter() - began_s)
        front.cancel(number)
        return speed


def prompt(generator: np.random.Generator, length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return generator.integers(100, VOCABULARY, length).astype(np.int32)


def settings_of(directory: Path, asked: argparse.Namespace) -> Settings:
    engine = EngineSettings(
        kind=asked.engine, slots=16, kv_blocks=16 * POSITIONS // 32 // 4, threads=1, fused_layers="off"
    )
    model = ModelSettings(str(directory), "float32")
    return Settings(model=model, engine=engine, cluster=ClusterSettings(instances=2))


def make_checkpoint(directory: Path) -> None:
    """Shape S for longer sequences than the peers' work has."""
    make_model("S", "float32", directory)
    make_tokenizer(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": POSITIONS}))


def plot(path: Path, found: list[Pauses]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for way in WAYS:
        points = [(each.length, each.pause_ms(50), each.pause_ms(99)) for each in found if each.way == way]
        lengths, medians, tails = zip(*points, strict=True)
        (line,) = axes.plot(lengths, np.maximum(medians, 0.1), "o-", label=f"{way}, median")
        axes.plot(lengths, np.maximum(tails, 0.1), ":", color=line.get_color(), label=f"{way}, p99")
    axes.set(
        xscale="log", yscale="log", xlabel="tokens of the request", ylabel="pause beyond a usual step, ms"
    )
    axes.set_title("A request moves between two instances")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def by_way(found: list[Pauses], figure: Callable[[Pauses], Any]) -> dict[str, dict[int, Any]]:
    return {way: {each.length: figure(each) for each in found if each.way == way} for way in WAYS}


def downtime(pauses: Pauses) -> dict[str, float]:
    parts = {"median": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: round(pauses.pause_ms(percentile), 2) for name, percentile in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("torch", "openvino"), default="torch")
    parser.add_argument("--moves", type=int, default=MOVES, help=f"of each length and way; default {MOVES}")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--plot", type=Path, help="also draw the pauses here (PNG)")
    parser.add_argument("--quick", action="store_true", help="short requests, few moves: does it run at all?")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        make_checkpoint(directory)
        (directory / "run").mkdir()
        with closing(Front(settings_of(directory, asked), directory / "run")) as front:
            bench = Bench(front, asked)
            found = bench.pauses()
            ratios = bench.slowdown()
            result = {
                "engine": asked.engine,
                "downtime_ms": by_way(found, downtime),
                "step_ms": by_way(found, lambda each: round(each.step_ms, 2)),
                "moves": by_way(found, lambda each: len(each.gaps_ms)),
                "slowdown": {"median": float(np.median(ratios)), "rounds": ratios},
                "outcomes": front.outcomes(),
                "answers_checked": bench.num_checked,
            }
    if asked.json:
        write_result(asked.json, result)
    if asked.plot:
        plot(asked.plot, found)
    ends = f"{min(ratios):.3f}–{max(ratios):.3f}"
    print(f"\nall requests with one move a second: {np.median(ratios):.3f} of their speed ({ends})\n")
    print(table([each.row() for each in found]))


if __name__ == "__main__":
    main()
