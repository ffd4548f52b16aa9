"""Gapless in one command, `gapless`. In a checkout it is `.venv/bin/python -m commands`, and `make` calls it.

gapless serve                               serve the model that comes along
gapless serve Qwen/Qwen2.5-0.5B-Instruct    one from the hub, or a directory, or a GGUF file
gapless chat                                talk to it, in another terminal
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from python_backends.settings.folders import IS_INSTALLED, ROOT
from python_backends.settings.setting import FOLDER

COMMANDS = {  # the module whose `main` it is, the first words that it gets, and what it does
    "serve": ("commands.serve", (), "serve a model"),
    "chat": ("client.chat", (), "talk to a running server in the terminal"),
    "bench": ("client.bench.__main__", (), "load test of a running server"),
    "bench startup": ("commands.startup", (), "where each second of a start goes"),
    "finetune": ("commands.finetune.__main__", (), "train adapters, in a running server or alone"),
    "stats": ("commands.stats", (), "how good predicted lengths have been"),
    "top": ("commands.control", ("top",), "what each instance of a running server carries, again and again"),
    "control": ("commands.control", (), "move requests, drain instances, set how many run"),
    "completion": ("commands.completion", (), "what completes these words in bash, zsh and fish"),
    "env": ("commands.env", (), "versions, machine and settings, for a report of a fault"),
}
OWN = {"client", "commands", "front", "gapless", "python_backends"}


def release() -> str:
    """Of this code. An image has no pyproject.toml, and its commit if the build was told."""
    if IS_INSTALLED:
        return version("gapless")
    project = ROOT / "pyproject.toml"
    if project.exists():
        return str(tomllib.loads(project.read_text())["tool"]["gapless"]["version"])
    return f"of an image {os.environ.get('GAPLESS_COMMIT', '')}".strip()


def main() -> int:
    asked = _parser().parse_args(sys.argv[1:] or ["--help"])
    os.environ.setdefault(FOLDER, str(Path.cwd()))  # modules that settings name may lie there
    name, given = _split(asked.command, asked.words)
    module, words, _ = COMMANDS[name]
    # a program that parses its own words says in its messages how it was called
    sys.argv = [f"gapless {name}" if not words else "gapless", *words, *given]
    try:
        program = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] in OWN:
            raise
        print(_missing(name, error.name), file=sys.stderr)
        return 1
    try:
        code = int(program.main())
        print(end="", flush=True)
    except BrokenPipeError:  # who reads what is printed has left
        # else Python writes what is left when it ends, and says that this failed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _split(command: str, words: list[str]) -> tuple[str, list[str]]:
    """The command and its words. A command of two words comes before that of its first."""
    name = f"{command} {words[0]}" if words else ""
    return (name, words[1:]) if name in COMMANDS else (command, words)


def _missing(command: str, package: str) -> str:
    return (
        f"gapless {command}: the Python package {package} is not installed. On Linux on x86-64 or ARM64,"
        " with Python 3.11 or 3.12, `pip install` without --no-deps brings all that serving needs"
    )


def _parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:15}{meaning}" for name, (_, _, meaning) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="gapless",
        description=__doc__,
        epilog=f"commands:\n{commands}\n\n`gapless COMMAND --help` explains one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gapless {release()}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of those below")
    parser.add_argument("words", metavar="…", nargs=argparse.REMAINDER, help="what this command takes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
