"""Owns what is published of an evaluation: the tables in the model
card, and the same figures as JSON beside it.
"""

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from .evaluation import MAX_ANSWER, SEED, Result

CARD, FIGURES = "README.md", "evaluation.json"
BEGIN, END = "<!-- evaluation: written by `make model-card` -->", "<!-- end of evaluation -->"
PEARSON_WANTED = 0.8

NEWCOMERS = "anything else"

Results = dict[str, list[Result]]  # by the prompts' format


def table(results: list[Result]) -> str:
    """The results as a Markdown table, with what they come to together."""
    lines = [
        (
            "| task | prompts | exact match | similarity | ended by itself | Pearson | input tokens | answer"
            " tokens |"
        ),
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for r in results:
        scores = f"{r.exact:.1%} | {r.similarity:.1%} | {r.ended:.1%} | {r.pearson:.3f}".replace("%", " %")
        lines.append(f"| {r.task} | {r.prompts} | {scores} | {r.input_tokens:.0f} | {r.answer_tokens:.0f} |")
    close = sum(r.pearson > PEARSON_WANTED for r in results)
    means = " | ".join(
        f"{fmean(getattr(r, name) for r in results):.1%}" for name in ("exact", "similarity", "ended")
    ).replace("%", " %")
    lines.append(
        f"| all | {sum(r.prompts for r in results)} | {means} | > {PEARSON_WANTED} in {close} of"
        f" {len(results)} | | |"
    )
    return "\n".join(lines)


def newcomers_table(results: list[Result]) -> str:
    """What is none of the tasks: how often the answer is a line that says what the model can do."""
    lines = ["| what is said | prompts | answered by one of the lines |", "| --- | --: | --: |"]
    shares = [(r.task, r.prompts, f"{r.exact:.1%}") for r in results]
    mean = f"{fmean(r.exact for r in results):.1%}"
    for name, prompts, share in [*shares, ("all", sum(r.prompts for r in results), mean)]:
        lines.append(f"| {name} | {prompts} | {share.replace('%', ' %')} |")
    return "\n".join(lines)


def tables(results: Results) -> str:
    """One table a format, under headings."""
    return "\n\n".join(_section(name, each) for name, each in results.items())


def _section(name: str, results: list[Result]) -> str:
    if name == NEWCOMERS:
        return f"### {name.capitalize()}\n\n{newcomers_table(results)}"
    return f"### {name.capitalize()} prompts\n\n{table(results)}"


def publish(model: Path, results: Results) -> None:
    """Puts the tables between the card's marks, if there is a card,
    and the figures into the file beside it.
    """
    circumstances = _circumstances()
    figures = {
        **circumstances,
        "results": {name: [asdict(result) for result in each] for name, each in results.items()},
    }
    (model / FIGURES).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    card = model / CARD
    if not card.exists():
        return
    before, _, rest = card.read_text("utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{card}: must hold the line {BEGIN} and behind it the line {END}")
    measured = f"Measured {circumstances['date']}: " + ", ".join(
        f"{name} {value}" for name, value in circumstances["versions"].items()
    )
    card.write_text(f"{before}{BEGIN}\n\n{tables(results)}\n\n{measured}.\n\n{END}{after}", "utf-8")


def _circumstances() -> dict[str, Any]:
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {
        "command": "make model-card",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"Python": platform.python_version(), **versions},
        "seed": SEED,
        "max_answer_tokens": MAX_ANSWER,
    }
