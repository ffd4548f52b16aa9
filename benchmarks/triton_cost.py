"""What Triton costs: the same work through the bare engine loop and through the ensemble, streaming over gRPC, in turn in one run.

    python benchmarks/triton_cost.py --rounds 5 --json benchmarks/results/triton_cost.json

Shape S with random weights (see peers.py), the lengths of `workload.json` with text as prompts, closed loop, 16 streams, greedy, EOS
ignored. The client runs on the same processors. A stream's time to first token runs from its submission to its first token or text.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peer_engines, peers
from tests.server.serving import Gapless, tensor

MODES = ("loop", "ensemble")


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    tok_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    chunks_a_token: float


class Ensemble:
    """The client's side: 16 requests in flight on one gRPC stream, times noted as responses come."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._news.put((time.perf_counter(), result, error)))
        self.num_chunks = 0

    def run(self, texts: list[str], work: peer_engines.Work) -> list[peer_engines.Timing]:
        timings: list[peer_engines.Timing] = []
        running = 0
        while running or len(timings) < len(texts):
            for _ in range(min(work.in_flight - running, len(texts) - len(timings))):
                self._submit(len(timings), texts[len(timings)], work.jobs[len(timings)].max_tokens)
                timings.append(peer_engines.Timing(time.perf_counter(), []))
                running += 1
            running -= self._take(timings)
        return timings

    def _submit(self, index: int, text: str, max_tokens: int) -> None:
        inputs = {"text_input": text, "max_tokens": max_tokens, "min_tokens": max_tokens, "stream": True}
        tensors = [tensor(name, value) for name, value in inputs.items()]
        self._client.async_stream_infer("ensemble", tensors, request_id=str(index))

    def _take(self, timings: list[peer_engines.Timing]) -> int:
        """One response. How many requests ended with it."""
        now, result, error = self._news.get(timeout=120)
        if error is not None:
            raise error
        response = result.get_response()
        timing = timings[int(response.id)]
        contents = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=True))
        self.num_chunks += 1
        if len(contents["text_output"]) > 4:  # its length comes first
            timing.tokens.append(now)
        if len(contents["finish_reason"]) > 4:
            timing.ended = now
            return 1
        return 0


def make_tokenizer(directory: Path) -> Tokenizer:
    """A byte-level BPE of 32,000 entries, from the standard library's own sources."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=peers.VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(path) for path in sources()], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer


def sources() -> list[Path]:
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def make_texts(tokenizer: Tokenizer, work: peer_engines.Work) -> tuple[list[str], peer_engines.Work]:
    """Texts about as long as the workload's prompts, and the work with their ids."""
    ids = tokenizer.encode("\n".join(path.read_text() for path in sources()[:40])).ids
    rng = random.Random(0)
    starts = [rng.randrange(len(ids) - 512) for _ in work.jobs]
    texts = [tokenizer.decode(ids[start : start + len(job.prompt)]) for start, job in zip(starts, work.jobs, strict=True)]
    jobs = [peer_engines.Job(tokenizer.encode(text).ids, job.max_tokens) for text, job in zip(texts, work.jobs, strict=True)]
    return texts, peer_engines.Work(jobs, work.in_flight)


def row_of(mode: str, work: peer_engines.Work, timings: list[peer_engines.Timing], num_chunks: int) -> Row:
    wall = max(timing.ended for timing in timings) - min(timing.submitted for timing in timings)
    num_tokens = sum(job.max_tokens for job in work.jobs)
    first = [(timing.tokens[0] - timing.submitted) * 1e3 for timing in timings if timing.tokens]
    return Row(mode, num_tokens / wall, float(np.median(first)), float(np.percentile(first, 99)), num_chunks / num_tokens)


def measure(directory: Path, dtype: str, rounds: int, work: peer_engines.Work, settings: dict[str, Any]) -> dict[str, list[Row]]:
    peers.make_model("S", dtype, directory)
    texts, work = make_texts(make_tokenizer(directory), work)
    loop = peers.EngineProcess("gapless", directory, dtype, work.in_flight)
    budget = {"engine.token_budget": peer_engines.TOKEN_BUDGET, "model.max_model_tokens": peer_engines.MAX_MODEL_TOKENS}
    served = Gapless(**{"model.directory": directory, "model.dtype": dtype, **budget, **settings})
    ensemble = Ensemble(f"127.0.0.1:{served.grpc_port}")
    rows: dict[str, list[Row]] = {mode: [] for mode in MODES}
    try:
        for number in range(rounds + 1):
            pair = one_round(loop, ensemble, texts, work)
            said = ", ".join(f"{row.mode} {row.tok_s:.0f} tokens/s, first token {row.ttft_p50_ms:.0f} ms" for row in pair)
            print(f"{'round ' + str(number) if number else 'warm-up'}: {said}", flush=True)
            for row in pair if number else []:
                rows[row.mode].append(row)
    finally:
        served.stop()
        loop.close()
    return rows


def one_round(loop: peers.EngineProcess, ensemble: Ensemble, texts: list[str], work: peer_engines.Work) -> list[Row]:
    timings, _ = loop.run(work)
    alone = row_of("loop", work, timings, 0)
    ensemble.num_chunks = 0
    through = row_of("ensemble", work, ensemble.run(texts, work), ensemble.num_chunks)
    return [alone, through]


def summary(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Medians of each figure, and of the two figures round by round."""
    pairs = list(zip(rows["loop"], rows["ensemble"], strict=True))
    medians = [
        {
            "mode": mode,
            **{name: float(np.median([asdict(row)[name] for row in rows[mode]])) for name in list(asdict(rows[mode][0]))[1:]},
        }
        for mode in MODES
    ]
    return {
        "rows": medians,
        "tok_s_ratio": float(np.median([through.tok_s / alone.tok_s for alone, through in pairs])),
        "ttft_p50_more_ms": float(np.median([through.ttft_p50_ms - alone.ttft_p50_ms for alone, through in pairs])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--quick", action="store_true", help="a few short requests, one round: does it run at all?")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting of the served side")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    settings = dict(item.partition("=")[::2] for item in arguments.set)
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(Path(directory), arguments.dtype, rounds, peers.load_work(arguments.quick), settings)
    result = summary(rows)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python", *sys.argv])
        about = {"machine": peers.machine(), "versions": peers.versions(), "date": time.strftime("%Y-%m-%d"), "command": command}
        arguments.json.write_text(json.dumps({**about, "rounds": rounds, **result}, indent=1) + "\n")
    print(f"ensemble / loop: {result['tok_s_ratio']:.2f} of the tokens per second, first token {result['ttft_p50_more_ms']:+.1f} ms")
    names = list(result["rows"][0])
    for line in [
        names,
        ["---"] * len(names),
        *([f"{v:.2f}" if isinstance(v, float) else v for v in row.values()] for row in result["rows"]),
    ]:
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
