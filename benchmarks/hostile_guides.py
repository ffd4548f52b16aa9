"""Guides that mean harm: refused, or served, and then what they cost at most.

    python -m benchmarks.hostile_guides --json benchmarks/results/hostile_guides.json

Each guide is compiled as the door compiles it. Answers of those that are taken are drawn token by token among
those that may come, and the longest of each part is told, in milliseconds of the thread's processor time, as
it would keep the loop busy: a mask, taking a token, and the copy of what was compiled, of which each answer
gets one. `--model` is a checkpoint, as in `model.directory` (`auto`: SmolLM2); only its vocabulary is used.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.results_file import table, write_result
from commands.model import located
from python_backends.guides.errors import GuideError
from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import Guides
from python_backends.guides.matcher import Matcher, num_words
from python_backends.guides.prepared import Followed
from python_backends.settings import ModelSettings, Settings
from python_backends.text.checkpoint import Checkpoint, read_checkpoint
from python_backends.text.vocabulary import vocabulary_of

Result = TypeVar("Result")
Guide = tuple[str, str]  # its type, and the guide
NUM_TOKENS, NUM_ANSWERS = 200, 3
MOST_S = 8.0  # of one answer
COMPILE_S = 300.0
QUICK = ("repeats of repeats", "leaves more and more open", "thousands of ways on")


def words(count: int, length: int) -> list[str]:
    drawn = random.Random(count)
    return ["".join(drawn.choices("abcdefghij", k=length)) for _ in range(count)]


def schema(**fields: Any) -> Guide:
    return "json_schema", json.dumps(fields)


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}, "required": ["a"]}
    return made


def records(count: int) -> list[dict[str, Any]]:
    """Objects of which each has another key."""
    return [{"type": "object", "properties": {word: {}}, "required": [word]} for word in words(count, 6)]


def patterns(count: int, pattern: str) -> list[dict[str, Any]]:
    """Strings that have `pattern`, in which WORD is another one each time."""
    return [{"type": "string", "pattern": pattern.replace("WORD", word)} for word in words(count, 3)]


def rules(start: str, choices: Iterable[str]) -> Guide:
    return "grammar", f"start: {start}\nb: {' | '.join(choices)}"


def hostile() -> dict[str, Guide]:
    """By name."""
    tree = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "string"}]}}
    names, text = words(400, 6), {"type": "any_text"}
    called = [{"begin": f"<{name}>", "content": text, "end": f"</{name}>"} for name in names]
    tags = {"type": "triggered_tags", "triggers": [f"<{name[:2]}" for name in names], "tags": called}
    long_text = words(1, 80_000)[0]
    optional = "start: /a/ /b/ c*\nc: " + "d? " * 1500 + "/z/\nd: /x/ | /y/"
    return {
        "repeats of repeats": ("regex", "(a+)+b"),
        "counted repeats": ("regex", "a{1000}{1000}"),
        "optional repeats": ("regex", "(a?){1000}"),
        "ambiguous repeats": ("regex", "(ab|a|b){500,5000}"),
        "long counts": ("regex", "[a-z]{1,100000}"),
        "letters of all scripts": ("regex", r"(\w{1,50} ){1,500}\w+"),
        "many states": ("regex", r"(.|\n)*x(.|\n){200}y"),
        "many words": ("regex", f".*({'|'.join(words(800, 8))}).*({'|'.join(words(800, 8))}).*"),
        "a large enum": schema(type="array", items={"enum": words(8000, 10)}),
        "a long string": schema(type="string", minLength=5000, maxLength=100_000),
        "a long list": schema(type="array", items=nested(3), minItems=2000, maxItems=1_000_000),
        "three thousand keys": schema(type="object", properties={word: {} for word in words(3000, 8)}),
        "many records": schema(type="array", items={"anyOf": records(500)}),
        "too many records": schema(type="array", items={"anyOf": records(1000)}),
        "many patterns": schema(type="array", items={"anyOf": patterns(200, "^[a-z]{1,200}WORD(.*q.{6})?$")}),
        "patterns at once": schema(type="array", items={"allOf": patterns(30, "WORD")}),
        "keys by patterns": schema(patternProperties={f"^{word}.*x$": {} for word in words(60, 3)}),
        "deep": ("json_schema", json.dumps(nested(120))),
        "recursive": schema(**{"$ref": "#/$defs/t", "$defs": {"t": tree}}),
        "numbers": schema(type="array", items={"type": "number", "minimum": -1.2345678, "maximum": 9.8e9}),
        "multiples": schema(type="integer", multipleOf=9973),
        "leaves more and more open": ("grammar", 'start: a\na: a a | "x"'),
        "ambiguous": ("grammar", 'start: e\ne: e "+" e | e "*" e | "(" e ")" | e e | /[0-9]/'),
        "grows to the right": ("grammar", 'start: a\na: "x" a | "y" a | "x"'),
        "never ends": ("grammar", 'start: "x" start "y"'),
        "both sides": ("grammar", 'start: "a" start "a" | "b" start "b" | "c"'),
        "thousands of ways on": rules("/a/ /b/ b+", (f"/x/ /{i}/" for i in range(6000))),
        "thousands of ways beside": rules("(/[a-z]/ | /c/ b)*", (f"/{i}/ /x/" for i in range(6000))),
        "many optional parts": ("grammar", optional),
        "many terminals": rules("b+", (f"/[a-z]*{word}[a-z]*/" for word in words(400, 4))),
        "terminals with many states": rules("b+", (f"/(.*{word}.{{3}})+/" for word in words(60, 3))),
        "negations": ("grammar", "start: A\nA: /[a-z ]*/ & ~/.*(foo|bar).*/ & ~/.*(a.{8}b).*/"),
        "conjunctions": ("grammar", "start: A\nA: " + " & ".join(f"/.*{word}.*/" for word in words(9, 2))),
        "parts of a long text": ("grammar", f'start: A\nA: %regex {{"substring_chars": "{long_text}"}}'),
        "many triggers": ("structural_tag", json.dumps({"type": "structural_tag", "format": tags})),
    }


HOSTILE = hostile()


class Longest:
    """Milliseconds of the thread's processor time, by part."""

    def __init__(self) -> None:
        self.ms = dict.fromkeys(("mask_ms", "take_ms", "copy_ms"), 0.0)

    def timed(self, part: str, do: Callable[[], Result]) -> Result:
        began_s = time.thread_time()
        result = do()
        self.ms[part] = max(self.ms[part], (time.thread_time() - began_s) * 1e3)
        return result


def draw(matcher: Matcher, checkpoint: Checkpoint, vocab_size: int, seed: int, longest: Longest) -> str:
    """How the answer ended."""
    drawn, mask = np.random.default_rng(seed), np.zeros(num_words(vocab_size), np.int32)
    ends_s = time.monotonic() + MOST_S
    for _ in range(NUM_TOKENS):
        longest.timed("mask_ms", partial(matcher.fill, mask))
        may = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not len(may):
            return "an error ended it"
        texts = np.setdiff1d(may, checkpoint.eos_ids)
        if not len(texts):
            return "served, whole"
        if not longest.timed("take_ms", partial(matcher.take, [int(drawn.choice(texts))])):
            return "an error ended it"
        if time.monotonic() > ends_s:
            return "served, slowly"
    return "served"


def measure(name: str, guides: Guides, checkpoint: Checkpoint, vocab_size: int) -> dict[str, Any]:
    kind, guide = HOSTILE[name]
    row: dict[str, Any] = {"guide": name, "bytes": len(guide)}
    longest, ends, began_s = Longest(), "", time.perf_counter()
    try:
        grammar = grammar_of(kind, guide)
        guides.begin(grammar).result(COMPILE_S)
        compile_ms = (time.perf_counter() - began_s) * 1e3
        followed = Followed(grammar, [], checkpoint.eos_ids)
        for seed in range(NUM_ANSWERS):
            matcher = longest.timed("copy_ms", partial(guides.matcher, followed))
            ends = draw(matcher, checkpoint, vocab_size, seed, longest)
    except GuideError as error:
        compile_ms, ends = (time.perf_counter() - began_s) * 1e3, f"refused: {error}"
    costs = {"compile_ms": compile_ms, **longest.ms}
    return row | {part: round(ms, 1) for part, ms in costs.items()} | {"answer": ends}


def main() -> None:
    parser = command_line(__doc__, quick="the bundled vocabulary and three guides: does it run at all?")
    parser.add_argument("--model", default="auto")
    asked = parser.parse_args()
    model = "bundled" if asked.quick else asked.model
    settings = located(Settings(model=ModelSettings(directory=model)))
    checkpoint = read_checkpoint(settings.model_directory)
    vocab_size = checkpoint.tokenizer.get_vocab_size()
    guides = Guides(partial(vocabulary_of, checkpoint, vocab_size))
    guides.check(grammar_of("json", ""))
    names = QUICK if asked.quick else tuple(HOSTILE)
    rows = [measure(name, guides, checkpoint, vocab_size) for name in tqdm(names, unit="guide", disable=None)]
    if asked.json:
        write_result(asked.json, {"rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
