"""Keeps the runs of `cluster` in a folder, so that a long table can be made in pieces.

A run is deterministic: it depends on the code and on the case, the policy and the seed, which name its file.
Each file says of which commit its code was; a commit that leaves this code as it is does not make it again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.cluster.runs import Capacity, Served

CODE = (  # that makes the runs
    "python_backends/**/*.py",
    "benchmarks/cluster/*.py",
    "benchmarks/common/given_lengths.py",
    "benchmarks/policies.py",
)


def kept(path: Path | None, commit: str, run: Callable[[], Served]) -> tuple[Served, str]:
    """The results in the file `path`, or those of `run`, which are written there; and the commit that made
    them. None: nothing is kept.
    """
    if path is None:
        return run(), commit
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, commit, run())
    with np.load(path) as found:
        told = json.loads(str(found["told"]))
        served = Served(
            found["ttft_s"],
            found["tpot_s"],
            found["latency_s"],
            found["is_high"],
            told["num_evictions"],
            Counter(told["moves"]),
            told["num_copied"],
        )
    return served, told["commit"]


def kept_capacity(path: Path | None, measure: Callable[[], Capacity]) -> Capacity:
    """The capacity in the file `path`, or that of `measure`, which is written there."""
    if path is None or not path.exists():
        capacity = measure()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(capacity)))
        return capacity
    return Capacity(**json.loads(path.read_text()))


def file_of(runs: Path | None, what: object, ending: str) -> Path | None:
    """Where `what` is kept in the folder `runs`; None: nothing is kept. `what` is a dataclass."""
    if runs is None:
        return None
    words = code() + json.dumps(asdict(what), sort_keys=True)  # type: ignore[call-overload]
    return runs / f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.{ending}"


@cache
def code() -> str:
    """Returns a hash of the files in CODE."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _write(path: Path, commit: str, served: Served) -> None:
    told = {
        "commit": commit,
        "num_evictions": served.num_evictions,
        "moves": served.moves,
        "num_copied": served.num_copied,
    }
    partial = path.with_suffix(".part.npz")
    np.savez_compressed(
        partial,
        told=json.dumps(told),
        ttft_s=served.ttft_s,
        tpot_s=served.tpot_s,
        latency_s=served.latency_s,
        is_high=served.is_high,
    )
    partial.rename(path)
