"""Both ends of the wires between scheduler model, instance, detokenizer and learner: ZeroMQ sockets in the
run directory.

    detokenizer ── PUSH ─► PULL ── scheduler model ── ROUTER ◄─► DEALER ── instance
                                                   └─ PUSH ─► PULL ── learner
    instance ── DEALER ◄─► ROUTER ── another instance, while a request moves

The scheduler model binds, the others connect, in any order and as often as they are restarted; only the
learner, and instances for each other, bind their own.
"""
