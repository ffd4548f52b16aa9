"""What processes and rooms say to each other: requests, plans, messages. Immutable values.

All rooms may read them; they import none.
"""
