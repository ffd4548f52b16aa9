"""The picture of the architecture shows what the code and docs/design.md have."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

from build.architecture import PICTURE, PROCESSES, WIRES, drawing
from python_backends.nouns.messages import BetweenInstances, FromInstance, ToInstance

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_backends"
DESIGN = (ROOT / "docs/design.md").read_text()
SOURCE = "\n".join(
    path.read_text()
    for folder in (PACKAGE, ROOT / "commands", ROOT / "front")
    for path in sorted(folder.rglob("*.py"))
)


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of design.md, without its head."""
    section = DESIGN[DESIGN.index(f"## {heading}") :]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[0].splitlines()[2:]]


def test_the_picture_is_what_the_script_draws() -> None:
    """`python build/architecture.py` draws it."""
    assert PICTURE.read_text() == drawing()


def test_every_process_is_drawn() -> None:
    named = {name.replace("{number}", "N") for name in re.findall(r'setproctitle\(f?"([^"]+)"\)', SOURCE)}
    stubs = {path.parent.parent.name for path in ROOT.glob("model_repository/*/1/model.py")}
    drawn = {process.title for name, process in PROCESSES.items() if name != "other"}
    assert drawn == {*named, *stubs, "tritonserver"}


def test_every_thread_that_has_a_name_is_drawn() -> None:
    """And `loop`, the main thread of an instance."""
    calls = (r"Thread\({}name=", r"start_thread\({}")
    inside = r'[^()"]*(?:\([^()"]*\)[^()"]*)*?'
    named = {name for call in calls for name in re.findall(call.format(inside) + '"([^"]+)"', SOURCE)}
    assert {"streams", "pulse"} <= named
    drawn = {thread for process in PROCESSES.values() for thread in process.threads}
    assert drawn == {*named, "loop"}


def told_by_design_md() -> dict[tuple[str, str], set[str]]:
    """The messages by their source and target."""
    ways = [(row[0].split(" → "), row[1]) for row in rows("The way of a request")]
    return {(source, target): set(re.findall(r"`(\w+)`", messages)) for (source, target), messages in ways}


def test_design_md_has_every_message_of_a_wire() -> None:
    told = told_by_design_md()
    kinds = {
        ("scheduler", "instance"): ToInstance,
        ("instance", "scheduler"): FromInstance,
        ("instance", "instance"): BetweenInstances,
    }
    for way, kind in kinds.items():
        assert {each.__name__ for each in get_args(kind)} == told[way]


def test_what_travels_is_what_design_md_says() -> None:
    told = told_by_design_md()
    drawn = {(wire.source, wire.target): set(wire.messages) for wire in WIRES}
    assert drawn.keys() == told.keys()
    for way, messages in drawn.items():
        assert messages <= told[way], way


def test_the_wires_have_their_ends_and_their_messages_in_the_code() -> None:
    assert [wire for wire in WIRES if (wire.kind == "zmq") != bool(wire.ends)] == []
    rooms = [*(PACKAGE / "wires").glob("*.py"), *(PACKAGE / "moving").glob("*.py")]
    wires = "\n".join(path.read_text() for path in rooms)
    ends = [end for wire in WIRES for end in wire.ends]
    messages = [message for wire in WIRES for message in wire.messages]
    assert [end for end in ends if not re.search(rf"^class {end}\b", wires, re.MULTILINE)] == []
    assert [name for name in messages if not re.search(rf"^class {name}\b", SOURCE, re.MULTILINE)] == []


def test_what_a_process_writes_is_a_state_of_design_md() -> None:
    states = {row[0] for row in rows("Who may write what")}
    for process in PROCESSES.values():
        for state in process.writes:
            assert any(said.startswith(state) for said in states), state


def test_nothing_leaves_its_box() -> None:
    """By the mean width of a letter of DejaVu Sans, the widest of the fonts: 6.1 of 12 px, 5.8 of 11 px."""
    for process in PROCESSES.values():
        if not process.is_wide:
            widths = [6.1 * len(line) for line in process.lines]
            widths += [5.8 * len(f"✎ {state}") for state in process.writes]
            assert max(widths) + 12 < process.box[2], process.title


def test_arrows_are_upright_or_level() -> None:
    for wire in WIRES:
        for (left, top), (right, bottom) in pairwise(wire.path):
            assert left == right or top == bottom, wire
