"""What is counted and traced, and what processes say of themselves: metrics, spans, restarts, the board.

No failure here ends a stream.
"""
