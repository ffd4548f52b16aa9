"""A chat in the terminal: shows the answer while it is computed, and then its length, its speed and the time
to its first token.

    gapless chat                                              in a checkout: make chat
    gapless chat --url 127.0.0.1:8001 --temperature 0.7
    echo "What is the capital of France?" | gapless chat

Answers go to standard output, all other lines to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from .errors import GaplessError
from .options import add_parameters, add_url, chosen, read_value
from .parameters import Parameters
from .sync_client import Client
from .wire import Message, Piece, assistant, system, user

HELP = """\
/help               this
/clear              forget the conversation
/system TEXT        begin again with this system message; `/system` shows it, `/system -` removes it
/set NAME VALUE     a parameter of the following requests; `/set` shows them, `/set NAME` removes one
/quit               leave, as Ctrl-D does
Ctrl-C ends an answer. A line that ends with \\ continues in the next one; // begins a line with a slash.
A long conversation confuses a small model: /clear it now and then. Try
  What is the capital of France?
or, with a server of MODEL=bundled, which can do eight tasks only,
  Convert to camelCase: read_all_lines"""
# removed from answers: they must not control the terminal
CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)]) | {9: "\t", 10: "\n"}


@dataclass(slots=True)
class Pace:
    """When an answer's text arrived. Times in seconds, of one clock."""

    asked_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_tokens: int = 0

    def take(self, piece: Piece, now_s: float) -> None:
        if piece.text and not self.first_s:
            self.first_s = now_s
        self.last_s = now_s
        self.num_tokens += piece.num_output_tokens or 0

    def __str__(self) -> str:
        said = [f"{self.num_tokens} token{'s' if self.num_tokens != 1 else ''}"]
        if self.num_tokens > 1 and self.last_s > self.first_s > 0:
            said.append(f"{(self.num_tokens - 1) / (self.last_s - self.first_s):.0f} tokens/s")
        if self.first_s:
            said.append(f"first token {(self.first_s - self.asked_s) * 1000:.0f} ms")
        return " · ".join(said)


class Chat:
    """One conversation. Answers go to `sys.stdout`, all other lines to `sys.stderr`."""

    def __init__(self, client: Client, parameters: Parameters, system_text: str = "") -> None:
        self._client = client
        self._parameters = parameters
        self._system = system_text
        self._messages: list[Message] = []
        self._is_dim = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        self.num_errors = 0

    def take(self, text: str) -> bool:
        """Runs a command or answers a text. Returns False after /quit."""
        if text.startswith("/") and not text.startswith("//"):
            return self._command(text)
        if text.strip():
            self._answer(text.removeprefix("/") if text.startswith("//") else text)
        return True

    def say(self, text: str) -> None:
        print(f"\x1b[2m{text}\x1b[0m" if self._is_dim else text, file=sys.stderr, flush=True)

    def _answer(self, text: str) -> None:
        said, reason, pace = "", "cancelled", Pace(time.monotonic())
        self._messages.append(user(text))
        prompt = [*([system(self._system)] if self._system else []), *self._messages]
        parameters: Parameters = {**self._parameters, "return_num_output_tokens": True}
        try:
            # closed at the end: the server frees the slot at once
            with _interrupts() as interrupts, closing(self._client.stream(prompt, **parameters)) as stream:
                for piece in stream:
                    pace.take(piece, time.monotonic())
                    said, reason = said + piece.text, piece.finish_reason or reason
                    _show(piece.text)
                    if interrupts:
                        break
        except KeyboardInterrupt:
            pass
        except GaplessError as error:
            self.num_errors += 1
            reason = f"{'' if not said else 'broken off: '}{error}"
        self._remember(said)
        _show("\n" if said else "")
        self.say(f"{pace} · {reason}" if said or pace.num_tokens else reason)

    def _remember(self, said: str) -> None:
        """Adds the answer to the conversation; without one, removes the question."""
        if said:
            self._messages.append(assistant(said))
        else:
            self._messages.pop()

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name == "/clear":
            self._messages.clear()
            self.say("forgotten")
        elif name == "/system":
            self._set_system(rest.strip())
        elif name == "/set":
            self._set(*rest.split(maxsplit=1))
        else:
            self.say(HELP if name == "/help" else f"{name}: there is no such command; /help shows them")
        return True

    def _set_system(self, text: str) -> None:
        if text:
            self._system = "" if text == "-" else text
            self._messages.clear()
        self.say(f"system: {self._system or 'none'}")

    def _set(self, name: str = "", value: str = "") -> None:
        parameters = dict(self._parameters)
        try:
            if value:
                parameters[name] = read_value(name, value)
            elif name:
                parameters.pop(name, None)
        except GaplessError as error:
            self.say(str(error))
        self._parameters = cast(Parameters, parameters)
        self.say(
            ", ".join(f"{name} = {value}" for name, value in parameters.items())
            or "all parameters are the server's defaults"
        )


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yields the list of SIGINTs so far. Each also raises KeyboardInterrupt, which is lost if it comes inside
    a callback of a library.
    """
    seen: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _show(text: str) -> None:
    sys.stdout.write(text.translate(CONTROL) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def typed(chat: Chat) -> Iterator[str]:
    """Yields typed texts, with the line editing and the history of readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (the import changes `input`)
    while True:
        try:
            lines = [input("> ")]
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(input("… "))
            yield "\n".join(lines)
        except KeyboardInterrupt:
            print()
            chat.say("Ctrl-D or /quit leaves")
        except EOFError:
            print()
            return


def piped() -> Iterator[str]:
    """Yields lines of a pipe or a file; a line that ends with a backslash continues in the next one."""
    text = ""
    for line in sys.stdin:
        text += line.removesuffix("\n")
        if text.endswith("\\"):
            text = text[:-1] + "\n"
        else:
            yield text
            text = ""
    if text:
        yield text


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless chat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=HELP,
    )
    add_url(parser)
    parser.add_argument("--system", default="", metavar="TEXT", help="system message")
    add_parameters(parser)
    return parser


def _reason(client: Client) -> str:
    """Why it is not ready."""
    try:
        client.server_version()
    except GaplessError as error:
        return str(error)
    return "it is starting, or a model of it is"


def main() -> int:
    asked = command_parser().parse_args()
    with Client(asked.url) as client:
        chat = Chat(client, chosen(asked), asked.system)
        if not client.is_ready():
            chat.say(
                f"no server is ready at {asked.url}: {_reason(client)}\nStart it (`gapless serve`, or"
                " `make serve`), or set its address with --url"
            )
            return 1
        if sys.stdin.isatty():
            chat.say(
                f"Gapless at {asked.url}. /help shows the commands, Ctrl-C ends an answer, Ctrl-D leaves."
            )
        try:
            for text in typed(chat) if sys.stdin.isatty() else piped():
                if not chat.take(text):
                    break
        except BrokenPipeError:  # who reads the answers has left
            # else Python writes what is left when it ends, and says that this failed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
    return 1 if chat.num_errors and not sys.stdin.isatty() else 0


if __name__ == "__main__":
    sys.exit(main())
