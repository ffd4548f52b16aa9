"""A request goes to another instance while its answer is read: for `make cluster`.

python examples/move_request.py [--run-directory PATH]    # of the server, if several run on this host
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from openai import OpenAI


def control(*words):
    command = [sys.executable, "-m", "commands.control", *sys.argv[1:], *words]
    repository = Path(__file__).resolve().parents[1]
    return subprocess.run(command, cwd=repository, check=True, stdout=subprocess.PIPE, text=True).stdout


client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
with client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Tell me a long story about a ship."}],
    max_tokens=1500,
    stream=True,
    extra_body={"ignore_eos": True},  # so that it is still being answered when it moves
) as stream:
    for number, chunk in enumerate(stream):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
        if number == 5:
            requests = json.loads(control("status", "--json"))["requests"]
            here = next(each for each in requests if each["id"] == stream.response.headers["x-request-id"])
            moved = control("move", str(here["request"]), str(1 - here["instance"]))
            print(f"\n[{moved.strip()}]")
        if number == 200:
            break  # leaving ends the request
