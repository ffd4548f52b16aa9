"""Keeps the runs of `cluster.py` in a folder, so that a long table can be made in pieces.

A run is deterministic: it depends on the code and on the case, the policy and the seed, which name its file.
Each file says of which commit its code was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.cluster_runs import Served


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
