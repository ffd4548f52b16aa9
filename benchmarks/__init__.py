"""What is measured: `python -m benchmarks.<name>`. README.md lists the commands; results are in `results`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
