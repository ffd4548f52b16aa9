"""The main function of a process of `coserving`: it does what it is told over a pipe."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.coserving.counts import peak_rss_gib
from benchmarks.coserving.server import Server
from benchmarks.coserving.specs import Model, Spec
from benchmarks.coserving.trainers import Ours, Peft

KINDS: dict[str, Any] = {"serve": Server, "train": Ours, "peft": Peft}
END, TRAIN, STOP = "end", "train", "stop"


def main(pipe: Connection, model: Model, spec: Spec) -> None:
    """Calls come as (name, arguments), and each gets one answer; TRAIN ends when the next message comes."""
    if spec.processors is not None:
        os.sched_setaffinity(0, spec.processors)
    subject = KINDS[spec.kind](model, spec)
    pipe.send(getattr(subject, "chosen", None))
    while (call := pipe.recv())[0] != END:
        name, arguments = call
        if name == TRAIN:
            marks = subject.train(pipe.poll)
            pipe.recv()
            pipe.send((marks, peak_rss_gib()))
        else:
            pipe.send(getattr(subject, name)(*arguments))
