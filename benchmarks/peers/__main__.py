"""Runs the same work through several engines, in turn in one run: tokens per second, latencies, time between
tokens, memory.

    python -m benchmarks.peers --shapes S,M --rounds 5 --json benchmarks/results/peers.json

    python -m benchmarks.peers --shapes SmolLM2 --weights same,int8,int4 --in-flight 1,4,16 --json PATH

The work is `workload.json` (64 requests, closed loop, 16 in flight, greedy, EOS ignored), or with `--work
longer` one with prompts of up to 1,500 tokens and answers of up to 600; with fewer in flight its first
requests. The models have random weights and the Qwen2 architecture, and are made here; `SmolLM2` is the
published one that is served where none is named, and of each engine it is also shown how far it agrees with
float32 on a text (`common/scored_text.py`). With `--weights` engines are compared in formats of 8 and 4 bits,
each in its own: those of one width at the same time, one width after the other. All engines have the same
cores, large pages, a pool of 1 GiB for KV, and 512 tokens per step. Every engine runs in its own process and
waits while another one works; the order rotates from round to round. Engines that can't be installed in the
project's environment get their own, made on first use (see README.md in this folder). An engine that can't be
installed or started is named and left out.

Before the measurement, greedy float32 answers of the bundled model are compared; an engine with different
tokens is left out. For engines with several variants (vLLM), all of them are tried for a short time on each
shape, and the best one is measured. `--busy 1`: another process computes something else meanwhile, as on a
laptop.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import product

from benchmarks.common.command_line import command_line
from benchmarks.common.models import SHAPES
from benchmarks.common.work import PUBLISHED, WORKS, load_work
from benchmarks.peers.measurement import Measurement
from benchmarks.peers.report import Case, line_of, ratios, table, write_json, write_plot
from benchmarks.peers.setups import DEFAULT, ON_PUBLISHED, SETUPS, default_engines

WEIGHTS = ("same", "int8", "int4")
MOST_IN_FLIGHT = 16


def names_of(known: Iterable[str], asked: str) -> list[str]:
    names = asked.split(",")
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(known)}")
    return names


def shape_names(asked: str) -> list[str]:
    return names_of((*SHAPES, PUBLISHED), asked)


def widths(asked: str) -> list[str]:
    return names_of(WEIGHTS, asked)


def in_flight(asked: str) -> tuple[int, ...]:
    found = tuple(int(count) for count in asked.split(","))
    if not all(0 < count <= MOST_IN_FLIGHT for count in found):
        raise argparse.ArgumentTypeError(f"{asked!r}: from 1 to {MOST_IN_FLIGHT}, as the pools for KV hold")
    return found


def engine_names(asked: str) -> list[str]:
    return names_of(SETUPS, asked)


def arguments_of() -> argparse.Namespace:
    parser = command_line(
        __doc__,
        quick="a few short requests, one round: does it run at all?",
        plot="also draw the results here",
    )
    parser.add_argument(
        "--shapes", default="S,M", type=shape_names, help=f"of {', '.join(SHAPES)}, {PUBLISHED}"
    )
    parser.add_argument(
        "--only",
        type=engine_names,
        help=f"engines, of {', '.join(SETUPS)}; default {', '.join(DEFAULT)}, on M without gapless_torch; on"
        f" {PUBLISHED} {', '.join(ON_PUBLISHED)}",
    )
    parser.add_argument(
        "--weights", default=["same"], type=widths, help="how they are kept, of same, int8, int4; same"
    )
    parser.add_argument(
        "--in-flight", default=(MOST_IN_FLIGHT,), type=in_flight, help="requests at once; 1,4,16"
    )
    parser.add_argument(
        "--work", default="W", choices=WORKS, help="the requests: W, or longer and of mixed lengths; W"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument(
        "--check", default=True, action=argparse.BooleanOptionalAction, help="compare tokens before timing"
    )
    parser.add_argument(
        "--trial",
        action=argparse.BooleanOptionalAction,
        help="of an engine's variants; default: not with --quick",
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="processes that compute something else meanwhile; 0"
    )
    return parser.parse_args()


def main() -> None:
    asked = arguments_of()
    rounds, tries = (
        1 if asked.quick else asked.rounds,
        not asked.quick if asked.trial is None else asked.trial,
    )
    work = load_work(asked.quick, asked.work)
    case = Case("", asked.dtype, work, at_once=asked.in_flight, num_busy=asked.busy)
    found = Measurement(case, rounds, tries)
    engines = {shape: asked.only or default_engines(shape) for shape in asked.shapes}
    if asked.check:
        found.compare_tokens(dict.fromkeys(name for names in engines.values() for name in names))
    for (shape, names), weights in product(engines.items(), asked.weights):
        found.measure(shape, names, weights)
        if asked.json:
            write_json(asked.json, found.rows, found.about())
    if asked.plot and found.rows:
        write_plot(asked.plot, found.rows)
    for name, why in found.left_out.reasons.items():
        print(f"left out: {name}: {why}")
    for name, ratio in ratios(found.rows).items():
        print(f"{name}: {ratio}")
    print(line_of(work))
    print(table(found.rows, found.of_text) if found.rows else "nothing was measured")


if __name__ == "__main__":
    main()
