"""Measures LoRA training next to serving on the same processors: what the server does by default, and its
baselines, in turn in one run, in the same engine.

    python -m benchmarks.coserving --json benchmarks/results/coserving.json

Modes: `serve_only`; `train_only`, our trainer alone; `train_only_peft`, PEFT's; `isolation`, one half of the
processors serves and the other trains; `temporal_64` and `temporal_128`, one whole sequence after so many
steps; `spatial`, a second process trains; `coserving`, what a server does: tiles in both directions. Requests
come as a Poisson process, at shares of the capacity that the run measures first: light 0.2, heavy 0.6. The
SLO is 3 times the median time per output token (TPOT) of `serve_only` at heavy load, measured before training
starts.
Each round begins with another mode; all modes of a round have the same requests. `of what is left` compares
with our trainer alone, times the share of time in which `serve_only` has nothing to do.

`burst` sends 16 requests at once to a server that only trains; `triton` measures a real server over HTTP,
with and without a job. `--add` adds rounds to those of the JSON file, with its capacity and SLO, if they are
of this machine and type; `earlier` has the commits and commands of those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.common.models import SHAPES, make_model, make_tokenizer
from benchmarks.coserving.modes import MODES, Processes
from benchmarks.coserving.report import (
    Round,
    add_shares,
    draw,
    figures,
    medians,
    row_of,
    shown,
    triton_rounds,
)
from benchmarks.coserving.requests import Times
from benchmarks.coserving.specs import SLOTS, Model
from benchmarks.coserving.triton import through_triton
from benchmarks.results_file import machine, table, write_result

LOADS = {"light": 0.2, "heavy": 0.6}
REFERENCES = ("serve_only", "train_only", "train_only_peft")
SLO_TIMES = 3
BURST = 16
Save = Callable[[], None]
CALL = ("commit", "dirty", "date", "command")  # what the JSON file says of a call
QUICK_MODES = [*REFERENCES, "temporal_64", "spatial", "coserving"]


@dataclass(frozen=True, slots=True)
class Amount:
    capacity_s: tuple[float, float]  # warm-up and measurement
    times: Times
    bursts: int


FULL = Amount((3.0, 8.0), Times(4.0, 4.0, 12.0, 20.0), 5)
QUICK = Amount((0.5, 0.5), Times(0.5, 0.3, 1.0, 5.0), 1)


@dataclass(frozen=True, slots=True)
class Basis:
    """What is measured first, and not again when rounds are added."""

    capacity_tok_s: float
    slo_s: float


def measure_basis(processes: Processes, amount: Amount) -> Basis:
    capacity_tok_s = processes.server("serve_only").call("capacity", *amount.capacity_s)
    run = processes.measure("serve_only", LOADS["heavy"] * capacity_tok_s, amount.times, 1.0, seed=10**6).run
    assert run is not None
    slo_s = SLO_TIMES * float(np.median(run.seen.tpot_s))
    tqdm.write(f"capacity {capacity_tok_s:.0f} tokens/s, SLO {slo_s * 1e3:.1f} ms")
    return Basis(capacity_tok_s, slo_s)


def one_round(
    processes: Processes, load: str, names: list[str], basis: Basis, times: Times, number: int
) -> Round:
    first = number % len(names)
    found: Round = {}
    for name in tqdm(names[first:] + names[:first], desc=f"{load}, round {number + 1}", disable=None):
        tokens_s = LOADS[load] * basis.capacity_tok_s
        measured = processes.measure(name, tokens_s, times, basis.slo_s, number)
        found[name] = row_of(measured, basis.slo_s)
        tqdm.write(f"{load}, {name}: {said(found[name])}")
    add_shares(found)
    return {name: found[name] for name in names}


def said(row: dict[str, Any]) -> str:
    text = f"{row['trained_tok_s']:.0f} trained tokens/s"
    if "attainment" in row and row["tpot_p99_ms"] is not None:
        text += f", {row['served_tok_s']:.0f} served, TPOT {row['tpot_p50_ms']:.1f} ms"
        text += f", P99 {row['tpot_p99_ms']:.1f}, {row['attainment']:.3f} within the SLO"
        text += f", first token P99 {row['ttft_p99_ms']:.0f} ms"
    return text


def bursts(processes: Processes, basis: Basis, times: Times, count: int) -> list[dict[str, Any]]:
    """The longest gaps between tokens of 16 requests that come at once, in a server that trains and in one
    that does not.
    """
    rows = []
    for mode in ("serve_only", "coserving"):
        server = processes.server(mode)
        runs = [server.call("burst", BURST, times.warm_up_s, basis.slo_s, seed) for seed in range(count)]
        rows.append(
            {
                "mode": mode,
                "longest_gap_ms": [float(run.seen.gaps_s.max()) * 1e3 for run in runs],
                "first_token_ms": [float(run.seen.ttft_s.min()) * 1e3 for run in runs],
            }
            | figures(runs[-1].seen, basis.slo_s)
        )
        gaps = ", ".join(f"{gap:.0f}" for gap in rows[-1]["longest_gap_ms"])
        tqdm.write(f"16 requests at once, {mode}: longest gaps {gaps} ms (2 × SLO: {basis.slo_s * 2e3:.0f})")
    return rows


class Measurement:
    """Of one shape. `found` is the result so far, which may have rounds of an earlier call; `save` is called
    whenever there is more of it.
    """

    def __init__(self, shape: str, asked: argparse.Namespace, found: dict[str, Any], save: Save) -> None:
        self._shape, self._asked, self._found, self._save = shape, asked, found, save
        self._amount = QUICK if asked.quick else FULL

    def run(self) -> None:
        asked = self._asked
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made)
            make_model(self._shape, asked.dtype, directory)
            make_tokenizer(directory)
            model = Model(self._shape, directory, asked.dtype, SHAPES[self._shape]["num_hidden_layers"])
            if {"rounds", "burst"} & set(asked.parts) or "basis" not in self._found:
                with contextlib.closing(Processes(model, asked.modes)) as processes:
                    self._in_processes(processes)
            if "triton" in asked.parts:
                self._through_triton(model)

    @property
    def _basis(self) -> Basis:
        return Basis(**self._found["basis"])

    def _in_processes(self, processes: Processes) -> None:
        self._found["peft_settings"] = processes.chosen["peft"]
        if "basis" not in self._found:
            self._found["basis"] = asdict(measure_basis(processes, self._amount))
        for _ in range(self._asked.rounds if "rounds" in self._asked.parts else 0):
            for load in self._asked.loads:
                self._round(processes, load)
        if "burst" in self._asked.parts:
            times, count = self._amount.times, self._amount.bursts
            self._found["burst"] = bursts(processes, self._basis, times, count)
            self._save()

    def _round(self, processes: Processes, load: str) -> None:
        rounds = self._found.setdefault("rounds", {}).setdefault(load, [])
        names = self._asked.modes
        rounds.append(one_round(processes, load, names, self._basis, self._amount.times, len(rounds)))
        self._save()

    def _through_triton(self, model: Model) -> None:
        amount, basis = self._amount, self._basis
        loads = {load: LOADS[load] * basis.capacity_tok_s for load in self._asked.loads}
        rows = through_triton(model, loads, basis.slo_s, amount.times, self._asked.rounds)
        self._found.setdefault("triton", []).extend(rows)
        self._save()


class Result:
    """All shapes, and what of them is written to the JSON file."""

    def __init__(self, asked: argparse.Namespace) -> None:
        """Raises ValueError if rounds are to be added where they can't be."""
        self._asked = asked
        before = before_added(asked.json, asked.dtype) if asked.add else {}
        call = [{name: before.get(name) for name in CALL}] if before else []
        self._earlier = [*before.get("earlier", []), *call]
        self.shapes: dict[str, Any] = before.get("shapes", {})
        self._load_averages = [*before.get("load_averages", []), round(os.getloadavg()[0], 2)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            {"shape": shape} | row
            for shape, found in self.shapes.items()
            for load, rounds in found.get("rounds", {}).items()
            for row in medians(load, rounds, found["basis"]["slo_s"])
        ]

    @property
    def triton_rows(self) -> list[dict[str, Any]]:
        return [
            {"shape": shape} | row
            for shape, found in self.shapes.items()
            for load in dict.fromkeys(row["load"] for row in found.get("triton", []))
            for row in medians(load, triton_rounds(found["triton"], load), found["basis"]["slo_s"])
        ]

    def write(self) -> None:
        """`load_averages`: what else ran on the machine when each call began."""
        if self._asked.json:
            about = {"dtype": self._asked.dtype, "slots": SLOTS, "loads": LOADS}
            about |= {
                "earlier": self._earlier,
                "load_averages": self._load_averages,
                "rows": self.rows + self.triton_rows,
                "shapes": self.shapes,
            }
            write_result(self._asked.json, about)


def before_added(path: Path | None, dtype: str) -> dict[str, Any]:
    """The result to which rounds are added. Raises ValueError if there is none of this machine and type."""
    if path is None or not path.is_file():
        raise ValueError("--add: --json names no file with rounds")
    found: dict[str, Any] = json.loads(path.read_text())
    for name, value in (("dtype", dtype), ("machine", machine())):
        if found[name] != value:
            raise ValueError(f"--add: {path} is of another {name}: {found[name]}")
    return found


def main() -> None:
    parser = command_line(
        __doc__,
        quick="runs of a second: does it run at all?",
        plot="a picture: trained tokens by the P99 of TPOT",
    )
    parser.add_argument("--shapes", default="S", help="of S and M")
    parser.add_argument("--loads", default="light,heavy", help="of light and heavy")
    parser.add_argument("--modes", default="all", help="of the modes; those to compare with are added")
    parser.add_argument("--parts", default="rounds,burst,triton")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--add", action="store_true", help="go on with the rounds of --json")
    asked = parser.parse_args()
    if asked.quick:
        asked.shapes, asked.loads, asked.rounds = "tiny", "heavy", 1
    wanted = {*MODES} if asked.modes == "all" else {*REFERENCES, "coserving", *asked.modes.split(",")}
    asked.modes = [each for each in (QUICK_MODES if asked.quick else MODES) if each in wanted]
    asked.loads, asked.parts = asked.loads.split(","), asked.parts.split(",")
    try:
        result = Result(asked)
    except ValueError as error:
        parser.error(str(error))
    for shape in asked.shapes.split(","):
        Measurement(shape, asked, result.shapes.setdefault(shape, {}), result.write).run()
    if asked.plot and result.rows:
        draw(asked.plot, [row for row in result.rows if row["shape"] == result.rows[0]["shape"]])
    print(table([shown(row) for row in result.rows + result.triton_rows]))


if __name__ == "__main__":
    main()
