"""What people call a checkpoint: its name on the hub of Hugging Face, or that of its directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PART = r"[A-Za-z0-9][\w.-]*"
NAME = re.compile(rf"({PART}/{PART})(?:/({PART}\.gguf))?(?:@(\S+))?", re.ASCII)
MAIN = "main"  # the revision that is meant where none is named
GGUF_END = re.compile(r"([.-](B?F16|F32|I?Q\d\w*))?\.gguf", re.ASCII | re.IGNORECASE)  # its type, too
SNAPSHOTS, MODELS = "snapshots", "models--"  # of the hub's cache: models--ORG--NAME/snapshots/COMMIT/


@dataclass(frozen=True, slots=True)
class HubName:
    """`ORG/NAME`; with `/FILE.gguf` one file of several, with `@REVISION` a branch, a tag or a commit."""

    model: str
    gguf: str = ""
    revision: str = MAIN


def read_name(text: str) -> HubName | None:
    """None if `text` has not the form of a name."""
    found = NAME.fullmatch(text)
    return HubName(found[1], found[2] or "", found[3] or MAIN) if found else None


def name_of(model: Path) -> str:
    """The last part of its path, without links to directories; in the hub's cache, where that is a commit,
    the model's name there. Of a GGUF file without its end and its type: "Qwen3-1.7B" of
    Qwen3-1.7B-Q4_K_M.gguf.
    """
    if model.is_file():  # in the hub's cache a link to one without its name
        end = GGUF_END.search(model.name)
        return model.name[: end.start()] if end and end.start() else model.name
    place = model.resolve()
    if place.parent.name != SNAPSHOTS:
        return place.name
    return place.parents[1].name.removeprefix(MODELS).rpartition("--")[2]
