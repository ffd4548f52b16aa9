"""How the stand-in behaves: read from the environment, so that a server's
instance process has it too; tests may set the fields.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass
class Manners:
    step_ms: float = float(os.environ.get("STANDIN_STEP_MS", "0"))
    # a prompt that ends with it: RequestError, late
    refused_token: int = int(os.environ.get("STANDIN_REFUSED_TOKEN", "-1"))
    # a prompt that ends with it: the engine dies
    fatal_token: int = int(os.environ.get("STANDIN_FATAL_TOKEN", "-1"))
    # a prompt that ends with it: no word is heard of it again
    silent_token: int = int(os.environ.get("STANDIN_SILENT_TOKEN", "-1"))
    # … every request fails from then on, with a RequestError
    breaking_token: int = int(os.environ.get("STANDIN_BREAKING_TOKEN", "-1"))
    hears_aborts: bool = True
    tells_stats: bool = True
    tokens_a_response: int = 1
    scores_chosen: bool = True  # False: of the most probable ids alone, without the one that was drawn
    keeps_stop_ids: bool = True  # False: end ids stay out of token_ids, as in some versions


manners = Manners()
