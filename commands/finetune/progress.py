"""What people see of a job that is trained, here or by a server: a progress bar, and a plot of the loss."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from python_backends.finetuning.jobs import ENDED, Job
from python_backends.finetuning.trainer import Progress

LOOK_EVERY_S = 0.5


class Bar:
    """Steps done, loss, tokens a second and the time left."""

    def __init__(self, job: Job) -> None:
        self._bar = tqdm(total=job.options["steps"], unit="step", disable=None)
        self._tokens = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def wait(self) -> None:
        """The time so far is none of training."""
        self._bar.unpause()

    def say(self, message: str) -> None:
        """In place of the loss, until the next step."""
        self._bar.set_postfix_str(message)

    def show(self, progress: Progress) -> None:
        if self._tokens == 0:  # a job that goes on
            self._bar.initial = self._bar.n = progress.step - 1
        self._tokens += progress.tokens
        elapsed_s = max(1e-9, float(self._bar.format_dict["elapsed"]))
        self._bar.set_postfix_str(
            f"loss {progress.loss:.3f}, {self._tokens / elapsed_s:.0f} tokens/s", refresh=False
        )
        self._bar.update(progress.step - self._bar.n)


def watch(job: Job) -> Job:
    """Shows a job that a server trains until it has ended; returns it as it is then."""
    shown = 0
    with Bar(job) as bar:
        bar.say("waits for a server that trains")
        while True:
            now = Job(job.directory)
            if now.status == "queued":
                bar.wait()
            for line in job.losses:
                if line["step"] > shown:  # after a crash, the last ones are computed again
                    shown = line["step"]
                    bar.show(Progress(shown, job.options["steps"], line["loss"], line["tokens"]))
            if now.status in ENDED:
                return now
            time.sleep(LOOK_EVERY_S)


def plot(job: Job) -> None:
    """The loss by step, in `loss.svg` of the job's directory; says so where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture of the loss: `pip install matplotlib` brings what draws it", file=sys.stderr)
        return
    lines = job.losses
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines])
    axes.set(xlabel="step", ylabel="loss (nats a token)", title=f"{job.options['suffix']}, {job.id}")
    figure.savefig(job.directory / "loss.svg", bbox_inches="tight")
