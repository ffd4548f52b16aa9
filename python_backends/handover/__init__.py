"""How a running request moves from one instance to another with its KV blocks: what each of the two does.

Decides nothing about which request moves, and copies nothing itself. Called by the instance's loop.
"""
