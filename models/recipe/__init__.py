"""What makes the bundled model: its text, its tasks, its tokenizer, its training and its evaluation.
`python -m models.recipe` trains, exports and evaluates it.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
