"""What a move to another instance costs: the request that moves, and the requests that stay.

    python -m benchmarks.migration --json benchmarks/results/migration.json

Two instance processes, each with half of the processors, and the scheduler model's own parts in this process,
without Triton. Shape S with random weights (see peers.py), float32, 4 other requests at each instance all the
time. A request of 256, 1,024 or 4,096 tokens moves back and forth, in three ways in turn:

  blocks     its KV blocks are copied while it decodes on; it is suspended for the last of them only
  blocking   it is suspended, and then all of its blocks are copied
  recompute  it is submitted to the other instance, which computes all of its tokens again

downtime: the gap between its last token of the source and its first of the destination, less its median gap:
what its client notices of the move. No way finds blocks that an earlier move has left. step: the median gap,
to compare it with. Then the speed of the short requests at both instances with one move a second of a request
of 1,024 tokens, and with none, in turn; also by the processor time of the instances for each token, to which
other work on the machine does little. Then one instance after the other is killed: the longest gaps of the
other one's requests. At the end every answer that has moved or lost its instance is asked for again, without
a move: one other token, and the script fails. `--engine toy` computes nothing: it shows what messages and
copies take by themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.common.models import make_model, make_tokenizer
from benchmarks.migration.answers import Answer, Moved
from benchmarks.migration.front import INSTANCES, Front
from benchmarks.migration.losses import losses
from benchmarks.migration.report import Trial, draw, say, summary
from benchmarks.results_file import write_result
from python_backends.nouns.request import Ids
from python_backends.settings import ROOT, Settings, load
from tests.support.toy_engine import TOY

MAX_MODEL_TOKENS = 8192
KV_BLOCKS = 2048  # of 32 tokens: 1 GiB for shape S
S_BLOCK_BYTES = 512 << 10  # of shape S in float32; the toy engine's blocks weigh as much
TOY_STEP_MS = 20.0
BACKGROUND = 4  # short requests of each instance
# the moves of one request, whose order is turned for the next one; every other request is recomputed as well,
# which takes long, and varies little
MOVES = ("blocks", "blocking", "recompute", "blocks", "blocking", "blocks", "blocking")
TURNS = MOVES.count("blocks")
SETTLED_TOKENS = 8  # between two moves
TOKENS_A_MOVE = 16  # a request grows by about so many from one move to the next
NEIGHBOURS_TOKENS = 1024
ORDERS = ((False, True, True, False), (True, False, False, True))  # of seconds with moves and without
CHECKED_AT_ONCE = 8  # requests of an instance


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    lengths: tuple[int, ...]
    num_moves: int  # of each length, with blocks and blocking; a sixth of that by recomputing
    rounds: int  # with and without moves
    losses: int  # instances that are killed


FULL = Amount((256, 1024, 4096), 30, 40, 2)
QUICK = Amount((64, 256), 6, 2, 1)


class Answers:
    """Of requests that have moved or lost their instance, to be checked."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._all: list[Answer] = []

    def __len__(self) -> int:
        return len(self._all)

    def end(self, answer: Answer) -> None:
        self._front.end(answer)
        self._all.append(answer)

    def check(self) -> int:
        """Asks for all of them again, without moves, and without other requests. Returns how many tokens were
        the same; raises SystemExit if one is not.
        """
        self._front.set_background(0)
        count = CHECKED_AT_ONCE * len(INSTANCES)
        for first in tqdm(range(0, len(self._all), count), desc="check"):
            some = self._all[first : first + count]
            again = [
                self._front.ask(each.stream.request.prompt, len(each.stream.tokens), number % len(INSTANCES))
                for number, each in enumerate(some)
            ]
            for each in again:
                self._front.until(each.has_ended, most_s=600)
            for moved, undisturbed in zip(some, again, strict=True):
                if moved.stream.tokens != undisturbed.stream.tokens:
                    sys.exit("a request has got other tokens than without a move or a death")
        return sum(len(each.stream.tokens) for each in self._all)


def settings_of(engine: str, model: Path) -> Settings:
    settings = {
        "model.directory": str(model),
        "model.dtype": "float32",
        "model.max_model_tokens": str(MAX_MODEL_TOKENS),
        "engine.kind": TOY if engine == "toy" else engine,
        "engine.threads": "1",
        "engine.kv_blocks": str(KV_BLOCKS),
        "engine.options": f"step_ms={TOY_STEP_MS} block_bytes={S_BLOCK_BYTES}",
        "cluster.instances": str(len(INSTANCES)),
    }
    return load(ROOT / "gapless.toml", settings)


def let_grow(front: Front, answer: Answer, num_tokens: int) -> None:
    """Until it has so many tokens more."""
    wanted = len(answer.times_s) + num_tokens
    front.until(lambda: len(answer.times_s) >= wanted)


def start(front: Front, num_tokens: int, prompt: Ids | None = None, instance: int = 0) -> Answer:
    """A request that has so many tokens of prompt, and its first tokens of an answer without an end."""
    chosen = front.prompt(num_tokens) if prompt is None else prompt
    answer = front.ask(chosen, MAX_MODEL_TOKENS - num_tokens - 1, instance)
    let_grow(front, answer, SETTLED_TOKENS)
    return answer


def warm_up(front: Front, num_tokens: int) -> None:
    """Connections are made, and every path of the code is taken once."""
    answer = start(front, num_tokens)
    for way in MOVES:
        move(front, answer, way)
    front.end(answer)


def downtimes(front: Front, amount: Amount, answers: Answers) -> Iterator[Trial]:
    """Of every move; a move that fails is made once more."""
    for tokens in amount.lengths:
        count = amount.num_moves // TURNS
        total = count * len(MOVES) - count // 2
        with tqdm(total=total, desc=f"moves of {tokens} tokens") as progress:
            for number in range(count):
                grows = len(MOVES) * TOKENS_A_MOVE // 2
                answer = start(front, tokens - min(grows, tokens // 2), instance=number % len(INSTANCES))
                moves, turned = [], number % len(MOVES)
                for way in MOVES[turned:] + MOVES[:turned]:
                    if way != "recompute" or number % 2 == 0:
                        moves += move(front, answer, way)
                        progress.update()
                answers.end(answer)
                gaps_s = np.delete(answer.gaps_s, [each.place for each in moves])
                yield from (Trial(tokens, gaps_s, each) for each in moves)


def move(front: Front, answer: Answer, way: str) -> list[Moved]:
    """All attempts until one succeeds."""
    moves: list[Moved] = []
    while not moves or moves[-1].outcome != "done":
        let_grow(front, answer, SETTLED_TOKENS)
        moves.append(front.move(answer, way))
    return moves


def neighbours(front: Front, amount: Amount, answers: Answers) -> list[dict[str, float]]:
    """What the instances do in each round: two seconds with moves and two without, in an order in which
    neither is earlier, because steps become longer as the requests do.
    """
    rounds = []
    for number in tqdm(range(amount.rounds), desc="rounds with and without moves"):
        answer = start(front, NEIGHBOURS_TOKENS, instance=number % len(INSTANCES))
        seconds = [(moves, *speed(front, answer, moves)) for moves in ORDERS[number % 2]]
        answers.end(answer)
        made: dict[str, float] = {}
        for name, which in (("with", True), ("without", False)):
            tok_s, token_ms = np.mean([each[1:] for each in seconds if each[0] == which], axis=0).tolist()
            made |= {name: round(tok_s, 2), f"{name}_token_ms": round(token_ms, 4)}
        rounds.append(made)
        tqdm.write(f"{made['with']} tokens/s with moves, {made['without']} without")
    return rounds


def speed(front: Front, answer: Answer, moves: bool) -> tuple[float, float]:
    """Tokens per second of the short requests in one second, and the instances' processor time in ms for each
    token, those of the other request included. With `moves` this one moves once.
    """
    began_s, used_s = time.monotonic(), processor_s(front)
    before, others = front.num_background_tokens(), len(answer.times_s)
    if moves:
        front.move(answer, "blocks")
    front.until(lambda: time.monotonic() >= began_s + 1)
    count = front.num_background_tokens() - before
    token_ms = (processor_s(front) - used_s) * 1e3 / (count + len(answer.times_s) - others)
    return count / (time.monotonic() - began_s), token_ms


def processor_s(front: Front) -> float:
    """Processor time that both instances have used so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in front.pids]
    return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


def measure(engine: str, shape: str, amount: Amount) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as directory:
        make_model(shape, "float32", Path(model), MAX_MODEL_TOKENS)
        make_tokenizer(Path(model))
        with contextlib.closing(Front(settings_of(engine, Path(model)), Path(directory))) as front:
            answers = Answers(front)
            front.set_background(BACKGROUND)
            warm_up(front, amount.lengths[0])
            trials = list(downtimes(front, amount, answers))
            rounds = neighbours(front, amount, answers)
            killed = list(losses(front, amount.losses, answers.end))
            num_tokens = answers.check()
    found = {**summary(trials, rounds), "losses": killed}
    return {**found, "checked": {"answers": len(answers), "tokens": num_tokens, "differ": 0}}


def main() -> None:
    parser = command_line(
        __doc__,
        quick="a small model, short requests, few moves: does it run at all?",
        plot="a picture of the downtimes by length, on logarithmic scales",
    )
    parser.add_argument("--engine", default="torch", choices=("torch", "toy"))
    asked = parser.parse_args()
    shape, amount = ("tiny", QUICK) if asked.quick else ("S", FULL)
    result = measure(asked.engine, shape, amount)
    if asked.json:
        write_result(asked.json, {"engine": asked.engine, **result})
    if asked.plot:
        draw(asked.plot, result)
    say(result)


if __name__ == "__main__":
    main()
