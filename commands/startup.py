"""Where each second of a start goes: starts a server, asks it for one token, ends it, and prints the phases.

    gapless bench startup                                   SmolLM2-135M-Instruct, three starts
    gapless bench startup Qwen/Qwen2.5-0.5B-Instruct --rounds 5 --slots 64 --json startup.json

MODEL and all options but --rounds and --json are those of `gapless serve`. Each start is on 127.0.0.1, with
ports of its own, no key, no TLS, and empty folders for what a server keeps, except the compiled layers. The
files of the model are in the memory of the machine from the second start on; the first start tells what
reading them from the disk costs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import queue
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from commands.called import called
from commands.env import machine, software
from python_backends.launcher.address import API_KEY
from python_backends.linux.free_ports import free_ports
from python_backends.linux.process_group import obeyed
from python_backends.linux.start_clock import read_phases

PORTS = ("server.http_port", "server.grpc_port", "server.metrics_port", "front.port")
WITHOUT = ("front.api_keys", "front.tls_certificate", "front.tls_key")  # the first token is asked for by HTTP
REFUSED = ("--api-key", "--ssl-certfile", "--ssl-keyfile")
KEPT = ("prediction.directory", "finetuning.directory", "front.directory")
LAUNCHER = "gapless"  # as its lines begin
READY = re.compile(r"^(gapless|instance \d+): ready after [\d.]+ s: (.*)$")
INSTANCE = "an instance"  # the launcher's phase in which an instance starts
OTHER = "what no clock has"
LONGEST_S = 1800.0  # from start to ready, where a model is downloaded or compiled
ANSWER_S, END_S, CLOSE_S = 300.0, 90.0, 10.0
LINES_SHOWN = 20
ENDING = (signal.SIGTERM, signal.SIGHUP)


class StartError(Exception):
    """The server did not start, or did not answer; the message is for the user."""


def phases_of(lines: Sequence[str], ready_s: float, token_s: float) -> dict[str, float]:
    """Returns the seconds of each phase, in order: of the launcher, with those of the first instance that was
    ready in the place where the launcher waited for it, and the first token. `ready_s`: from the command to
    the launcher's last line. Their sum is `ready_s` + `token_s`.
    """
    said = [(match[1], read_phases(match[2])) for line in lines if (match := READY.match(line))]
    (launcher,) = [phases for process, phases in said if process == LAUNCHER]
    first = next((phases for process, phases in said if process != LAUNCHER), {})
    phases: dict[str, float] = {}
    for name, seconds in launcher.items():
        if name == INSTANCE:
            phases |= {f"instance: {part}": part_s for part, part_s in first.items()}
            phases["instance: until it is seen"] = seconds - sum(first.values())
        else:
            phases[name] = seconds
    phases["first token"] = token_s
    phases[OTHER] = ready_s + token_s - sum(phases.values())
    return phases


def table(rounds: Sequence[dict[str, float]]) -> Iterator[str]:
    """Yields lines: the median of each phase, its least and its most, its share of all."""
    names = dict.fromkeys(name for each in rounds for name in each)
    columns = {name: [each.get(name, 0.0) for each in rounds] for name in names}
    total = [sum(each.values()) for each in rounds]
    yield f"{'phase':<34}{'s':>8}{'least':>8}{'most':>8}{'share':>8}"
    for name, seconds in {**columns, "in all": total}.items():
        median = statistics.median(seconds)
        shown = (round(each, 2) + 0.0 for each in (median, min(seconds), max(seconds)))  # no -0.00
        share = round(median / statistics.median(total), 2) + 0.0
        yield f"{name:<34}" + "".join(f"{each:>8.2f}" for each in shown) + f"{share:>8.0%}"


class Server:
    """One start; the server ends with the block."""

    def __init__(self, words: Sequence[str], folder: str) -> None:
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.port = ports["front.port"]
        given = {
            "server.address": "127.0.0.1",
            **ports,
            **dict.fromkeys(WITHOUT, ""),
            **{name: f"{folder}/{name.partition('.')[0]}" for name in KEPT},
        }
        settings = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        environment = {name: text for name, text in os.environ.items() if name != API_KEY}
        self._began_s = time.monotonic()
        self._process = subprocess.Popen(
            [*called(), "serve", *words, *settings],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.lines: list[str] = []
        self._coming: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(CLOSE_S)

    def await_ready(self) -> float:
        """Returns the seconds since the command was given. Raises StartError."""
        while (left_s := LONGEST_S - (time.monotonic() - self._began_s)) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._coming.get(timeout=left_s)
                if line is None:
                    raise StartError("\n".join(["the server did not start:", *self.lines[-LINES_SHOWN:]]))
                self.lines.append(line)
                if (match := READY.match(line)) and match[1] == LAUNCHER:
                    return time.monotonic() - self._began_s
        raise StartError(f"the server was not ready within {LONGEST_S:.0f} s")

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as said:
            for line in said:
                self._coming.put(line.rstrip("\n"))
        self._coming.put(None)


def first_token(port: int) -> float:
    """Returns the seconds from a request for one token to its answer. Raises StartError."""
    began_s = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        body = json.dumps({"prompt": "The capital of France is", "max_tokens": 1})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise StartError(f"the first request got no answer: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise StartError(f"the first request got status {answer.status}: {text}")
    return time.monotonic() - began_s


def measure(words: Sequence[str]) -> dict[str, float]:
    """One start. Raises StartError."""
    with TemporaryDirectory(prefix="gapless-startup-") as folder, Server(words, folder) as server:
        ready_s = server.await_ready()
        return phases_of(server.lines, ready_s, first_token(server.port))


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless bench startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="starts (default: %(default)s)")
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="write all numbers here, with machine, date and command"
    )
    return parser


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Ours, and the words for `serve`."""
    parser = command_parser()
    asked, words = parser.parse_known_args()
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: must be above 0")
    for word in words:
        if word.partition("=")[0] in REFUSED:
            parser.error(f"{word.partition('=')[0]}: the server that is started here has no key and no TLS")
    if asked.json and not asked.json.parent.is_dir():
        parser.error(f"--json {asked.json}: there is no directory {asked.json.parent}")
    if asked.json and asked.json.is_dir():
        parser.error(f"--json {asked.json}: must be a file, and is a directory")
    return asked, words


def main() -> int:
    asked, words = arguments()
    rounds: list[dict[str, float]] = []
    for name in obeyed(*ENDING):  # as Ctrl-C does, so that the server ends, too
        signal.signal(name, signal.default_int_handler)
    try:
        for number in range(1, asked.rounds + 1):
            rounds.append(measure(words))
            print(f"start {number} of {asked.rounds}: {sum(rounds[-1].values()):.2f} s", flush=True)
    except StartError as error:
        print(f"bench startup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("\n".join(table(rounds)))
    if asked.json:
        about = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": shlex.join(["gapless", "bench", "startup", *sys.argv[1:]]),
            **dict((*software(), *machine())),
        }
        asked.json.write_text(json.dumps({**about, "rounds": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
