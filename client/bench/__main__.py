"""A load test against a running Gapless: latency and number of answers, and how many keep the limits.

    gapless bench --quick                 a few requests; in a checkout: make bench ARGS="--quick"
    gapless bench --concurrency 1 8 16    closed loop: this many requests are always open
    gapless bench --rate 2 4 8            Poisson arrivals: this many a second on average
    gapless bench --rate 4 --cv 3         Gamma arrivals in bursts (cv: std / mean of the gaps)
    gapless bench --rate 4 --json b.json --plot b.png

Inputs: prompts of the bundled model's tasks (--inputs tasks), random words (--inputs random --words 100), or
a file of JSON lines, each an object with text_input or messages and any parameters (--inputs my.jsonl). With
the same seed, the requests and their times are the same.

TTFT: time to the first text. TPOT: from there to the end, for each further token. E2E: time to the end. TTFT
and E2E count from when a request was due, so a client that is too slow does not improve the server's numbers.
Goodput: requests a second that kept both limits. A failed request is not tried again, and counts as an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..async_client import AsyncClient
from ..errors import GaplessError
from ..options import add_parameters, add_url, chosen
from ..retries import Retries
from ..sync_client import Client
from .arrivals import Load
from .inputs import Ask, InputsError, asks, take
from .plot import plot
from .report import Limits, lines, provenance, summary
from .run import Outcome, run

REQUESTS, QUICK_REQUESTS, WARM_UP = 200, 24, 4
PICTURES = (".png", ".svg", ".pdf")


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_url(parser)
    loads = parser.add_mutually_exclusive_group()
    loads.add_argument(
        "--concurrency", type=int, nargs="+", default=[16], metavar="N", help="closed loop (default: 16)"
    )
    loads.add_argument(
        "--rate", type=float, nargs="+", default=[], metavar="R", help="open loop: requests a second"
    )
    parser.add_argument(
        "--cv", type=float, default=1.0, help="of the gaps: 0: even, 1: Poisson (default), larger: bursts"
    )
    parser.add_argument(
        "--requests", type=int, default=REQUESTS, metavar="N", help="for each load (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REQUESTS} requests for each load")
    parser.add_argument(
        "--inputs", default="tasks", metavar="KIND", help="tasks (default), random, or a file of JSON lines"
    )
    parser.add_argument(
        "--words", type=int, default=100, metavar="N", help="words of a random text (default: %(default)s)"
    )
    parser.add_argument(
        "--arrival-seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of texts and arrival times (default: 0)",
    )
    parser.add_argument(
        "--ttft-limit-ms", type=float, default=1000, metavar="MS", help="for goodput (default: %(default)g)"
    )
    parser.add_argument(
        "--tpot-limit-ms", type=float, default=100, metavar="MS", help="for goodput (default: %(default)g)"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=300,
        metavar="S",
        help="a request that takes longer fails (default: 300)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="write all numbers here, with machine, versions, date and command",
    )
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the distributions (.png, .svg, .pdf)")
    add_parameters(parser)
    return parser


def arguments() -> argparse.Namespace:
    """Ends the program with a line that names the option and the limit if one can't be used."""
    parser = command_parser()
    asked = parser.parse_args()
    positive = {
        "--concurrency": min(asked.concurrency),
        "--rate": min(asked.rate, default=1),
        "--requests": asked.requests,
    }
    positive |= {"--ttft-limit-ms": asked.ttft_limit_ms, "--tpot-limit-ms": asked.tpot_limit_ms}
    for name, value in {**positive, "--words": asked.words, "--timeout-s": asked.timeout_s}.items():
        if not value > 0:
            parser.error(f"{name} {value:g}: must be above 0")
    if not 0 <= asked.cv <= 100:
        parser.error(f"--cv {asked.cv:g}: must be between 0 and 100")
    if asked.arrival_seed < 0:
        parser.error(f"--arrival-seed {asked.arrival_seed}: must be 0 or more")
    _check_files(parser, asked)
    return asked


def _check_files(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    for name, path in (("--json", asked.json), ("--plot", asked.plot)):
        if path and not path.parent.is_dir():
            parser.error(f"{name} {path}: there is no directory {path.parent}")
        if path and path.is_dir():
            parser.error(f"{name} {path}: must be a file, and is a directory")
    if asked.plot and asked.plot.suffix.lower() not in PICTURES:
        parser.error(f"--plot {asked.plot}: must end with {', '.join(PICTURES)}")
    if asked.plot and find_spec("matplotlib") is None:
        parser.error(f"--plot {asked.plot}: needs matplotlib; `pip install matplotlib` brings it")


def loads_of(asked: argparse.Namespace) -> list[Load]:
    if asked.rate:
        return [Load(rate=rate, cv=asked.cv) for rate in asked.rate]
    return [Load(concurrency=concurrency) for concurrency in asked.concurrency]


async def measure(asked: argparse.Namespace, load: Load, work: list[Ask], outcomes: list[Outcome]) -> None:
    """Adds to `outcomes` when an answer ends, so that an interrupted test keeps its outcomes so far."""
    ignore: list[Outcome] = []
    num_errors = 0
    with tqdm(total=len(work) - WARM_UP, desc=str(load), unit="req") as bar:

        def book(outcome: Outcome) -> None:
            nonlocal num_errors
            outcomes.append(outcome)
            num_errors += bool(outcome.error)
            bar.update()
            bar.set_postfix(errors=num_errors, refresh=False)

        async with AsyncClient(asked.url, timeout_s=asked.timeout_s, retries=Retries(attempts=1)) as client:
            await run(client, Load(concurrency=WARM_UP), work[:WARM_UP], 0, ignore.append)
            await run(client, load, work[WARM_UP:], asked.arrival_seed, book)


def bench(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """Prints the results of each load when it ends. Returns all of them, and whether Ctrl-C ended the test.
    Raises InputsError.
    """
    limits = Limits(asked.ttft_limit_ms, asked.tpot_limit_ms)
    source = asks(asked.inputs, asked.words, asked.arrival_seed, chosen(asked))
    count = QUICK_REQUESTS if asked.quick else asked.requests
    results: list[dict[str, Any]] = []
    interrupted = False
    for load in loads_of(asked):
        outcomes: list[Outcome] = []
        try:
            asyncio.run(measure(asked, load, take(source, count + WARM_UP), outcomes))
        except KeyboardInterrupt:
            interrupted = True
        if outcomes:
            results.append(summary(load, outcomes, limits))
            print("\n".join(lines(results[-1], limits)), flush=True)
        if interrupted:
            break
    return results, interrupted


def server_of(url: str) -> str:
    """Raises GaplessError."""
    with Client(url, retries=Retries(attempts=1)) as client:
        return client.server_version()


def main() -> int:
    asked = arguments()
    try:
        about = provenance(f"python -m client.bench {shlex.join(sys.argv[1:])}".strip(), server_of(asked.url))
        results, interrupted = bench(asked)
    except InputsError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except GaplessError as error:
        print(
            f"bench: {error}\nIs a server running? `gapless serve` or `make serve` starts one;"
            " --url sets its address.",
            file=sys.stderr,
        )
        return 1
    limits = Limits(asked.ttft_limit_ms, asked.tpot_limit_ms)
    if asked.json:
        report = {**about, "inputs": asked.inputs, "limits": asdict(limits), "loads": results}
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    if asked.plot and results:
        title = (
            f"{asked.inputs}, {about['machine']['processor']}, {about['machine']['cores']} cores,"
            f" {about['date'][:10]}"
        )
        plot(results, limits, title, asked.plot)
    return 130 if interrupted else int(any(result["errors"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
