"""The columns of the two tables of the slot state, which have one row a slot."""

from __future__ import annotations

from enum import IntEnum


class Column(IntEnum):
    """Of the table of whole numbers."""

    LAST_TOKEN = 0
    LENGTH = 1  # tokens so far; the KV of the last one is not computed yet
    OUTPUTS = 2  # output tokens so far
    MAX_LENGTH = 3
    MIN_TOKENS = 4
    SEED = 5
    TOP_K = 6
    ENDED = 7


class Share(IntEnum):
    """Of the table of fractions."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5
