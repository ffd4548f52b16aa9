"""Measures what a watcher of the page at `/` costs: tokens a second with a client that reads what the page
reads, and without one.

    python -m benchmarks.watcher_cost --json benchmarks/results/watcher_cost.json

16 streams of `/v1/chat/completions` never stop; their prompts are those of `real_prompts`, their answers have
240 tokens, EOS is ignored. Windows of some seconds follow each other; in one of each pair there is a watcher,
and pairs take turns in which one. The tokens of a window are those that the scheduler model counts from its
begin to its end. `of_alone` is the median of the pairs' ratios, `low` and `high` its 95 % interval (bootstrap
of the pairs). The watcher is a thread of the client: a browser draws its page on a machine of
its own.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.common.http_streams import Event, OpenAIStreams
from benchmarks.real_prompts.prompts import read_prompts
from benchmarks.results_file import table, write_result
from python_backends.nouns.order import Order
from python_backends.wires.control import ask
from tests.support.server.serving import Gapless

STREAMS, ANSWER = 16, 240
# several steps for each token that a window's bounds may misplace
WINDOW_S, USUAL_S = {"bundled": 2.0}, 8.0
WARM_UP_S, SETTLE_S = 5.0, 0.3
QUESTIONS = 100_000  # more than are asked
DRAWN, SEED = 10_000, 0


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    pairs: int
    window_s: float
    alone_tok_s: float
    watched_tok_s: float
    of_alone: float
    low: float
    high: float
    server_us_a_token_of_alone: float  # processor time of all processes of the server


@dataclass(frozen=True, slots=True)
class Window:
    tok_s: float
    server_us_a_token: float


@contextlib.contextmanager
def watched(port: int) -> Iterator[None]:
    """A thread reads what the page reads. Raises RuntimeError if the server refuses it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    sock = connection.sock
    connection.request("GET", "/glance")
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"/glance: status {answer.status}")

    def read() -> None:
        while sock.recv(1 << 16):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        reader.join()
        answer.close()
        connection.close()


@contextlib.contextmanager
def busy(port: int) -> Iterator[None]:
    """Streams that never stop."""
    streams = OpenAIStreams(port, "/v1/chat/completions", STREAMS)
    settings = {"stream": True, "temperature": 0.0, "max_tokens": ANSWER, "ignore_eos": True}
    prompts = itertools.islice(itertools.cycle(read_prompts()), QUESTIONS)
    bodies: list[Event] = [{**settings, "messages": prompt.messages} for prompt in prompts]
    asking = threading.Thread(target=streams.run, args=(bodies,))
    asking.start()
    try:
        yield
    finally:
        bodies.clear()  # no more are asked
        asking.join()
        streams.close()


def window(served: Gapless, seconds: float) -> Window:
    def counts() -> tuple[float, int]:
        return time.perf_counter(), ask(served.run_directory, Order("status"))["generated_tokens"]

    spent_s, begin = processor_s(served), counts()
    time.sleep(seconds)
    lasted_s, num_tokens = np.subtract(counts(), begin).tolist()
    spent_s = {pid: spent - spent_s.get(pid, spent) for pid, spent in processor_s(served).items()}
    return Window(num_tokens / lasted_s, sum(spent_s.values()) / num_tokens * 1e6)


def processor_s(served: Gapless) -> dict[int, float]:
    """Returns the processor time of each process of the server by its pid, but of those that end now."""
    found = {}
    for process in served.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = sum(process.cpu_times()[:2])
    return found


def pair(served: Gapless, seconds: float, is_watched_first: bool) -> tuple[Window, Window]:
    """Returns a window without a watcher and one with."""
    found: dict[bool, Window] = {}
    for is_watched in (is_watched_first, not is_watched_first):
        with watched(served.front_port) if is_watched else contextlib.nullcontext():
            time.sleep(SETTLE_S)
            found[is_watched] = window(served, seconds)
    return found[False], found[True]


def measure(model: str, num_pairs: int, seconds: float) -> Row:
    with Gapless(**{"model.directory": model}) as served, busy(served.front_port):
        time.sleep(WARM_UP_S)
        bar = tqdm(range(num_pairs), desc=f"{model}, pairs of windows", disable=None)
        return row_of(model, seconds, [pair(served, seconds, bool(number % 2)) for number in bar])


def row_of(model: str, seconds: float, pairs: list[tuple[Window, Window]]) -> Row:
    speeds = np.array([[each.tok_s for each in both] for both in pairs])
    costs = np.array([[each.server_us_a_token for each in both] for both in pairs])
    ratios = speeds[:, 1] / speeds[:, 0]
    drawn = np.random.default_rng(SEED).choice(ratios, (DRAWN, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975)).tolist()
    alone, with_watcher = np.median(speeds, axis=0).tolist()
    cost = float(np.median(costs[:, 1] / costs[:, 0]))
    return Row(model, len(pairs), seconds, alone, with_watcher, float(np.median(ratios)), low, high, cost)


def main() -> None:
    parser = command_line(__doc__, quick="three short pairs of windows, the bundled model alone")
    parser.add_argument("--models", default="bundled,auto", help="as in model.directory; auto: SmolLM2")
    parser.add_argument("--pairs", type=int, default=100)
    asked = parser.parse_args()
    models, pairs = (["bundled"], 3) if asked.quick else (asked.models.split(","), asked.pairs)
    windows_s = {model: 0.5 if asked.quick else WINDOW_S.get(model, USUAL_S) for model in models}
    rows = [measure(model, pairs, window_s) for model, window_s in windows_s.items()]
    if asked.json:
        write_result(asked.json, {"streams": STREAMS, "rows": [asdict(row) for row in rows]})
    print(table([_shown(row) for row in rows]))


def _shown(row: Row) -> dict[str, Any]:
    shown = asdict(row)
    speeds = {name: f"{shown[name]:.0f}" for name in ("alone_tok_s", "watched_tok_s")}
    names = ("of_alone", "low", "high", "server_us_a_token_of_alone")
    return shown | speeds | {name: f"{shown[name]:.3f}" for name in names}


if __name__ == "__main__":
    main()
