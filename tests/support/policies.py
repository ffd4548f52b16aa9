"""A policy for tests that can't wait for ten seconds."""

from __future__ import annotations

from dataclasses import replace

from python_backends.scheduling.policies.ours import OURS

IMPATIENT = replace(OURS, max_passed_over_s=1.5)
