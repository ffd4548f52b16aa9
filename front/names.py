"""Refusals by the names of the client's own fields, where an interface has others than a chat."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from front.answers import Answers
from front.errors import ProblemError

Names = Mapping[str, str]  # an interface's, by those of chats


def renamed(problem: ProblemError, names: Names) -> ProblemError:
    """Returns `problem`, or one that says the same by the interface's name of the field. Which kind a guide
    has is left out: the interface chose it.
    """
    error: dict[str, Any] = problem.body["error"]
    param, said = error["param"] or "", error["message"]
    field = re.split(r"\W", param or said, maxsplit=1)[0]
    if field not in names:
        return problem
    if said.startswith(field):
        said = names[field] + re.sub(r"^ \(\w+\)", "", said.removeprefix(field))
    return ProblemError(problem.status, said, problem.code, names[field] + param[len(field) :], error["type"])


@contextlib.contextmanager
def naming(names: Names) -> Iterator[None]:
    """Problems that are raised inside name the interface's fields."""
    try:
        yield
    except ProblemError as problem:
        raise renamed(problem, names) from None


async def by_names(came: Answers, names: Names) -> Answers:
    """The same answers. Raises ProblemError, by the interface's names."""
    with naming(names):
        async with contextlib.aclosing(came) as pieces:
            async for each in pieces:
                yield each
