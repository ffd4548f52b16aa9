"""Both ends of the wires between scheduler model, instance, detokenizer and learner: ZeroMQ sockets in the
run directory.

    detokenizer ── PUSH ─► PULL ── scheduler model ── ROUTER ◄─► DEALER ── instance
                                                   └─ PUSH ─► PULL ── learner
    instance ── DEALER ◄─► ROUTER ── another instance, while a request moves

The scheduler model binds, the others connect, in any order and as often as they are restarted; only the
learner, and instances for each other, bind their own.
"""

from python_backends.wires.feedback import FeedbackEnd
from python_backends.wires.records import LearnerEnd, RecordsEnd
from python_backends.wires.sessions import (
    InstanceEnd,
    InstanceLoad,
    InstanceLost,
    InstanceMove,
    InstanceReady,
    NewSession,
    SchedulerEnd,
)

__all__ = [
    "FeedbackEnd",
    "InstanceEnd",
    "InstanceLoad",
    "InstanceLost",
    "InstanceMove",
    "InstanceReady",
    "LearnerEnd",
    "NewSession",
    "RecordsEnd",
    "SchedulerEnd",
]
