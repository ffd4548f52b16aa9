"""What processes and rooms say to each other: requests, plans, messages. Immutable values.

Any room may read them; they import no room.
"""
