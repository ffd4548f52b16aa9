r"""Measures how long the device waits between two steps, with the measures against the token gap added one
after the other.

    python -m benchmarks.token_gap --engine torch --slots 1,16,64,256 \
        --json benchmarks/results/token_gap.json --plot token_gap.png

inline: one process; the loop tokenizes prompts and detokenizes answers, and sends all slots to the engine
again at every step (`ResendingScheduler`). processes: another process handles texts. slots: static slots, of
which only changes are sent. async: the next step is launched before the tokens of the running one are read.
The loop is the instance's own with another scheduler, steps ahead or link; requests wait all the
time. `replay` is the loop's tokens per second / those of the same plans run again with no scheduler. With
`--threads 1` on two processors the loop has one of its own, as it has with a GPU; if the engine uses all of
them, `async` can only move the loop's work, not hide it. Host time by itself: `host_time`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.results_file import table, write_result
from benchmarks.token_gap.loop import MODES, Recorded, prepare, run

TIMELINE_STEPS = 5
TIMELINE_SLOTS = 16


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    slots: int
    gap_ms_p50: float
    gap_ms_p99: float
    busy_share: float
    host_us_per_step: float  # of the loop's thread, without the engine's calls
    tok_s: float
    replay: float  # tok_s over that of the same plans with no scheduler


def row_of(mode: str, slots: int, recorded: Recorded) -> Row:
    gaps, busy = recorded.times()
    return Row(
        mode=mode,
        slots=slots,
        gap_ms_p50=round(float(np.percentile(gaps, 50)) * 1e3, 4),
        gap_ms_p99=round(float(np.percentile(gaps, 99)) * 1e3, 4),
        busy_share=round(float(busy.sum() / (busy.sum() + gaps.sum())), 4),
        host_us_per_step=round(recorded.host_s / len(recorded.outputs) * 1e6, 1),
        tok_s=round(recorded.tok_s, 1),
        replay=round(recorded.tok_s / recorded.replayed_tok_s, 3),
    )


def measure(engine: str, threads: int, slots: list[int], num_steps: int) -> Iterator[tuple[Row, Recorded]]:
    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        asked = [(count, mode) for count in slots for mode in MODES]
        for count, mode in tqdm(asked, desc="loops"):
            recorded = run(Path(directory), engine, threads, mode, count, num_steps)
            row = row_of(mode, count, recorded)
            tqdm.write(
                f"{count:>5} slots, {mode}: gap {row.gap_ms_p50} ms, busy {row.busy_share:.1%}, {row.tok_s}"
                " tokens/s"
            )
            yield row, recorded


def draw(path: Path, rows: list[Row]) -> None:
    """Draws gap and busy share by mode, a line for each number of slots."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for count in sorted({row.slots for row in rows}):
        mine = [row for row in rows if row.slots == count]
        axes[0].plot(
            [row.mode for row in mine], [row.gap_ms_p50 for row in mine], "o-", label=f"{count} slots"
        )
        axes[1].plot([row.mode for row in mine], [row.busy_share * 100 for row in mine], "o-")
    axes[0].set_ylabel("token gap, ms (median)")
    axes[1].set_ylabel("device busy, %")
    axes[0].legend()
    figure.savefig(path, dpi=120)


def draw_timeline(path: Path, before: Recorded, after: Recorded) -> None:
    """Draws five steps of `before` (top) and of `after` (bottom): the device's forward passes, and the loop's
    work at the same time.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, figsize=(10, 4), sharex=True, layout="constrained")
    for axis, title, recorded in ((axes[0], MODES[0], before), (axes[1], MODES[-1], after)):
        device, host = recorded.timeline(TIMELINE_STEPS)
        axis.broken_barh(device, (0, 0.8), facecolors="tab:blue")
        axis.broken_barh(host, (1, 0.8), facecolors="tab:orange")
        axis.set_yticks([0.4, 1.4], ["device", "loop"])
        axis.set_title(title, loc="left")
    axes[1].set_xlabel("ms")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = command_line(
        __doc__,
        quick="a few steps: does it run at all?",
        plot="a picture of the table; one of five steps is written next to it, as NAME_timeline.png",
    )
    parser.add_argument("--slots", default="1,16,64,256")
    parser.add_argument("--engine", default="torch", choices=("torch", "toy"))
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="of the engine; 0: all processors, which the loop needs too",
    )
    parser.add_argument("--steps", type=int, default=200, help="approximate number of steps of each loop")
    asked = parser.parse_args()
    num_steps = 20 if asked.quick else asked.steps
    slots = [int(count) for count in asked.slots.split(",")]
    found = list(measure(asked.engine, asked.threads, slots, num_steps))
    rows = [row for row, _ in found]
    if asked.json:
        write_result(
            asked.json,
            {"engine": asked.engine, "threads": asked.threads, "rows": [asdict(row) for row in rows]},
        )
    if asked.plot:
        draw(asked.plot, rows)
        count = TIMELINE_SLOTS if TIMELINE_SLOTS in slots else slots[0]
        shown = {row.mode: recorded for row, recorded in found if row.slots == count}
        draw_timeline(asked.plot.with_stem(asked.plot.stem + "_timeline"), shown[MODES[0]], shown[MODES[-1]])
    print(table([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
