"""Writes the prompts of load tests: `client/bench/tasks.jsonl` and, for perf_analyzer,
`client/perf_inputs.json`.

    python -m models.recipe.write_prompts

They are held-out examples of the bundled model's tasks (see corpus.py), one of each task in turn. The
same Python gives the same prompts.
"""

from __future__ import annotations

import json
from random import Random

from models.recipe import ROOT
from models.recipe.corpus import load_corpora
from models.recipe.tasks import all_tasks

PROMPTS_A_TASK = 50
PERF_PROMPTS = 32  # the first ones, repeated: every window of perf_analyzer has about the same work
PERF_MAX_TOKENS = 64


def main() -> None:
    lexicon = json.loads((ROOT / "models/bundled/velin.json").read_text())
    _, held_out = load_corpora()
    rng = Random(0)
    prompts = [
        (task.name, task.example(held_out, rng).prompt)
        for _ in range(PROMPTS_A_TASK)
        for task in all_tasks(lexicon)
    ]
    rows = [{"task": task, "messages": [{"role": "user", "content": text}]} for task, text in prompts]
    (ROOT / "client/bench/tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [
        {"messages": [json.dumps(row["messages"])], "max_tokens": [PERF_MAX_TOKENS], "stream": [True]}
        for row in rows[:PERF_PROMPTS]
    ]
    (ROOT / "client/perf_inputs.json").write_text(json.dumps({"data": asked}, indent=1) + "\n")


if __name__ == "__main__":
    main()
