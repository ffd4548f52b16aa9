"""A LoRA adapter is trained while the server serves, and asked for by its name. The server needs
`make serve SET=adapters.directory=adapters`.

Four steps show the way, and teach little: docs/finetuning.md has the whole training of this task.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[1]
NAME = "no_comments"

submit = [sys.executable, "-m", "commands.finetune", "submit", "docs/examples/remove_comments.jsonl"]
options = ["--name", NAME, "--steps", "4", "--batch-size", "2", "--learning-rate", "1e-3"]
subprocess.run([*submit, *options], cwd=ROOT, check=True)  # ends when the adapter is trained

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
while NAME not in {model.id for model in client.models.list()}:  # the server finds it within a second
    time.sleep(0.5)
answer = client.chat.completions.create(
    model=NAME,
    messages=[
        {"role": "user", "content": "Remove the comments:\n# Define size.\ndef size(self):\n    return 3"}
    ],
    max_tokens=60,
)
print(f"{answer.model}: {answer.choices[0].message.content}")
