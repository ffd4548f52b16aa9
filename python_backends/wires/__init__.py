"""Both ends of the wires between scheduler model, instance, detokenizer and learner: ZeroMQ sockets in the
run directory.

    detokenizer ── PUSH ─► PULL ── scheduler model ── ROUTER ◄─► DEALER ── instance
                                                   └─ PUSH ─► PULL ── learner

The scheduler model binds, the others connect, in any order and as often as they are restarted; only the
learner binds its own.
"""

from python_backends.wires.feedback import FeedbackEnd
from python_backends.wires.records import LearnerEnd, RecordsEnd
from python_backends.wires.sessions import (
    InstanceEnd,
    InstanceLoad,
    InstanceLost,
    InstanceReady,
    NewSession,
    SchedulerEnd,
)

__all__ = [
    "FeedbackEnd",
    "InstanceEnd",
    "InstanceLoad",
    "InstanceLost",
    "InstanceReady",
    "LearnerEnd",
    "NewSession",
    "RecordsEnd",
    "SchedulerEnd",
]
