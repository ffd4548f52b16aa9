"""Prints what completes the words of `gapless` in a shell, made of the parsers of all commands.

eval "$(gapless completion bash)"                                         a line of ~/.bashrc
gapless completion zsh >~/.zfunc/_gapless                                 a folder of $fpath
gapless completion fish >~/.config/fish/completions/gapless.fish
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shtab

from commands.__main__ import COMMANDS

SHELLS = ("bash", "zsh", "fish")
FILES = {"model"}  # words that may be a file, besides those that are a path


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Of the command with all its commands, which else are parsed one by one."""
    parser = argparse.ArgumentParser(prog="gapless")
    parser.add_argument("--version", action="version", help="of Gapless")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, (module, words, meaning) in COMMANDS.items():
        first, _, second = name.partition(" ")  # a command of two words comes after that of its first
        place = commands.choices[first].add_subparsers() if second else commands
        place.add_parser(second or first, help=meaning)
        found = _below(importlib.import_module(module).command_parser(), words)
        place.choices[second or first] = found
    _complete_files(parser)
    return parser


def _below(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser that remains after these words."""
    for word in words:
        parser = next(each[word] for each in _parsers(parser) if word in each)
    return parser


def _parsers(parser: argparse.ArgumentParser) -> list[dict[str, argparse.ArgumentParser]]:
    """Those of the words that it may be followed by."""
    return [action.choices for action in parser._actions if isinstance(action.choices, dict)]


def _complete_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if action.type is Path or action.dest in FILES:
            found: Any = action
            found.complete = shtab.FILE
    for by_word in _parsers(parser):
        for each in by_word.values():
            _complete_files(each)


def main() -> int:
    print(shtab.complete(whole_parser(), command_parser().parse_args().shell))
    return 0
