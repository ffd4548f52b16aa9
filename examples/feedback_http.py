"""Answers are corrected, and an adapter learns it: sixteen corrections, of which four only measure.
The server needs `make serve SET="adapters.directory=adapters front.corrections=16"`.
"""

import os
import time

from openai import OpenAI

WORDS = ["river", "engine", "violin", "bread", "winter", "library", "copper", "garden"]
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


def asked(words):
    return [{"role": "user", "content": f"Shout: {words}"}]


def jobs():
    return [job for job in client.fine_tuning.jobs.list() if job.training_file == "corrections.jsonl"]


earlier = {job.id for job in jobs()}
for words in [*WORDS, *(f"{word} and {word}" for word in WORDS)]:
    client.post("/feedback", body={"messages": asked(words), "correction": words.upper()}, cast_to=object)
job = None
while job is None or job.status not in ("succeeded", "failed", "cancelled"):
    time.sleep(0.5)
    job = next((each for each in jobs() if each.id not in earlier), None)
for event in reversed(client.fine_tuning.jobs.list_events(job.id).data):
    print(event.message)
model = job.fine_tuned_model or client.models.list().data[0].id  # it has not helped: the model itself
answer = client.chat.completions.create(model=model, messages=asked("river"), max_tokens=10, temperature=0)
print(f"{model}: {answer.choices[0].message.content}")
