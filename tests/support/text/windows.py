"""An answer sent in windows, cut and acknowledged anyhow, as the scheduler model and a client see it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from python_backends.nouns.request import Finish, TokenWindow
from python_backends.text.detokenize.detokenizer import Detokenizer, Piece, context_tokens

steps = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), max_size=80)


@dataclass
class Stream:
    """The scheduler model and a client: sends windows with `steps` (new tokens, tokens
    newly acknowledged, earlier start), joins the texts.
    """

    detokenizer: Detokenizer
    tokens: list[int]
    words: tuple[str, ...] = ()
    min_tokens: int = 0
    continues_text: bool = False
    num_sent: int = 0
    num_acked: int = 0
    text: str = ""
    # (tokens that the window reached, stopped_at), not yet acknowledged
    stops: list[tuple[int, int]] = field(default_factory=list)

    def send(self, reached: int, earlier: int, finish: Finish = Finish.RUNNING) -> Piece:
        sent = min(self.num_sent, reached)
        start = max(0, min(self.num_acked, sent) - context_tokens(self.words) - earlier)
        window = TokenWindow(
            request_id=1,
            tokens=np.array(self.tokens[start:reached], np.int32),
            start=start,
            num_sent=sent,
            min_tokens=self.min_tokens,
            stop_words=self.words,
            finish=finish,
            continues_text=self.continues_text,
        )
        piece = self.detokenizer.piece(window)
        self.text += piece.text
        self.num_sent = reached
        self.stops.append((reached, piece.stopped_at))
        return piece

    def acknowledge(self, count: int) -> int:
        """Takes the feedback of the `count` oldest windows; says where they stopped."""
        taken, self.stops = self.stops[:count], self.stops[count:]
        self.num_acked = max([self.num_acked, *(reached for reached, _ in taken)])
        return next((stopped for _, stopped in taken if stopped), 0)

    def run(self, steps: list[tuple[int, int, int]]) -> int:
        """Sends everything; returns where the answer stopped (0: it didn't)."""
        for new, acknowledged, earlier in steps:
            if self.num_sent + new > len(self.tokens):
                break
            self.send(self.num_sent + new, earlier)
            if stopped := self.acknowledge(acknowledged):
                self.send(stopped, earlier, Finish.STOP)
                return stopped
        return self.send(len(self.tokens), 0, Finish.LENGTH).stopped_at
