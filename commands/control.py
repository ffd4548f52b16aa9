"""Shows the instances of a running server, moves requests, drains instances, and sets how many run
(docs/llumnix.md).

The server runs on this host, as the same user. All but the first three need several instances
(cluster.instances or cluster.max_instances).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from python_backends.launcher import run_directories
from python_backends.nouns.order import AUTO, Order, RefusedOrderError
from python_backends.settings import IS_INSTALLED
from python_backends.wires.control import ask

AGAIN_S = 0.5  # before an order is given again, while the scheduler model is started
LONGEST_RESTART_S = 60.0  # for so long, `status` and the like wait for that
LONGEST_EVERY_S = 86_400.0
COLUMNS = ("instance", "host", "state", "slots", "KV blocks", "waiting", "tokens/request", "step")
SERVE = "gapless serve" if IS_INSTALLED else "make serve"
AWAY = ("lost", "starting")  # states of instances that have no requests
REQUEST_COLUMNS = {  # and the fields of the status
    "request": "request",
    "instance": "instance",
    "prompt tokens": "prompt_tokens",
    "answer tokens": "tokens",
    "predicted": "predicted_tokens",
    "seconds": "age_s",
    "id": "id",
    "place": "place",
    "waits for": "waits_for",
}


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run-directory",
        type=Path,
        metavar="PATH",
        help="of the server, if several run on this host; its name begins with gapless-",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="the load of each instance")
    status.add_argument("--json", action="store_true", help="as JSON")
    top = commands.add_parser("top", help="the same, repeated until Ctrl-C")
    top.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS", help="default: 1")
    commands.add_parser("requests", help="the open requests that came first, and where they are")
    move = commands.add_parser("move", help="a request goes to another instance while it is answered")
    move.add_argument("request", type=int, help="its number, as `requests` and the log name it")
    move.add_argument("instance", type=int, help="the number of the instance")
    drain = commands.add_parser("drain", help="requests leave the instance, and no new ones enter it")
    restore = commands.add_parser("restore", help="the instance gets requests again")
    for command in (drain, restore):
        command.add_argument("instance", type=int, help="its number, from 0 on")
    scale = commands.add_parser("scale", help="this many instances run, whatever the load")
    scale.add_argument("number", type=_number, help="how many, or auto: the load or the settings decide")
    for command in (drain, restore, scale, move):
        command.add_argument(
            "--timeout", type=float, default=600.0, metavar="SECONDS", help="how long to wait; default: 600"
        )
    for command in commands.choices.values():  # it may stand after the command as well
        command.add_argument(
            "--run-directory", type=Path, metavar="PATH", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    return parser


def main(given: list[str] | None = None) -> int:
    asked = command_parser().parse_args(given)
    try:
        directory = _run_directory(asked.run_directory)
        if asked.command in SHOWN:
            _show(directory, asked)
        else:
            names = ("instance", "request", "number")
            instance, request, number = (getattr(asked, name, AUTO) for name in names)
            print(_result(directory, Order(asked.command, instance, request, number), asked.timeout))
    except RefusedOrderError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0 if asked.command == "top" else 130
    return 0


def table(status: dict[str, Any]) -> str:
    """Returns the load of the instances as a table of text."""
    lines = _aligned([COLUMNS, *map(_row, status["instances"])])
    counts = ", ".join(f"{count} {outcome}" for outcome, count in status["migrations"].items()) or "none yet"
    policy = [f"policy {status['policy']}; moves: {counts}"] if status["policy"] else []
    return "\n".join([*lines, *policy])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    place = str(each["number"]), each["host"] or "-", each["state"]
    if each["state"] in AWAY:
        return *place, *["-"] * (len(COLUMNS) - len(place))
    return (
        *place,
        f"{each['slots_busy']}/{each['slots']}",
        f"{each['blocks_used']}/{each['blocks']}",
        str(each["waiting"]),
        "-" if each["freeness_tokens"] is None else f"{each['freeness_tokens']:,.0f}",
        f"{1000 * each['step_s']:.1f} ms",
    )


def _run_directory(given: Path | None) -> Path:
    """Of a server that runs. Raises RefusedOrderError."""
    places = run_directories.places()
    found = run_directories.in_use(*places) if given is None else [given]
    if len(found) == 1 and run_directories.is_in_use(found[0]):
        return found[0]
    if len(found) > 1:
        paths = ", ".join(map(str, found))
        raise RefusedOrderError(f"several servers run: choose one with --run-directory: {paths}")
    if given is not None:
        raise RefusedOrderError(f"no server of this user runs in {given}")
    raise RefusedOrderError(
        f"no server of this user has its run directory in {', '.join(places)} (--run-directory names one"
        f" elsewhere); start one: {SERVE}"
    )


def _seconds(given: str) -> float:
    if not 0 < float(given) <= LONGEST_EVERY_S:
        raise argparse.ArgumentTypeError(f"{given}: must be above 0 and at most {LONGEST_EVERY_S:g}")
    return float(given)


def _number(given: str) -> int:
    if given == "auto":
        return AUTO
    if not given.isdecimal():
        raise argparse.ArgumentTypeError(f"{given}: must be auto or a number")
    return int(given)


def _result(directory: Path, order: Order, longest_s: float = LONGEST_RESTART_S) -> Any:
    """Waits for it. While there is no scheduler model the order is given again and again. Raises
    RefusedOrderError.
    """
    end_s, shown = time.monotonic() + longest_s, [""]

    def show(text: str) -> None:
        if text != shown[-1]:
            print(text, file=sys.stderr, flush=True)
            shown.append(text)

    while True:
        left_s = end_s - time.monotonic()
        try:
            return ask(directory, order, max(left_s, AGAIN_S), show if order.what == "scale" else str)
        except OSError as error:
            text = f"the scheduler model does not answer ({error.strerror or error})"
        except KeyboardInterrupt:
            if order.what not in SHOWN:
                print("the order stays; this command no longer waits for it", file=sys.stderr)
            raise
        if left_s <= 0:
            raise RefusedOrderError(text)
        show(f"{text}; asking again")
        time.sleep(AGAIN_S)
        _run_directory(directory)  # does the server still run?


def _requests(status: dict[str, Any]) -> str:
    rows = [tuple(str(each[name]) for name in REQUEST_COLUMNS.values()) for each in status["requests"]]
    return "\n".join(_aligned([tuple(REQUEST_COLUMNS), *rows]))


SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {"status": table, "top": table, "requests": _requests}


def _show(directory: Path, asked: argparse.Namespace) -> None:
    text = json.dumps if getattr(asked, "json", False) else SHOWN[asked.command]
    is_top = asked.command == "top"
    clear = "\033[H\033[J" if is_top and sys.stdout.isatty() else ""
    while True:
        print(clear + text(_result(directory, Order("status"))), flush=True)
        if not is_top:
            return
        time.sleep(asked.every)


if __name__ == "__main__":
    sys.exit(main())
