"""Makes pictures of the docs with the bundled model: a chat in the terminal, the plot of a load test, and two
instances as `make top` shows them.

    python -m build.pictures
"""

from __future__ import annotations

import io
import re
import subprocess
import sys

from rich.console import Console
from rich.text import Text

from tests.support.server.serving import ROOT, Gapless
from tests.support.server.terminal import Terminal
from tests.support.shuffle import SHUFFLE

CONTROL = [sys.executable, "-m", "commands.control"]
PICTURES = ROOT / "docs/pictures"
TYPED = (
    "Convert to camelCase: read_all_lines",
    "Reword politely: Hey idiot, close the damn file, you moron!",
    "/set temperature 0.7",
    "/quit",
)


def draw_chat(url: str) -> None:
    terminal = Terminal([sys.executable, "-m", "client.chat", "--url", url])
    for line in TYPED:
        terminal.wait_for("> ")
        terminal.type(line + "\r")
    terminal.wait_for("/quit")
    terminal.close()
    seen = re.sub(r"\x1b\[\?2004[hl]|\r", "", terminal.seen)
    save(seen, "make chat", "chat.svg")


def save(seen: str, title: str, name: str) -> None:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(seen))
    console.save_svg(str(PICTURES / name), title=title)


def draw_load_test(url: str) -> None:
    command = [sys.executable, "-m", "client.bench", "--url", url, "--rate", "1", "2", "--requests", "40"]
    subprocess.run([*command, "--plot", str(PICTURES / "bench.png")], cwd=ROOT, check=True)


def draw_top() -> None:
    """While two instances have work, and requests move."""
    served = Gapless(**{"cluster.instances": 2, "cluster.policy": SHUFFLE})
    client = served.grpc()
    try:
        for number in range(24):
            client.ask(str(number), text_input=f"def read_{number}(", max_tokens=1500, min_tokens=1500)
        client.drain(3)
        terminal = Terminal([*CONTROL, "--run-directory", str(served.run_directory), "top"])
        terminal.wait_for("policy")
        terminal.wait_for("\n")
        terminal.process.kill()
        terminal.close()
        save(terminal.seen.replace("\x1b[H\x1b[J", "").replace("\r", ""), "make top", "top.svg")
    finally:
        client.close()
        served.stop()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    draw_top()
    served = Gapless()
    try:
        draw_chat(f"127.0.0.1:{served.grpc_port}")
        draw_load_test(f"127.0.0.1:{served.grpc_port}")
    finally:
        served.stop()


if __name__ == "__main__":
    main()
