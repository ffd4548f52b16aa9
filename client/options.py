"""The table of parameters as options of a command line. Used by chat, bench and the command `/set`."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, cast

from .errors import RefusedError
from .parameters import TABLE, Parameters, Row

OURS = (
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_output_ids",
    "delivered_ids",
    "exclude_input_in_output",
    "return_log_probs",
    "num_top_log_probs",
    "return_prompt_log_probs",
)
TRUTH = {"true": True, "false": False}


def _address(text: str) -> str:
    if text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(
            f"{text}: must be HOST:PORT without http://, where Gapless listens for gRPC"
        )
    return text


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=_address,
        default="127.0.0.1:8001",
        metavar="HOST:PORT",
        help="Gapless's gRPC address (default: %(default)s)",
    )


def add_parameters(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each line of the table, except those that the tools set themselves."""
    group = parser.add_argument_group("parameters of every request (absent: the server's default)")
    for name, row in TABLE.items():
        if name not in OURS:
            option, kind, many = (
                f"--{name.replace('_', '-')}",
                row.kind.__name__.upper(),
                "+" if row.is_list else None,
            )
            read = _truth if row.kind is bool else row.kind
            group.add_argument(option, dest=name, type=read, nargs=many, metavar=kind, help=row.meaning)


def chosen(asked: argparse.Namespace) -> Parameters:
    """Returns the parameters that were given."""
    given = {name: getattr(asked, name, None) for name in TABLE}
    return cast(Parameters, {name: value for name, value in given.items() if value is not None})


def read_value(name: str, text: str) -> Any:
    """Returns a parameter's value from typed text. Raises RefusedError."""
    if name not in TABLE:
        raise RefusedError(f"{name}: there is no such parameter; there are {', '.join(TABLE)}")
    row = TABLE[name]
    try:
        return [row.kind(word) for word in shlex.split(text)] if row.is_list else _one(row, text)
    except (ValueError, KeyError) as error:
        raise RefusedError(f"{name} = {text}: must be {row.kind.__name__}") from error


def _one(row: Row, text: str) -> Any:
    return TRUTH[text.lower()] if row.kind is bool else row.kind(text)


def _truth(text: str) -> bool:
    if text.lower() not in TRUTH:
        raise argparse.ArgumentTypeError(f"{text}: must be {' or '.join(TRUTH)}")
    return TRUTH[text.lower()]
