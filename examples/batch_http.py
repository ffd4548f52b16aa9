"""A file of requests, answered in the time that serving leaves: OpenAI's client uploads and reads files."""

import json
import os
import time

from openai import OpenAI

WORDS = ["river", "engine", "violin", "bread", "winter", "library", "copper", "garden"]
ENDPOINT = "/v1/chat/completions"
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


def line(word):
    messages = [{"role": "user", "content": f"Write one short sentence with the word {word}."}]
    body = {"messages": messages, "max_tokens": 20}
    return json.dumps({"custom_id": word, "method": "POST", "url": ENDPOINT, "body": body})


file = client.files.create(file=("words.jsonl", "\n".join(map(line, WORDS)).encode()), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
while batch.status not in ("completed", "cancelled", "expired"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
answers = {}
for answer in client.files.content(batch.output_file_id).text.splitlines():
    given = json.loads(answer)
    answers[given["custom_id"]] = given["response"]["body"]["choices"][0]["message"]["content"]
for word in WORDS:  # answers come in any order
    print(f"{word}: {' '.join(answers[word].split())}")
