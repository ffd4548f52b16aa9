"""Our policy: requests that can still get their first token in time go first,
then by response ratio. Passing over is limited.
"""

from __future__ import annotations

import numpy as np

from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.lengths.predicted_order import Waits
from python_backends.scheduling.policies.policy import Policy, fitting, longest_rest

BEFORE_ALL = -1e9  # a rank


def slack_then_ratio(waits: Waits) -> Array:
    """First those that have been passed over for too long, by waiting time; then those that can still get
    their first token in time, shortest first; then the others by response ratio.
    """
    in_time = waits.slack_s >= 0
    ratio = 1.0 + waits.waited_s / waits.service_s
    rank = np.where(in_time & np.isfinite(waits.slack_s), -1.0 / waits.service_s, 1.0 / ratio)
    return np.where(waits.passed_s >= waits.patience_s, BEFORE_ALL - waits.waited_s, rank)


OURS = Policy(fitting, slack_then_ratio, longest_rest, looks_ahead=True)
