"""Shortest predicted answer first (arXiv 2408.15792). Tested in tests/pure/test_predicted_lengths.py."""

from __future__ import annotations

from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.lengths.predicted_order import Waits
from python_backends.scheduling.policies.policy import Policy, fitting, longest_rest


def shortest_first(waits: Waits) -> Array:
    """Shortest predicted answer first (arXiv 2408.15792)."""
    return waits.service_s


SJF = Policy(fitting, shortest_first, longest_rest, looks_ahead=True, max_passed_over_steps=200)
