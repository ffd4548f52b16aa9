"""Writes training data for a ninth task of the bundled model, `Remove the comments:`.

The functions are those of Gapless's own sources.

example: python -m models.recipe.ninth_task --output docs/examples/remove_comments.jsonl
"""

import argparse
import json
from pathlib import Path

from models.recipe import ROOT
from models.recipe.corpus import read_corpus
from models.recipe.evaluation import draw
from models.recipe.tasks import NINTH

SOURCES = ("python_backends", "client")


def main() -> None:
    """Writes a chat of two turns a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=128, help="lines (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    asked = parser.parse_args()
    corpus = read_corpus([path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))])
    with asked.output.open("w", encoding="utf-8") as file:
        for exercise in draw(NINTH, corpus, asked.examples):
            turns = (("user", exercise.prompt), ("assistant", exercise.answer))
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    main()
