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


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    slots: int
    gap_ms_p50: float
    gap_ms_p99: float
    busy_share: float
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
        tok_s=round(recorded.tok_s, 1),
        replay=round(recorded.tok_s / recorded.replayed_tok_s, 3),
    )


def measure(engine: str, threads: int, slots: list[int], num_steps: int) -> Iterator[Row]:
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
            yield row


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


def main() -> None:
    parser = command_line(__doc__, quick="a few steps: does it run at all?", plot="a picture of the table")
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
    rows = list(measure(asked.engine, asked.threads, slots, num_steps))
    if asked.json:
        write_result(
            asked.json,
            {"engine": asked.engine, "threads": asked.threads, "rows": [asdict(row) for row in rows]},
        )
    if asked.plot:
        draw(asked.plot, rows)
    print(table([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
