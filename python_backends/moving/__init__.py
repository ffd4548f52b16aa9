"""How a running request moves from one instance to another with its KV blocks, told in one room.

    coordinator  in the scheduler model: asks for a move, and decides which instance has the request (`move`)
    moves        in each instance: its moves, of which it is the `source` or the `destination`
    copier       in each instance: the thread that reads, sends and writes blocks (`copies`, `wire`)
    timeouts     how long each of them waits for the others, and why these times fit together

What they say to each other is in `nouns/moves.py`, because the wires between scheduler model and instance
carry it. What the slot scheduler does for a move is in `scheduling/handover.py`. Which request moves is
decided in `cluster`; the instance's loop calls `moves`.
"""
