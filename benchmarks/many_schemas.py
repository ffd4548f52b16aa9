"""Requests that each bring another schema, sent to one server: what they leave there, what others notice.

    python -m benchmarks.many_schemas --json benchmarks/results/many_schemas.json

The bundled model, float32. Four neighbours ask the same again and again; each of their texts is compared with
the first one, which came while nothing else was there. They are alone, then beside requests without a guide,
then beside the schemas. Each of those requests gets one final answer; one that is whole is validated by
`jsonschema`. A silence is the time between two pieces of a neighbour's answer: the server may hold tokens for
60 ms, and lets a step take 150 (`scheduling.max_step_ms`). Memory is each process's
own, in MiB, after so many schemas.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.results_file import table, write_result
from python_backends.launcher.stubs import STUBS
from tests.support.schemas import Schema, random_schema, record
from tests.support.server import doors, memory
from tests.support.server.serving import Gapless

NUM_SCHEMAS, NUM_PLAIN, ALONE_S = 10_000, 1_000, 10.0
QUICK_SCHEMAS, QUICK_PLAIN, QUICK_ALONE_S = 40, 10, 1.0
NUM_CALLERS, NUM_NEIGHBOURS = 12, 4
ANSWER = 40  # tokens at most
NEIGHBOURS = {"max_tokens": 200, "min_tokens": 200, "stream": True}
MARKS = (0.0, 0.1, 0.5, 1.0)  # of the schemas, after which memory is read
Row = dict[str, Any]


def schema_of(number: int) -> Schema:
    """No two are the same. Without white space: its tokens are for the JSON."""
    drawn = random_schema(number)
    space = {"x-guidance": {"whitespace_pattern": ""}}
    return {"$defs": drawn.pop("$defs"), **record(**{f"key{number}": drawn}), **space}


def ask(served: Gapless, is_guided: bool, number: int) -> str:
    """How the answer ended. Raises RuntimeError if it did not end once."""
    fields = {"text_input": "A record, as JSON: ", "max_tokens": ANSWER, "temperature": 1.0, "seed": number}
    schema = schema_of(number)
    if is_guided:
        guide = {"guided_decoding_guide": json.dumps(schema)}
        fields |= {"guided_decoding_guide_type": "json_schema", **guide}
    found = doors.post(served.http_port, "generate", doors.body(**fields))
    if found.num_ends != 1:
        raise RuntimeError(f"request {number} ended {found.num_ends} times: {found}")
    if is_guided and found.reasons == ["stop"]:
        jsonschema.validate(json.loads(found.text), schema, jsonschema.Draft202012Validator)
    return "refused" if found.errors else found.reasons[0]


class Neighbour:
    def __init__(self, served: Gapless, number: int) -> None:
        self._port = served.http_port
        self._body = doors.body(text_input=f"def read_{number}(self, size", **NEIGHBOURS)
        self._text, _ = self._ask()  # undisturbed
        self.num_answers = self.num_others = 0
        self.silences_ms: list[float] = []

    def keep_asking(self, done: threading.Event) -> None:
        while not done.is_set():
            text, silences_ms = self._ask()
            self.num_answers += 1
            self.num_others += text != self._text
            self.silences_ms += silences_ms

    def _ask(self) -> tuple[str, list[float]]:
        connection, text, came_s = doors.http_connection(self._port), "", []
        with contextlib.closing(connection):
            connection.request("POST", f"{doors.PATH}generate_stream", self._body)
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    came_s.append(time.perf_counter())
                    text += json.loads(line.removeprefix(b"data: "))["text_output"]
        return text, (1e3 * np.diff(came_s)).tolist()


class Measured:
    def __init__(self, served: Gapless) -> None:
        self._served = served
        self._neighbours = [Neighbour(served, number) for number in range(NUM_NEIGHBOURS)]
        self.marks: list[memory.Mark] = []

    def alone(self, seconds: float) -> Row:
        with self._part("alone", Counter()) as row:
            time.sleep(seconds)
        return row

    def plain(self, count: int) -> Row:
        ended: Counter[str] = Counter()
        with self._part(f"beside {count} requests", ended) as row:
            self._fire(range(1, count + 1), False, ended)
        return row

    def guided(self, count: int) -> Row:
        ended: Counter[str] = Counter()
        with self._part(f"beside {count} schemas", ended) as row:
            for number in (int(share * count) for share in MARKS):
                self._fire(range(ended.total() + 1, number + 1), True, ended)
                self.marks.append(memory.mark(number, self._pids()))
        return row

    def _pids(self) -> dict[str, int]:
        """Of the processes that a request goes through, by name."""
        stubs = {model: self._served.stub_pid(model) for model in STUBS}
        return {"tritonserver": self._served.server_pid(), **stubs, "instance": self._served.instance_pid()}

    def _fire(self, numbers: range, is_guided: bool, ended: Counter[str]) -> None:
        with ThreadPoolExecutor(NUM_CALLERS) as pool:
            answers = pool.map(partial(ask, self._served, is_guided), numbers)
            ended.update(tqdm(answers, total=len(numbers), unit="request", disable=None))

    @contextlib.contextmanager
    def _part(self, name: str, ended: Counter[str]) -> Iterator[Row]:
        """The neighbours ask meanwhile; the row is whole afterwards."""
        for each in self._neighbours:
            each.num_answers, each.num_others, each.silences_ms = 0, 0, []
        row: Row = {"part": name}
        done, began_s = threading.Event(), time.perf_counter()
        with ThreadPoolExecutor(NUM_NEIGHBOURS) as pool:
            asking = [pool.submit(each.keep_asking, done) for each in self._neighbours]
            try:
                yield row
                took_s = time.perf_counter() - began_s
            finally:
                done.set()
            for asked in asking:
                asked.result()
        row |= {"seconds": round(took_s, 1), "whole": ended["stop"], "cut": ended["length"]}
        row |= {"refused": ended["refused"], "neighbours": sum(each.num_answers for each in self._neighbours)}
        row["other_texts"] = sum(each.num_others for each in self._neighbours)
        silences_ms = [silence for each in self._neighbours for silence in each.silences_ms]
        for which, share in (("p50", 50), ("p99", 99), ("longest", 100)):
            row[f"silence_{which}_ms"] = round(float(np.percentile(silences_ms, share)), 1)


def memory_rows(marks: list[memory.Mark]) -> list[Row]:
    return [
        {"memory": name, **{f"after {each.num_requests}": round(each.mib[name], 1) for each in marks}}
        for name in marks[0].mib
    ]


def main() -> None:
    parser = command_line(__doc__, quick=f"{QUICK_SCHEMAS} schemas: does it run at all?")
    parser.add_argument("--schemas", type=int, default=NUM_SCHEMAS)
    asked = parser.parse_args()
    with Gapless(**{"model.dtype": "float32"}) as served:
        measured = Measured(served)
        rows = [
            measured.alone(QUICK_ALONE_S if asked.quick else ALONE_S),
            measured.plain(QUICK_PLAIN if asked.quick else NUM_PLAIN),
            measured.guided(QUICK_SCHEMAS if asked.quick else asked.schemas),
        ]
    kept = memory_rows(measured.marks)
    if asked.json:
        write_result(asked.json, {"rows": rows, "memory_mib": kept})
    print(table(kept), end="\n\n")
    print(table(rows))


if __name__ == "__main__":
    main()
