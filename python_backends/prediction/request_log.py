"""The log of answers: one SQLite file (WAL) that keeps the newest ones.

Features and lengths always; instructions and inputs in plain text only where that was asked for. The
learner's process is its one writer; the predictor and `make stats` read at the same time.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.messages import AnswerRecord, AtPromptEnd
from python_backends.nouns.request import Finish
from python_backends.prediction import token_counts
from python_backends.prediction.forest import Observations
from python_backends.prediction.history import MAX_ANSWERS, Answered
from python_backends.prediction.state_model import KnownStates

FILE = "requests.sqlite"
ERROR_TOKENS, ERROR_SHARE = 10, 0.1
CUT_SHORT = (Finish.LENGTH, Finish.DEADLINE, Finish.CANCELLED)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL, instruction INTEGER,
  num_prompt_tokens INTEGER, num_input_tokens INTEGER,
  num_output_tokens INTEGER, ended INTEGER,          -- 0: cut short
  mean REAL, quantiles BLOB, version INTEGER,        -- as predicted; NULL: nothing was
  encoder TEXT, features BLOB,                       -- NULL: there was no time
  teaches INTEGER,                                   -- the prediction was wrong enough to learn from
  draw REAL,                                         -- random: the smallest ones are the reservoir
  instruction_text TEXT, input_text TEXT);           -- NULL: not kept
CREATE INDEX IF NOT EXISTS lessons ON answers (teaches, draw) WHERE features IS NOT NULL;
"""
# logs of older versions have no such columns
_OF_STATES = {
    "state": "BLOB",  # hidden, at the end of the prompt; NULL: the engine gave none, or it is an old one
    "state_layer": "INTEGER",
    "end_mean": "REAL",  # as predicted from it; NULL: nothing was
    "end_quantiles": "BLOB",
    "end_version": "INTEGER",
}
_LATER = {"token_buckets": "BLOB", **_OF_STATES}  # of the prompt; NULL: it is an old one
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS states ON answers (id) WHERE state IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS texts ON answers (id) WHERE token_buckets IS NOT NULL",
)
MAX_STATES = 4000  # the newest ones: 9 MB of a model with 576 numbers; as many texts


def instruction_id(text: str) -> int:
    """The same for the same instruction in all requests; does not reveal it."""
    # SQLite's integers have a sign
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def teaches(predicted: float, actual: int, ended: bool = True) -> bool:
    """Whether an answer is learned from: predicted wrong by more than 10 tokens and by more than 10 % of its
    length, as Magnus does.

    An answer that was cut short can only show that a prediction was too small.
    """
    error = abs(predicted - actual) if ended else actual - predicted
    return error > ERROR_TOKENS and error > ERROR_SHARE * actual


class RequestLog:
    def __init__(self, directory: Path, max_answers: int = 0) -> None:
        """Opens the log, only for reading if `max_answers` is 0. Raises sqlite3.Error or OSError."""
        if max_answers:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._max_answers = max_answers
        where = f"{(directory / FILE).resolve().as_uri()}?mode={'rwc' if max_answers else 'rw'}"
        self._file = sqlite3.connect(
            where, timeout=5.0, isolation_level=None, check_same_thread=False, uri=True
        )
        if max_answers:
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.executescript(_SCHEMA)
            known = {row[1] for row in self._file.execute("PRAGMA table_info(answers)")}
            for name, kind in _LATER.items():
                if name not in known:
                    self._file.execute(f"ALTER TABLE answers ADD COLUMN {name} {kind}")
            for index in _INDEXES:
                self._file.execute(index)
        else:
            self._file.execute("PRAGMA query_only=1")

    def close(self) -> None:
        self._file.close()

    # --- the learner writes

    def add(self, records: Sequence[AnswerRecord]) -> None:
        """Adds those whose length says something, and deletes the oldest above the limit."""
        rows = [_row(record) for record in records if record.finish == Finish.STOP or _was_cut(record)]
        marks = ", ".join("?" * (15 + len(_LATER)))
        with self._file:
            self._file.execute("BEGIN")
            self._file.executemany(
                "INSERT INTO answers (at_s, instruction, num_prompt_tokens, num_input_tokens,"
                " num_output_tokens, ended, mean, quantiles, version, encoder, features, teaches, draw,"
                f" instruction_text, input_text, {', '.join(_LATER)}) VALUES ({marks})",
                rows,
            )
            self._file.execute(
                "DELETE FROM answers WHERE id <= (SELECT MAX(id) FROM answers) - ?", [self._max_answers]
            )
            for column in ("state", "token_buckets"):
                self._file.execute(
                    f"UPDATE answers SET {column} = NULL WHERE {column} IS NOT NULL AND id <="
                    f" (SELECT id FROM answers WHERE {column} IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    [MAX_STATES],
                )

    # --- all processes read

    def last_id(self) -> int:
        return int(self._one("SELECT COALESCE(MAX(id), 0) FROM answers"))

    def num_answers(self) -> int:
        return int(self._one("SELECT COUNT(*) FROM answers"))

    def recent(self) -> list[Answered]:
        """The newest answers, newest first."""
        rows = self.rows("instruction, num_input_tokens, num_output_tokens, ended", MAX_ANSWERS)
        return [Answered(*row) for row in rows]

    def num_lessons(self, encoder: str, after_id: int = 0, wrong_only: bool = False) -> int:
        """The number of answers with features after `after_id`: all, or
        only those that were predicted wrong.
        """
        where = "encoder = ? AND id > ? AND features IS NOT NULL" + (" AND teaches" if wrong_only else "")
        return int(self._one(f"SELECT COUNT(*) FROM answers WHERE {where}", encoder, after_id))

    def lessons(self, encoder: str, max_wrong: int, max_ordinary: int) -> Observations | None:
        """The newest answers that were predicted wrong, and a random sample of the others; None if there are
        none.

        Each represents as many as there are of its kind, so that errors alone do not bend the forest.
        """
        columns = "features, num_output_tokens, ended, instruction"
        where = "FROM answers WHERE encoder = ? AND features IS NOT NULL AND teaches ="
        wrong = self._file.execute(
            f"SELECT {columns} {where} 1 ORDER BY id DESC LIMIT ?", [encoder, max_wrong]
        ).fetchall()
        num_free = max_ordinary + max_wrong - len(wrong)
        ordinary = self._file.execute(
            f"SELECT {columns} {where} 0 ORDER BY draw LIMIT ?", [encoder, num_free]
        ).fetchall()
        if not wrong and not ordinary:
            return None
        counts = [int(self._one(f"SELECT COUNT(*) {where} {kind}", encoder)) for kind in (1, 0)]
        weights = [
            np.full(len(rows), count / max(1, len(rows)))
            for rows, count in zip((wrong, ordinary), counts, strict=True)
        ]
        return _observations([*wrong, *ordinary], np.concatenate(weights))

    def num_states(self, after_id: int = 0) -> int:
        """The number of answers with a state after `after_id`."""
        return int(self._one("SELECT COUNT(*) FROM answers WHERE state IS NOT NULL AND id > ?", after_id))

    def states(self) -> KnownStates | None:
        """The newest answers with a state, of the layer and size that the newest has; None if there are
        none.
        """
        rows = self._file.execute(
            "SELECT state, state_layer, num_output_tokens, ended FROM answers WHERE state IS NOT NULL"
            " ORDER BY id DESC LIMIT ?",
            [MAX_STATES],
        ).fetchall()
        alike = [row for row in rows if (len(row[0]), row[1]) == (len(rows[0][0]), rows[0][1])]
        if not alike:
            return None
        states, layers, lengths, ended = zip(*alike, strict=True)
        return KnownStates(
            layers[0],
            np.frombuffer(b"".join(states), "<f4").reshape(len(alike), -1),
            np.array(lengths, np.float32),
            np.array(ended, bool),
        )

    def num_texts(self, after_id: int = 0) -> int:
        """The number of answers with tokens of their prompts after `after_id`."""
        return int(
            self._one("SELECT COUNT(*) FROM answers WHERE token_buckets IS NOT NULL AND id > ?", after_id)
        )

    def texts(self) -> KnownStates | None:
        """The newest answers with tokens of their prompts, as numbers; None if there are none."""
        rows = self._file.execute(
            "SELECT token_buckets, num_prompt_tokens, num_output_tokens, ended FROM answers"
            " WHERE token_buckets IS NOT NULL ORDER BY id DESC LIMIT ?",
            [MAX_STATES],
        ).fetchall()
        if not rows:
            return None
        *prompts, lengths, ended = zip(*rows, strict=True)
        return KnownStates(
            token_counts.LAYER,
            token_counts.rows_of(list(zip(*prompts, strict=True))),
            np.array(lengths, np.float32),
            np.array(ended, bool),
        )

    def rows(self, columns: str, count: int) -> list[tuple[Any, ...]]:
        """`columns` of the newest `count` answers, newest first."""
        return self._file.execute(
            f"SELECT {columns} FROM answers ORDER BY id DESC LIMIT ?", [count]
        ).fetchall()

    def _one(self, query: str, *values: Any) -> Any:
        return self._file.execute(query, values).fetchone()[0]


def _was_cut(record: AnswerRecord) -> bool:
    return record.finish in CUT_SHORT and record.num_output_tokens > 0


def _row(record: AnswerRecord) -> tuple[Any, ...]:
    ended, answer = record.finish == Finish.STOP, record.predicted
    prediction, features = answer.prediction, answer.features
    return (
        record.at_s,
        instruction_id(record.instruction),
        record.num_prompt_tokens,
        record.num_input_tokens,
        record.num_output_tokens,
        ended,
        prediction and prediction.mean,
        prediction and prediction.quantiles.astype("<f4").tobytes(),
        answer.version if prediction else None,
        answer.encoder or None,
        None if features is None else features.astype("<f4").tobytes(),
        prediction is not None and teaches(prediction.mean, record.num_output_tokens, ended),
        random.random(),
        record.instruction if record.user_input else None,
        record.user_input or None,
        None if record.token_buckets is None else token_counts.kept(record.token_buckets),
        *_at_prompt_end(record.at_prompt_end),
    )


def _at_prompt_end(given: AtPromptEnd | None) -> tuple[Any, ...]:
    if given is None or not np.isfinite(given.state).all():
        return (None,) * len(_OF_STATES)
    said = given.prediction
    return (
        given.state.astype("<f4").tobytes(),
        given.layer,
        said and said.mean,
        said and said.quantiles.astype("<f4").tobytes(),
        given.version if said else None,
    )


def _observations(rows: Sequence[tuple[Any, ...]], weights: NDArray[np.float64]) -> Observations:
    features, lengths, ended, instructions = zip(*rows, strict=True)
    return Observations(
        np.frombuffer(b"".join(features), "<f4").reshape(len(rows), -1),
        np.array(lengths, np.float32),
        np.array(ended, bool),
        np.array(instructions, np.uint64),
        weights,
    )
