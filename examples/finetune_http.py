"""An adapter is trained by OpenAI's client alone, from the upload of data to an answer of its model.
The server needs `make serve SET=adapters.directory=adapters`.

Four steps show the way, and teach little: docs/finetuning.md has the whole training of such a task.
"""

import json
import os
import sys
import time

from openai import OpenAI

WORDS = ["river", "engine", "violin", "bread", "winter", "library", "copper", "garden"]
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


def example(word):
    turns = [("user", f"Shout: {word}"), ("assistant", word.upper())]
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})


file = client.files.create(file=("shout.jsonl", "\n".join(map(example, WORDS)).encode()), purpose="fine-tune")
job = client.fine_tuning.jobs.create(
    model=client.models.list().data[0].id,
    training_file=file.id,
    suffix="shout",
    method={
        "type": "supervised",
        "supervised": {"hyperparameters": {"batch_size": 2, "learning_rate_multiplier": 5}},
    },
)
while job.status not in ("succeeded", "failed", "cancelled"):
    time.sleep(0.5)
    job = client.fine_tuning.jobs.retrieve(job.id)
for event in reversed(client.fine_tuning.jobs.list_events(job.id).data):
    print(event.message)
if job.fine_tuned_model is None:
    sys.exit(job.error.message if job.error else "the events say why there is no model to ask")
answer = client.chat.completions.create(
    model=job.fine_tuned_model, messages=[{"role": "user", "content": "Shout: river"}], max_tokens=10
)
print(f"{job.fine_tuned_model}: {answer.choices[0].message.content}")
