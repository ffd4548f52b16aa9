"""The log of answers: one SQLite file (WAL) that keeps the newest ones.

Features and lengths always; instructions and inputs in plain text only where that was asked for. The
learner's process is its one writer; the predictor and `make stats` read at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.messages import AnswerRecord, AtStage
from python_backends.nouns.request import Finish
from python_backends.nouns.stages import OF_STATES, PROMPT_END, TEXT
from python_backends.prediction import token_counts
from python_backends.prediction.forest import Observations
from python_backends.prediction.history import MAX_ANSWERS, Answered
from python_backends.prediction.state_model import KnownStates

log = logging.getLogger("gapless.learner")

FILE = "requests.sqlite"
DAMAGED = ".damaged"
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
CREATE TABLE IF NOT EXISTS stages (               -- that an answer reached, where the engine gave states
  answer INTEGER, stage INTEGER,                     -- `nouns.stages`
  state BLOB, layer INTEGER,                         -- state NULL: it is an old one
  mean REAL, quantiles BLOB, version INTEGER);       -- as predicted from it; NULL: nothing was
CREATE UNIQUE INDEX IF NOT EXISTS stages_reached ON stages (answer, stage);
CREATE INDEX IF NOT EXISTS stages_known ON stages (stage, answer) WHERE state IS NOT NULL;
"""
BUCKETS = "token_buckets"  # of the prompt; NULL: it is an old one. Logs of older versions have no such column
_BUCKETS_KNOWN = f"CREATE INDEX IF NOT EXISTS texts ON answers (id) WHERE {BUCKETS} IS NOT NULL"
MAX_KNOWN = 4000  # the newest: prompts, and states at their ends, 9 MB of a model with 576 numbers
MAX_WRITTEN = 1000  # the newest states of each later stage


def _connected(directory: Path, mode: str) -> sqlite3.Connection:
    where = f"{(directory / FILE).resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(where, timeout=5.0, isolation_level=None, check_same_thread=False, uri=True)


def _writable(directory: Path) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError if the file is damaged."""
    file = _connected(directory, "rwc")
    try:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=NORMAL")
        file.executescript(_SCHEMA)
        known = {row[1] for row in file.execute("PRAGMA table_info(answers)")}
        if BUCKETS not in known:
            file.execute(f"ALTER TABLE answers ADD COLUMN {BUCKETS} BLOB")
        file.execute(_BUCKETS_KNOWN)
        (said,) = file.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError(said)
    except sqlite3.Error:
        file.close()
        raise
    return file


def _put_aside(directory: Path, error: sqlite3.Error) -> None:
    where = directory / FILE
    log.warning(
        "%s is damaged (%s): it is called %s%s now, and a new one begins", where, error, FILE, DAMAGED
    )
    for part in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{where}{part}").replace(f"{where}{DAMAGED}{part}")


def instruction_id(text: str, adapter: str = "") -> int:
    """The same for the same instruction in all requests with the same adapter; does not reveal it. `adapter`:
    the digest of its content.
    """
    hashed = hashlib.blake2b(text.encode(), digest_size=8, person=adapter[:16].encode())
    return int.from_bytes(hashed.digest()) >> 1  # SQLite's integers have a sign


def teaches(predicted: float, actual: int, ended: bool = True) -> bool:
    """Whether an answer is learned from: predicted wrong by more than 10 tokens and by more than 10 % of its
    length, as Magnus does.

    An answer that was cut short can only show that a prediction was too small.
    """
    error = abs(predicted - actual) if ended else actual - predicted
    return error > ERROR_TOKENS and error > ERROR_SHARE * actual


class RequestLog:
    def __init__(self, directory: Path, max_answers: int = 0) -> None:
        """Opens the log, only for reading if `max_answers` is 0; else a damaged one is put aside, and a new
        one begins. Raises sqlite3.Error or OSError.
        """
        self._max_answers = max_answers
        self._path = directory / FILE
        if not max_answers:
            self._file = _connected(directory, "rw")
            self._file.execute("PRAGMA query_only=1")
            return
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._file = _writable(directory)
        except sqlite3.OperationalError:  # locked, or the disk is full
            raise
        except sqlite3.DatabaseError as error:
            _put_aside(directory, error)
            self._file = _writable(directory)
        self._written = self._path.stat()

    def close(self) -> None:
        self._file.close()

    # --- the learner writes

    def check_place(self) -> None:
        """Raises OSError if the file that is written is not in its place any more."""
        if not os.path.samestat(self._path.stat(), self._written):
            raise FileNotFoundError(f"{self._path} is another file now")

    def add(self, records: Sequence[AnswerRecord]) -> None:
        """Adds those whose length says something, and deletes the oldest above the limit."""
        with self._file:
            self._file.execute("BEGIN")
            for record in records:
                if record.finish == Finish.STOP or _was_cut(record):
                    self._insert(record)
            for table, number in (("answers", "id"), ("stages", "answer")):
                self._file.execute(
                    f"DELETE FROM {table} WHERE {number} <= (SELECT MAX(id) FROM answers) - ?",
                    [self._max_answers],
                )
            self._file.execute(
                f"UPDATE answers SET {BUCKETS} = NULL WHERE {BUCKETS} IS NOT NULL AND id <="
                f" (SELECT id FROM answers WHERE {BUCKETS} IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?)",
                [MAX_KNOWN],
            )
            known = "stage = ? AND state IS NOT NULL"
            for stage in OF_STATES:
                self._file.execute(
                    f"UPDATE stages SET state = NULL WHERE {known} AND answer <="
                    f" (SELECT answer FROM stages WHERE {known} ORDER BY answer DESC LIMIT 1 OFFSET ?)",
                    [stage, stage, _most(stage)],
                )

    def _insert(self, record: AnswerRecord) -> None:
        row = _row(record)
        number = self._file.execute(
            "INSERT INTO answers (at_s, instruction, num_prompt_tokens, num_input_tokens,"
            " num_output_tokens, ended, mean, quantiles, version, encoder, features, teaches, draw,"
            f" instruction_text, input_text, {BUCKETS}) VALUES ({_marks(row)})",
            row,
        ).lastrowid
        for each in record.stages:
            if np.isfinite(each.state).all():
                stage = (number, *_stage(each))
                self._file.execute(f"INSERT INTO stages VALUES ({_marks(stage)})", stage)

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

    def num_known(self, after_id: int = 0) -> int:
        """The number of answers after `after_id` of which the prompt's tokens or the state at its end are
        known.
        """
        at_end = "SELECT answer FROM stages WHERE stage = ? AND state IS NOT NULL"
        where = f"id > ? AND ({BUCKETS} IS NOT NULL OR id IN ({at_end}))"
        return int(self._one(f"SELECT COUNT(*) FROM answers WHERE {where}", after_id, PROMPT_END))

    def known(self, stage: int) -> KnownStates | None:
        """The newest answers that have reached this stage, with numbers of the layer and size that the newest
        has; None if there are none.
        """
        rows = self._texts() if stage == TEXT else self._states(stage)
        if not rows:
            return None
        numbers, layers, values, lengths, ended = zip(*rows, strict=True)
        return KnownStates(
            layers[0],
            np.stack(values),
            np.array(lengths, np.float32),
            np.array(ended, bool),
            np.array(numbers, np.int64),
        )

    def _states(self, stage: int) -> list[tuple[Any, ...]]:
        rows = self._file.execute(
            "SELECT answer, layer, state, num_output_tokens, ended FROM stages JOIN answers ON id = answer"
            " WHERE stage = ? AND state IS NOT NULL ORDER BY answer DESC LIMIT ?",
            [stage, _most(stage)],
        ).fetchall()
        kinds = [(layer, len(state)) for _, layer, state, *_ in rows]
        return [
            (number, layer, np.frombuffer(state, "<f4"), *length)
            for (number, layer, state, *length), kind in zip(rows, kinds, strict=True)
            if kind == kinds[0]
        ]

    def _texts(self) -> list[tuple[Any, ...]]:
        rows = self._file.execute(
            f"SELECT id, {BUCKETS}, num_prompt_tokens, num_output_tokens, ended FROM answers"
            f" WHERE {BUCKETS} IS NOT NULL ORDER BY id DESC LIMIT ?",
            [MAX_KNOWN],
        ).fetchall()
        return [
            (number, token_counts.LAYER, token_counts.of_kept(kept, count), *length)
            for number, kept, count, *length in rows
        ]

    def stages(self, from_id: int) -> list[tuple[Any, ...]]:
        """(answer, stage, mean, quantiles, version) of what was predicted from states of the answers from
        `from_id` on, by answer and stage.
        """
        return self._file.execute(
            "SELECT answer, stage, mean, quantiles, version FROM stages"
            " WHERE answer >= ? AND mean IS NOT NULL ORDER BY answer, stage",
            [from_id],
        ).fetchall()

    def rows(self, columns: str, count: int) -> list[tuple[Any, ...]]:
        """`columns` of the newest `count` answers, newest first."""
        return self._file.execute(
            f"SELECT {columns} FROM answers ORDER BY id DESC LIMIT ?", [count]
        ).fetchall()

    def _one(self, query: str, *values: Any) -> Any:
        return self._file.execute(query, values).fetchone()[0]


def _most(stage: int) -> int:
    return MAX_KNOWN if stage == PROMPT_END else MAX_WRITTEN


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _was_cut(record: AnswerRecord) -> bool:
    return record.finish in CUT_SHORT and record.num_output_tokens > 0


def _row(record: AnswerRecord) -> tuple[Any, ...]:
    ended, answer = record.finish == Finish.STOP, record.predicted
    prediction, features = answer.prediction, answer.features
    return (
        record.at_s,
        instruction_id(record.instruction, record.adapter),
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
    )


def _stage(given: AtStage) -> tuple[Any, ...]:
    said = given.prediction
    return (
        given.stage,
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
