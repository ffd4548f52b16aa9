"""Whether a server's processes keep memory for requests that are over: marks at rest, and a verdict on what
lies between them.

Two kinds of memory: what is a process's own (anonymous pages), and the blocks through which tritonserver and
a model exchange tensors. A mark is taken when no random request is under way: a long prompt is megabytes in
three places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from python_backends.launcher.stubs import STUBS

LONG_PROMPTS = "shared with the tokenizer"
# how much a warm server may yet take for good, because more long prompts come at once than before: some are a
# megabyte
NOISE_MIB = {
    # above the most seen, 8; its heap stays in use when idle, probably kept for the next requests
    "tritonserver": 12.0,
    LONG_PROMPTS: 24.0,  # blocks are never given back, and have holes
}
OTHER_NOISE_MIB = 6.0
BYTES_PER_REQUEST = 512.0  # of the random ones, valid or not
MIB = 2**20


@dataclass(frozen=True)
class Mark:
    num_requests: int  # that were over by then
    mib: dict[str, float]  # by process, and of the blocks that tritonserver shares with a model


@dataclass(frozen=True)
class Verdict:
    """How one kind of memory has grown since the server was warm."""

    name: str
    growth_mib: float
    late_growth_mib: float  # of it in the second half of the requests
    num_requests: int

    @property
    def limit_mib(self) -> float:
        return NOISE_MIB.get(self.name, OTHER_NOISE_MIB) + BYTES_PER_REQUEST * self.num_requests / MIB

    @property
    def is_flat(self) -> bool:
        return self.growth_mib <= self.limit_mib

    def __str__(self) -> str:
        each = self.growth_mib * MIB / self.num_requests
        late = self.late_growth_mib * MIB / (self.num_requests / 2)
        return (
            f"{self.name} {'is flat' if self.is_flat else 'GREW'}: {self.growth_mib:+.1f} MiB in"
            f" {self.num_requests} requests, at most {self.limit_mib:.1f} are allowed; {each:.0f} bytes a"
            f" request, {late:.0f} in the second half"
        )


def mark(num_requests: int, pids: dict[str, int]) -> Mark:
    """Of processes by name."""
    own = {name: _resident_mib(pid, "RssAnon") for name, pid in pids.items()}
    models = [name for name in pids if name in STUBS]
    return Mark(
        num_requests,
        {**own, **{f"shared with the {name}": _resident_mib(pids[name], "RssShmem") for name in models}},
    )


def verdicts(marks: list[Mark]) -> list[Verdict]:
    """`marks`: before, warmed up, half-way, after. None if a process has
    died meanwhile: its memory says nothing.
    """
    _, warm, half, after = marks
    if not all(mib for name, mib in after.mib.items() if not name.startswith("shared")):
        return []
    count = after.num_requests - warm.num_requests
    return [
        Verdict(name, mib - warm.mib[name], mib - half.mib[name], count) for name, mib in after.mib.items()
    ]


def table(marks: list[Mark]) -> str:
    lines = [
        "| memory at rest, MiB, after requests | "
        + " | ".join(str(each.num_requests) for each in marks)
        + " |"
    ]
    lines.append("|---" * (1 + len(marks)) + "|")
    for name in marks[0].mib:
        lines.append("| " + " | ".join([name, *(f"{each.mib[name]:.1f}" for each in marks)]) + " |")
    return "\n".join(lines)


def _resident_mib(pid: int, kind: str) -> float:
    """0 if the process is gone: that is told elsewhere."""
    try:
        found = re.search(rf"^{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except FileNotFoundError:
        found = None
    return int(found[1]) / 1024 if found else 0.0
