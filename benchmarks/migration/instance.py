"""The instance process that `migration` measures: `python -m benchmarks.migration.instance RUN_DIRECTORY
NUMBER`. It is the server's own, but for two things.

No request finds blocks of an earlier one: a request that comes back would otherwise find most of its blocks,
and a move would copy next to nothing. And while the run directory has a file named `blocking`, a request is
suspended before any of its blocks are copied, as the simplest way of moving it would do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

from python_backends.instance.__main__ import main
from python_backends.moving import moves
from python_backends.moving.source import Source
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import MoveOut
from python_backends.scheduling.state.blocks import BlockPool

BLOCKING = "blocking"  # a file in the run directory


class EitherSource(Source):
    """Copies before it suspends, or suspends before it copies."""

    blocking_file: Path

    def move_out(self, order: MoveOut) -> list[FromInstance]:
        self._is_blocking = self.blocking_file.exists()
        return super().move_out(order)

    def _go_on(self, leaving: Any) -> list[FromInstance]:
        sequence = self._find(leaving.order)
        if not self._is_blocking or sequence is None:
            return super()._go_on(leaving)
        return self._suspend(leaving, sequence)


def serve(run_directory: Path, number: int) -> None:
    EitherSource.blocking_file = run_directory / BLOCKING
    with mock.patch.object(moves, "Source", EitherSource), mock.patch.object(BlockPool, "match", _no_blocks):
        main(run_directory, number)


def _no_blocks(*_: object, **__: object) -> list[int]:
    return []


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
