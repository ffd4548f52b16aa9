"""A program that trains by Tinker's SDK, which is on its path alone. Called by `benchmarks.tinker_cost`.

It answers each line of its standard input with one of JSON. "go": it trains from now on, and makes its first
optimiser step before it answers; "stop": it tells how many steps and tokens it has made since, and the loss
of a token in the last one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker  # type: ignore[import-not-found]


@dataclass
class Trained:
    steps: int = 0
    tokens: int = 0
    loss: float = 0.0


def main(url: str, model: str, examples_path: str) -> None:
    texts: list[list[int]] = json.loads(Path(examples_path).read_text())
    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(text[:-1]),
            loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * (len(text) - 1)},
        )
        for text in texts
    ]
    num_tokens = sum(len(text) - 1 for text in texts)
    service = tinker.ServiceClient(base_url=url, api_key="tml-none")
    trained = service.create_lora_training_client(model, rank=8, seed=1, train_unembed=False).result()

    def step(made: Trained) -> None:
        passed = trained.forward_backward(data, "cross_entropy")
        trained.optim_step(tinker.AdamParams(learning_rate=1e-4)).result()
        made.steps, made.tokens = made.steps + 1, made.tokens + num_tokens
        made.loss = passed.result().metrics["loss:sum"] / num_tokens

    def train(made: Trained, ended: threading.Event) -> None:
        while not ended.is_set():
            step(made)

    made, ended, thread = Trained(), threading.Event(), None
    for line in sys.stdin:
        if line.strip() == "go":
            step(Trained())
            made, ended = Trained(), threading.Event()
            thread = threading.Thread(target=train, args=(made, ended))
            thread.start()
            answer = {}
        else:
            answer = vars(made).copy()  # of whole steps
            ended.set()
            if thread is not None:
                thread.join()
        print(json.dumps(answer), flush=True)
    service.close("success").result()


if __name__ == "__main__":
    main(*sys.argv[1:])
