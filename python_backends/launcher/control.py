"""Shows the instances of a running server, moves requests, drains instances, and sets how many run.

    python -m python_backends.launcher.control status          # the load of each instance
    python -m python_backends.launcher.control top             # the same, repeated
    python -m python_backends.launcher.control requests        # the open requests that came first
    python -m python_backends.launcher.control move 17 1       # request 17 goes to instance 1
    python -m python_backends.launcher.control drain 1         # all requests leave instance 1
    python -m python_backends.launcher.control restore 1       # instance 1 gets requests again
    python -m python_backends.launcher.control scale 2         # two instances run, whatever the load
    python -m python_backends.launcher.control scale auto      # the load or the settings decide the number

Needs a server with several instances (cluster.instances or cluster.max_instances), on this host and of the
same user.
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
from python_backends.launcher.run_files import SETTINGS
from python_backends.settings import ClusterSettings, read_settings
from python_backends.watching.cluster_files import ClusterOrders, ClusterStatus

LOOK_S = 0.2
COLUMNS = ("instance", "host", "state", "slots", "KV blocks", "waiting", "tokens/request", "step")
AWAY = ("lost", "starting")  # states of instances that have no requests
REQUEST_COLUMNS = {  # and the fields of the status
    "request": "request",
    "instance": "instance",
    "prompt tokens": "prompt_tokens",
    "answer tokens": "tokens",
    "seconds": "age_s",
}
HINT = "is a server with cluster.instances or cluster.max_instances > 1 running here, as the same user?"


class ControlError(Exception):
    """The order can't be carried out. The text says why."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="control", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run-directory", type=Path, metavar="PATH", help="of the server, if several run on this host"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="the load of each instance")
    status.add_argument("--json", action="store_true", help="as JSON")
    top = commands.add_parser("top", help="the same, repeated until Ctrl-C")
    top.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="default: 1")
    commands.add_parser("requests", help="the open requests that came first, and where they are")
    move = commands.add_parser("move", help="a request goes to another instance while it is answered")
    move.add_argument("request", type=int, help="its number, as `requests` and the log name it")
    move.add_argument("instance", type=int, help="the number of the instance")
    drain = commands.add_parser("drain", help="requests leave the instance, and no new ones enter it")
    restore = commands.add_parser("restore", help="the instance gets requests again")
    for command in (drain, restore):
        command.add_argument("instance", type=int, help="its number, from 0 on")
    scale = commands.add_parser("scale", help="this many instances run, whatever the load")
    scale.add_argument("number", help="how many, or auto: the load or the settings decide")
    for command in (drain, restore, scale, move):
        command.add_argument(
            "--timeout", type=float, default=600.0, metavar="SECONDS", help="how long to wait; default: 600"
        )
    for command in commands.choices.values():  # it may stand after the command as well
        command.add_argument(
            "--run-directory", type=Path, metavar="PATH", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    asked = arguments(given)
    try:
        directory = asked.run_directory or _only_run_directory()
        COMMANDS[asked.command](directory, asked)
    except (ControlError, OSError, ValueError) as error:
        print(f"control: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def table(status: dict[str, Any]) -> str:
    """Returns the load of the instances as a table of text."""
    lines = _aligned([COLUMNS, *map(_row, status["instances"])])
    counts = ", ".join(f"{count} {outcome}" for outcome, count in status["migrations"].items()) or "none yet"
    return "\n".join([*lines, f"policy {status['policy']}; moves: {counts}"])


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


def _only_run_directory() -> Path:
    found = run_directories.in_use(run_directories.parent())
    if len(found) == 1:
        return found[0]
    if not found:
        raise ControlError(f"no server of this user runs: {HINT}")
    places = ", ".join(map(str, found))
    raise ControlError(f"several servers run: choose one with --run-directory: {places}")


def _status_of(directory: Path) -> dict[str, Any]:
    try:
        return ClusterStatus(directory).read()
    except OSError as error:
        raise ControlError(f"{directory} has no file with the status of instances: {HINT}") from error


def _instance(directory: Path, number: int) -> dict[str, Any]:
    instances: list[dict[str, Any]] = _status_of(directory)["instances"]
    for each in instances:
        if each["number"] == number:
            return each
    known = ", ".join(str(each["number"]) for each in instances)
    raise ControlError(f"there is no instance {number}; there are {known}")


def _show(directory: Path, asked: argparse.Namespace) -> None:
    status = _status_of(directory)
    print(json.dumps(status) if asked.json else table(status))


def _show_requests(directory: Path, asked: argparse.Namespace) -> None:
    requests = _status_of(directory)["requests"]
    rows = [tuple(str(each[name]) for name in REQUEST_COLUMNS.values()) for each in requests]
    print("\n".join(_aligned([tuple(REQUEST_COLUMNS), *rows])))


def _move(directory: Path, asked: argparse.Namespace) -> None:
    """Moves one request and waits until it is there."""
    _instance(directory, asked.instance)
    order = ClusterOrders(directory).move(asked.request, asked.instance)

    def results() -> list[dict[str, Any]]:
        return [result for result in _status_of(directory)["moved"] if result["number"] == order]

    _wait(asked, lambda: "" if results() else "the server has not said what became of it")
    [result] = results()
    if not result["is_done"]:
        raise ControlError(result["text"])
    print(result["text"])


def _top(directory: Path, asked: argparse.Namespace) -> None:
    while True:
        clear = "\033[H\033[J" if sys.stdout.isatty() else ""
        print(clear + table(_status_of(directory)), flush=True)
        time.sleep(asked.every)


def _drain(directory: Path, asked: argparse.Namespace) -> None:
    """Drains an instance and waits until it is empty."""
    number, began_s = asked.instance, time.monotonic()
    _instance(directory, number)
    takers = {each["number"] for each in _status_of(directory)["instances"] if each["state"] == "ready"}
    _wait_until_read(directory, asked, ClusterOrders(directory).drain(frozenset({number}), takers))

    def missing() -> str:
        left = _num_left(directory, number)
        return f"{left} requests are still in instance {number}" if left else ""

    _wait(asked, missing)
    print(f"instance {number} is empty after {time.monotonic() - began_s:.1f} s")


def _num_left(directory: Path, number: int) -> int:
    """Returns how many requests the instance has, or is about to get."""
    found = [each["left"] for each in _status_of(directory)["instances"] if each["number"] == number]
    if found == [None]:
        raise ControlError(f"another command has restored instance {number} meanwhile")
    return int(found[0]) if found else 0  # it has ended


def _restore(directory: Path, asked: argparse.Namespace) -> None:
    """Restores an instance and waits until the server has read the order."""
    number = asked.instance
    _instance(directory, number)
    _wait_until_read(directory, asked, ClusterOrders(directory).restore(frozenset({number})))
    if _instance(directory, number)["left"] is not None:
        raise ControlError(f"instance {number} is to be empty: by another command, or it is one too many")
    print(f"instance {number} gets requests again")


def _scale(directory: Path, asked: argparse.Namespace) -> None:
    """Sets the number of instances. Unless it is auto, waits until this many are ready."""
    settings, orders = read_settings(directory / SETTINGS).cluster, ClusterOrders(directory)
    _status_of(directory)
    if asked.number == "auto":
        orders.scale(None)
        print(_usual_number(settings))
        return
    number, most, began_s = asked.number, settings.most_instances, time.monotonic()
    if not number.isdecimal() or not 1 <= int(number) <= most:
        limit = "cluster.max_instances" if settings.follows_load else "cluster.instances"
        raise ControlError(f"scale {number}: must be auto or a number from 1 to {most} ({limit})")
    _wait_until_read(directory, asked, orders.scale(int(number)))

    def missing() -> str:
        present = orders.read()
        if present.instances != int(number):
            raise ControlError("another command has ordered another number of instances meanwhile")
        return _not_yet(_status_of(directory), int(number), present.draining)

    _wait(asked, missing, shows=True)
    print(f"the number of instances is {number}; all are ready after {time.monotonic() - began_s:.1f} s")


def _wait_until_read(directory: Path, asked: argparse.Namespace, order: int) -> None:
    """Waits until the scheduler model has read the order of this number."""
    _wait(
        asked, lambda: "" if _status_of(directory)["order"] >= order else "the server has not read the order"
    )


def _wait(asked: argparse.Namespace, missing: Callable[[], str], shows: bool = False) -> None:
    """Waits until `missing` returns an empty text; else it says what is missing. Raises ControlError after
    the time that the command has. `shows`: what is missing is printed whenever it changes.
    """
    began_s, shown = time.monotonic(), ""
    while (text := missing()) != "":
        if shows and text != shown:
            print(text, file=sys.stderr, flush=True)
            shown = text
        if time.monotonic() - began_s > asked.timeout:
            raise ControlError(f"{text} after {asked.timeout:.0f} s; the order stays")
        time.sleep(LOOK_S)


def _usual_number(settings: ClusterSettings) -> str:
    if not settings.follows_load:
        return f"there will be {settings.instances} instances (cluster.instances)"
    least = max(1, settings.min_instances)
    return f"there will be {least} to {settings.max_instances} instances, as the load says"


def _not_yet(status: dict[str, Any], number: int, drained: frozenset[int]) -> str:
    """Returns how the instances differ from `number` that run and are ready; empty if they don't. Those in
    `drained` were drained by an order and count as ready.
    """
    instances = status["instances"]
    num_ready = sum(
        each["state"] == "ready" or (each["state"] == "draining" and each["number"] in drained)
        for each in instances
    )
    if len(instances) == num_ready == number:
        return ""
    return f"{num_ready} of {number} instances are ready, {len(instances)} run"


COMMANDS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "status": _show,
    "top": _top,
    "requests": _show_requests,
    "move": _move,
    "drain": _drain,
    "restore": _restore,
    "scale": _scale,
}

if __name__ == "__main__":
    sys.exit(main())
