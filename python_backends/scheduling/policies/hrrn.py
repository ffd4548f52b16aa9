"""Highest response ratio next, Magnus's rule for batches (arXiv 2406.04785), for single requests."""

from __future__ import annotations

from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.lengths.predicted_order import Waits
from python_backends.scheduling.policies.policy import Policy, fitting, longest_rest


def response_ratio(waits: Waits) -> Array:
    """Highest response ratio next: time waited / predicted time (Magnus)."""
    return -waits.waited_s / waits.service_s


HRRN = Policy(fitting, response_ratio, longest_rest, looks_ahead=True)
