"""Thirty turns of a coding agent's session: what a turn adds to the conversation is computed, the rest comes
from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server.serving import Gapless
from tests.support.server.toy_model import write_toy_model
from tests.support.sessions import AGENTS, NUM_TURNS, Agent, first_body
from tests.support.toy_engine import toy_settings

SHARE = 0.95  # of a later turn's prompt
MOST_COMPUTED = 200  # tokens of a later turn: what it adds, and a block that was not full


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    model = write_toy_model(tmp_path_factory.mktemp("models") / "model")
    with Gapless(**{**toy_settings(model), "model.max_model_tokens": 16384}) as made:
        yield made


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_the_prompt_of_each_later_turn_comes_from_the_cache(served: Gapless, agent: Agent) -> None:
    body, found = first_body(agent.name), []
    for number in range(NUM_TURNS):
        answer = served.ask_front(agent.path, body)
        found.append(agent.counts(answer["usage"]))
        agent.goes_on(body, answer, number)
    (first, cached), *later = found
    assert first > 4000
    assert cached < first / 2
    assert all(prompt > before for (prompt, _), (before, _) in zip(later, found, strict=False))
    assert min(cached / prompt for prompt, cached in later) >= SHARE
    assert max(prompt - cached for prompt, cached in later) <= MOST_COMPUTED
