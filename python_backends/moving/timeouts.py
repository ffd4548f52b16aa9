"""How long a move waits, in seconds of a monotonic clock. Nothing else of a move depends on time.

| waits | for | at most | then |
|---|---|---|---|
| source, while it copies | the next `Ack` | SILENT_S | it says `MoveEnded` |
| destination | the next blocks | SILENT_S | it frees what it reserved, and says `MoveEnded` |
| coordinator, after `Suspended` | `Adopted` | 2 steps; what copying took; LEAST_ADOPT_S | it says `Resume` |
| coordinator | the end of the move | WHOLE_MOVE_S | it says `AbortMove` or `Resume` |
| coordinator, after a failure | the same two instances | BACK_OFF_S | it may try them again |
| balancer, after a failure | a move of the same request | OTHERS_FIRST_S | others go before it no longer |

Of the three times after `Suspended` the longest counts. Why they fit together:

* While a request is suspended its client waits, so the time after `Suspended` is short. The source has no
  time of its own then: the coordinator alone decides which of the two has the request. A later `Adopted` is
  void.
* While blocks are copied the request decodes on, so waiting costs memory only. SILENT_S is longer than any
  step, because instances take messages between two steps. It is the same at both ends: the one that gives up
  first says so, and the coordinator tells the other.
* WHOLE_MOVE_S is ten times SILENT_S: what an instance says of a move comes first, because it has the better
  reason. The coordinator ends a move whose messages were lost, or that goes on and does not come to its end.
* An instance that says nothing at all is given up after `streams.dead_after_s`, and its moves end with it.
* BACK_OFF_S is five heartbeats of an instance: then the router knows what has changed there.
"""

SILENT_S = 30.0
LEAST_ADOPT_S = 1.0  # a busy machine may be late, and what has been copied is lost then
WHOLE_MOVE_S = 300.0
BACK_OFF_S = 1.0
OTHERS_FIRST_S = 5.0
