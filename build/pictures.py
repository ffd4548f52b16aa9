"""Makes the pictures of docs/client.md with a server of the bundled model: a chat in the terminal, and the
plot of a load test.

    python build/pictures.py
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.server.serving import ROOT, Gapless
from tests.server.terminal import Terminal

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
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(seen))
    console.save_svg(str(PICTURES / "chat.svg"), title="make chat")


def draw_load_test(url: str) -> None:
    command = [sys.executable, "-m", "client.bench", "--url", url, "--rate", "1", "2", "--requests", "40"]
    subprocess.run([*command, "--plot", str(PICTURES / "bench.png")], cwd=ROOT, check=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    served = Gapless()
    try:
        draw_chat(f"127.0.0.1:{served.grpc_port}")
        draw_load_test(f"127.0.0.1:{served.grpc_port}")
    finally:
        served.stop()


if __name__ == "__main__":
    main()
