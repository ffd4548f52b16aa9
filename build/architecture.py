"""Draws docs/pictures/architecture.svg: processes with their threads and what each writes, and what travels
between them. tests/pure/test_architecture.py compares the tables here with the code and with docs/design.md.

    python build/architecture.py
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs/pictures/architecture.svg"
WIDTH, HEIGHT = 1000, 642
FONT = "ui-sans-serif, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
BLUE, ORANGE = "#4a6fa8", "#b9622c"
INK, GREY, PAPER = "#1f2933", "#5f6b7a", "#ffffff"
THREAD, PER_LETTER = "#e8eef7", 6.1  # colour of a thread; mean width of a letter of 11 px


@dataclass(frozen=True, slots=True)
class Process:
    title: str  # as `ps` or Triton names it; N: a number
    box: tuple[int, int, int, int]  # x, y, width, height
    colour: str
    lines: tuple[str, ...]  # what it does
    threads: tuple[str, ...] = ()  # as they are named; the first thread of an instance is its loop
    writes: tuple[str, ...] = ()  # states of which it is the one writer, in the words of docs/design.md
    is_wide: bool = False  # one line of text right of the title, and what it writes right of the threads


@dataclass(frozen=True, slots=True)
class Wire:
    source: str
    target: str
    messages: tuple[str, ...]
    kind: str  # tensor | zmq | file
    path: tuple[tuple[int, int], ...]  # corners; the arrow is at the last one
    label: tuple[int, int]  # where its text begins
    ends: tuple[str, ...] = ()  # classes of `wires/` at its ends
    anchor: str = "middle"


PROCESSES = {
    "tritonserver": Process(
        "tritonserver", (120, 20, 860, 300), BLUE, ("HTTP, gRPC, /metrics; the ensemble",), is_wide=True
    ),
    "tokenizer": Process(
        "tokenizer",
        (140, 84, 190, 90),
        BLUE,
        ("text, messages → ids;", "every check of a request"),
        ("life",),
    ),
    "scheduler": Process(
        "scheduler",
        (405, 84, 304, 132),
        BLUE,
        ("owns the client streams;", "says which instance gets a request"),
        ("streams", "control", "predictor link", "new versions", "life"),
        ("client streams, tokens delivered, request epochs", "which instances should run"),
    ),
    "detokenizer": Process(
        "detokenizer",
        (792, 84, 175, 90),
        BLUE,
        ("ids → text; stop words;", "has the client left?"),
        ("idle beat", "life"),
    ),
    "length_predictor": Process(
        "length_predictor",
        (140, 226, 190, 76),
        BLUE,
        ("only with an encoder",),
        ("encoder", "life"),
    ),
    "front": Process(
        "gapless-front",
        (20, 380, 150, 88),
        "#7a4f8a",
        ("speaks as OpenAI's", "and Anthropic's", "servers; the page at /"),
    ),
    "learner": Process(
        "gapless-learner",
        (182, 380, 206, 88),
        "#64853a",
        ("request log; learns lengths;", "low priority"),
        (),
        ("request log, learned versions",),
    ),
    "instance": Process(
        "gapless-instance-N",
        (400, 380, 322, 148),
        ORANGE,
        ("take → plan → launch → collect → apply → publish", "slot scheduler; engine"),
        ("loop", "engine requests", "copier", "adapters", "finetuning-jobs"),
        ("sequences, slots, block table, waiting queue", "KV tensors, device slot state"),
    ),
    "other": Process(
        "gapless-instance-M",
        (800, 380, 180, 88),
        ORANGE,
        ("if there are several,", "requests move with", "their KV blocks"),
    ),
    "launcher": Process(
        "gapless-launcher",
        (20, 560, 960, 62),
        "#5c6068",
        ("starts all of them, watches their exits and their beats on the board, restarts what ends",),
        ("pulse", "server log", "slow call", "connections"),
        ("effective settings", "how often what was started again"),
        is_wide=True,
    ),
}
WIRES = (
    Wire("tokenizer", "scheduler", ("Request",), "tensor", ((330, 120), (405, 120)), (367, 112)),
    Wire("scheduler", "detokenizer", ("TokenWindow",), "tensor", ((709, 112), (792, 112)), (750, 104)),
    Wire(
        "detokenizer",
        "scheduler",
        ("Feedback",),
        "zmq",
        ((792, 150), (709, 150)),
        (750, 168),
        ("FeedbackEnd", "SchedulerEnd"),
    ),
    Wire(
        "scheduler",
        "length_predictor",
        ("Subject", "LengthAnswer"),
        "tensor",
        ((425, 216), (425, 264), (330, 264)),
        (336, 280),
        anchor="start",
    ),
    Wire(
        "scheduler",
        "learner",
        ("AnswerRecord",),
        "zmq",
        ((478, 216), (478, 345), (300, 345), (300, 380)),
        (390, 339),
        ("RecordsEnd", "LearnerEnd"),
    ),
    Wire(
        "scheduler",
        "instance",
        ("Submit", "Predicted", "Cancel", "Hello"),
        "zmq",
        ((550, 216), (550, 380)),
        (542, 366),
        ("SchedulerEnd", "InstanceEnd"),
        "end",
    ),
    Wire(
        "instance",
        "scheduler",
        ("Tokens", "Started", "Load", "Hello"),
        "zmq",
        ((620, 380), (620, 216)),
        (628, 366),
        ("InstanceEnd", "SchedulerEnd"),
        "start",
    ),
    Wire(
        "instance",
        "instance",
        ("Blocks", "Ack"),
        "zmq",
        ((722, 424), (800, 424)),
        (760, 416),
        ("BlocksWire",),
    ),
)
STYLES = {"tensor": "", "zmq": "6 4", "file": "2 4"}
LEGEND = (("tensor", "a call"), ("zmq", "a ZeroMQ wire"), ("file", "a file"))


def text(x: float, y: float, words: str, size: int = 12, fill: str = INK, **options: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in options.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>'


def drawn_threads(
    x: float, y: float, widest: float, names: tuple[str, ...]
) -> tuple[list[str], float, float]:
    """Pills from left to right, in as many rows as they need; and where they end."""
    out, left = [], x
    for name in names:
        width = PER_LETTER * len(name) + 12
        if left > x and left + width > x + widest:
            left, y = x, y + 20
        out.append(f'<rect x="{left:g}" y="{y:g}" width="{width:g}" height="16" rx="8" fill="{THREAD}"/>')
        out.append(text(left + width / 2, y + 12, name, 11, text_anchor="middle"))
        left += width + 6
    return out, left, y + 16


def drawn_process(process: Process) -> list[str]:
    x, y, width, height = process.box
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{PAPER}"'
        f' stroke="{process.colour}" stroke-width="1.6"/>',
        text(x + 12, y + 20, process.title, 14, process.colour, font_weight="600"),
        *(drawn_wide if process.is_wide else drawn_narrow)(process),
    ]


def drawn_wide(process: Process) -> list[str]:
    x, y, width, _ = process.box
    out = [text(x + 24 + 8.6 * len(process.title), y + 20, process.lines[0])]
    pills, left, _ = drawn_threads(x + 12, y + 34, width, process.threads)
    states = "\u2003\u2003".join(f"✎ {state}" for state in process.writes)
    return [*out, *pills, text(left + 12, y + 46, states, 11, GREY)]


def drawn_narrow(process: Process) -> list[str]:
    x, y, width, _ = process.box
    out, below = [], y + 38
    for line in process.lines:
        out.append(text(x + 12, below, line))
        below += 16
    if process.threads:
        pills, _, end = drawn_threads(x + 12, below - 10, width - 24, process.threads)
        out, below = out + pills, int(end) + 15
    for state in process.writes:
        out.append(text(x + 12, below, f"✎ {state}", 11, GREY))
        below += 15
    return out


def drawn_wire(wire: Wire) -> list[str]:
    x, y = wire.label
    corners = " ".join(f"{x},{y}" for x, y in wire.path)
    return [
        arrow(corners, wire.kind),
        text(x, y, ", ".join(wire.messages), 11, INK, text_anchor=wire.anchor),
    ]


def arrow(corners: str, kind: str = "tensor") -> str:
    dash = f' stroke-dasharray="{STYLES[kind]}"' if STYLES[kind] else ""
    return (
        f'<polyline points="{corners}" fill="none" stroke="{INK}" stroke-width="1.4"{dash}'
        ' marker-end="url(#arrow)"/>'
    )


def drawn_rest() -> list[str]:
    """The client, the files, and what the lines mean."""
    out = [
        text(60, 108, "client", 14, font_weight="600", text_anchor="middle"),
        arrow("86,104 140,104"),
        arrow("44,116 44,380"),
        text(50, 350, "/v1", 11),
        arrow("106,380 106,150 140,150"),
        arrow("872,84 872,60 60,60 60,90"),
        text(560, 54, "text, piece by piece", 11, text_anchor="middle"),
        arrow("196,380 196,302", "file"),
        text(204, 338, "forest-….npz", 11),
    ]
    for number, (kind, meaning) in enumerate(LEGEND):
        y = 494 + 18 * number
        out += [arrow(f"20,{y} 60,{y}", kind), text(70, y + 4, meaning, 11, GREY)]
    out += drawn_threads(190, 486, 100, ("name",))[0]
    return [
        *out,
        text(246, 498, "a thread", 11, GREY),
        text(196, 516, "✎  what this process alone writes", 11, GREY),
    ]


def drawing() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' width="{WIDTH}" height="{HEIGHT}" font-family="{FONT}" role="img"'
        ' aria-label="Processes, threads and wires of Gapless">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
    ]
    for process in PROCESSES.values():
        parts += drawn_process(process)
    for wire in WIRES:
        parts += drawn_wire(wire)
    return "\n".join([*parts, *drawn_rest(), "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawing())
