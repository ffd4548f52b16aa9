"""Five hundred random requests against a real server; `make fuzz` sends ten thousand."""

from __future__ import annotations

import pytest

from tests.server import memory
from tests.server.fuzzing import NUM_CONTROLS, Fuzz
from tests.server.serving import Gapless


@pytest.mark.timeout(600)
def test_nothing_that_clients_send_harms_the_server_or_a_neighbour(gapless: Gapless) -> None:
    report = Fuzz(gapless, seed=1, num_requests=500).run()
    print(memory.table(report.marks))
    print(report.outcomes)
    assert not report.problems, "\n".join(report.problems[:5])
    assert sum(report.outcomes.values()) == 500
    assert report.num_control_answers >= NUM_CONTROLS
    assert report.outcomes["stop"] + report.outcomes["length"] > 100, "many were right"
    assert report.outcomes["refused"] > 100, "and many wrong"
