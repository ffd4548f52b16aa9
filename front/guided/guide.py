"""A guide for the ensemble, and its refusals by the name of the client's own field."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any

from client.parameters import Parameters
from front.answers import Answers
from front.errors import ProblemError

KIND, GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
NAMED = re.compile(rf"{KIND}|{GUIDE}(?: \(\w+\))?")

Format = dict[str, Any]  # of a structural tag


@dataclass(frozen=True, slots=True)
class Guide:
    """`field`: of the client's request, which asks for it."""

    kind: str
    guide: str
    field: str

    @property
    def parameters(self) -> Parameters:
        return {"guided_decoding_guide_type": self.kind, "guided_decoding_guide": self.guide}


def tagged(form: Format, field: str) -> Guide:
    """A guide of several parts."""
    document = {"type": "structural_tag", "format": form}
    return Guide("structural_tag", json.dumps(document, ensure_ascii=False), field)


async def named(came: Answers, guide: Guide | None) -> Answers:
    """The same answers. Raises ProblemError, of a guide by the name of the client's field."""
    try:
        async with contextlib.aclosing(came) as pieces:
            async for each in pieces:
                yield each
    except ProblemError as problem:
        raise problem if guide is None else _renamed(problem, guide.field) from None


def _renamed(problem: ProblemError, field: str) -> ProblemError:
    error: dict[str, Any] = problem.body["error"]
    if error["param"] not in (KIND, GUIDE) and not NAMED.match(error["message"]):
        return problem
    said = NAMED.sub(field, error["message"], count=1)
    return ProblemError(problem.status, said, problem.code, field, error["type"])
