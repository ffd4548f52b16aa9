"""Both ends of the wires between scheduler model, instance, detokenizer and learner: ZeroMQ sockets in the
run directory; the control socket (`control`); the names of files there (`run_directory`).

    detokenizer ── PUSH ─► PULL ── scheduler model ── ROUTER ◄─► DEALER ── instance
                                                   └─ PUSH ─► PULL ── learner

The scheduler model binds, the others connect, in any order and as often as they are restarted; only the
learner binds its own. The wire between two instances is in `moving`.
"""
