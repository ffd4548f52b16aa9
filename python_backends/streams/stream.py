"""One client stream: what the engine has delivered, what has been sent, what the detokenizer has confirmed.

All times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_backends.nouns.request import Finish, LengthPrediction, Request, TokenWindow
from python_backends.streams.log_probs import UNKNOWN, PromptScores, StreamLogProbs, TokenLogProbs

NO_INSTANCE = -1


@dataclass(frozen=True, slots=True)
class PreviousLife:
    """The life of a request before its last move: the first `num_tokens` tokens of the answer are from it."""

    instance: int
    request_epoch: int
    num_tokens: int


class Stream:
    """An open request with its client. Each part has one owner, which alone changes it; a test checks that.

    The stream itself, by its verbs: tokens, what was sent and confirmed of them, how it ends. Submissions:
    which instance has it, and in which life. Quarantine: its crashes. The stream table: times, the
    prediction, the error. `Unconfirmed`: when its windows were sent. The router: the keys of its prompt.
    Counts of output tokens, smallest first: num_acked ≤ num_sent ≤ len(tokens).
    """

    __slots__ = (
        "chunked",
        "context_tokens",
        "crash_mark",
        "crashed_at",
        "crashed_ns",
        "crashes",
        "early",
        "error",
        "finish",
        "first_token_ns",
        "instance",
        "last_request_epoch",
        "last_sent_ns",
        "log_probs",
        "lost_slot",
        "num_acked",
        "num_cached",
        "num_prefilled",
        "num_sent",
        "prediction",
        "prefix_keys",
        "previous",
        "prompt_scores",
        "request",
        "request_epoch",
        "seated",
        "sender",
        "started_ns",
        "tokens",
        "unacked_ns",
    )

    def __init__(
        self,
        request: Request,
        sender: Any,
        context_tokens: int,
        now_ns: int,
        prefix_keys: list[bytes] | None = None,
    ) -> None:
        self.request = request
        self.prefix_keys = prefix_keys  # of its prompt's blocks, for the router; None: they are not made yet
        self.sender = sender
        self.context_tokens = context_tokens  # tokens before num_acked that decide the text after them
        self.tokens: list[int] = list(request.delivered)
        self.log_probs = (
            StreamLogProbs(request.sampling.num_top_log_probs, len(self.tokens))
            if request.sampling.log_probs
            else None
        )
        self.prompt_scores = PromptScores(request) if request.wants_prompt_log_probs else None
        # index -> token, finish and more that came before its turn
        self.early: dict[int, tuple[int, int, TokenLogProbs]] = {}
        self.instance = NO_INSTANCE  # that has it
        self.request_epoch = 0  # its life there
        self.last_request_epoch = 0  # given to a life of it: one more at every re-admission and every move
        self.previous: PreviousLife | None = None  # before its last move
        self.seated = False  # in a slot there
        self.lost_slot = False  # once: blocks that are found from then on may be its own
        self.num_prefilled = 0  # tokens of the answer that the slot begins with: computed again, or copied
        self.finish = Finish.RUNNING
        self.error = ""
        self.num_sent = len(self.tokens)  # its client has the text of what was delivered before
        self.num_acked = 0
        self.num_cached = 0  # tokens of the prompt that were found in kept KV blocks
        self.unacked_ns: deque[int] = deque()  # when each unconfirmed window was sent
        self.last_sent_ns = now_ns
        self.chunked = not request.stream  # a chunk has gone out, or none is wanted
        self.started_ns = 0
        self.first_token_ns = 0
        self.prediction: LengthPrediction | None = None  # none has come yet
        self.crashes = 0  # instance deaths with this request in a slot
        self.crash_mark = 0  # tokens that it had at the last of them
        self.crashed_at = NO_INSTANCE  # the instance of that crash
        self.crashed_ns = 0  # when that was

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer so far."""
        return len(self.request.prompt) + len(self.tokens)

    @property
    def submitted(self) -> bool:
        """Whether an instance has it."""
        return self.instance != NO_INSTANCE

    @property
    def has_news(self) -> bool:
        return len(self.tokens) > self.num_sent

    @property
    def awaits_first_token(self) -> bool:
        return self.num_sent == 0

    @property
    def is_followed(self) -> bool:
        """Its tokens are sent as they come: a client reads them, or a stop
        word may end it. Other answers go out whole.
        """
        return self.request.stream or bool(self.request.stop_words)

    def accepts(self, request_epoch: int, index: int) -> bool:
        """Whether token number `index` of the answer may come from this life of the request: at every index
        from one life only.
        """
        previous = self.previous
        if previous is None or index >= previous.num_tokens:
            return request_epoch == self.request_epoch
        return request_epoch == previous.request_epoch

    def append(self, index: int, token: int, finish: int, scores: TokenLogProbs = UNKNOWN) -> int:
        """Takes token number `index` of the answer: a known one is dropped, an early one held. Returns how
        many came, in their turn. An answer that is dropped ends with its first one, and has none.
        """
        if index < len(self.tokens) or self.finish != Finish.RUNNING:
            return 0
        self.early[index] = (token, finish, scores)
        count = 0
        while len(self.tokens) in self.early:
            token, finish, scores = self.early.pop(len(self.tokens))
            self.tokens.append(token)
            if self.log_probs is not None:
                self.log_probs.append(scores)
            if finish:
                self.finish = Finish(finish)
            count += 1
        if count and self.request.drops_answer:
            self.end(Finish.LENGTH, 0)
        return count

    def forget_early(self) -> None:
        """Tokens that came before their turn come again, from another instance."""
        self.early.clear()

    def confirm(self, num_tokens: int, answered: bool) -> None:
        """The detokenizer has seen the first `num_tokens` tokens.
        `answered`: it has sent the client a chunk.
        """
        self.num_acked = max(self.num_acked, num_tokens)
        self.chunked = self.chunked or answered

    def drop_unsent(self) -> None:
        """A part of the text is lost: nothing may follow the gap."""
        self.num_sent = len(self.tokens)

    def end(self, finish: Finish, num_tokens: int | None = None) -> None:
        """Ends the stream from our side, after its first `num_tokens` tokens."""
        self.finish = finish
        if num_tokens is not None:
            del self.tokens[num_tokens:]
            if self.log_probs is not None:
                self.log_probs.cut(num_tokens)

    def send_window_before_error(self, now_ns: int) -> TokenWindow:
        """The tokens of a stream that is about to end with an error, as if it
        went on: the error itself says why it ends.
        """
        return self.send_window(now_ns).changed(finish=Finish.RUNNING, emit=False)

    def send_window(self, now_ns: int, emit: bool = False) -> TokenWindow:
        """The next window of this stream, counted as sent. With `emit` a
        chunk goes out even if it has no text.
        """
        ended = self.finish != Finish.RUNNING
        whole = ended and not self.request.stream  # an answer in one piece
        start = (
            0 if whole else max(0, min(self.num_acked, self.num_sent, len(self.tokens)) - self.context_tokens)
        )
        window = self._window(start, 0 if whole else min(self.num_sent, len(self.tokens)), emit or ended)
        self.num_sent = len(self.tokens)
        self.unacked_ns.append(now_ns)
        self.last_sent_ns = now_ns
        self.chunked = self.chunked or emit
        return window

    def _window(self, start: int, num_sent: int, emit: bool) -> TokenWindow:
        request = self.request
        ended = self.finish != Finish.RUNNING
        silent = not request.stream and not ended
        scores = None if silent else self.log_probs
        prompt = self.prompt_scores.whole() if self.prompt_scores is not None and self._is_first else None
        return TokenWindow(
            request_id=request.request_id,
            tokens=np.array(self.tokens[start:], np.int32),
            start=start,
            num_sent=num_sent,
            min_tokens=request.sampling.min_tokens,
            stop_words=request.stop_words,
            finish=self.finish,
            emit=emit,
            silent=silent,
            echo=request.echo if self._is_first else "",
            continues_text=request.continues_text,
            num_input_tokens=len(request.prompt) if request.wants_num_input_tokens else -1,
            log_probs=None if scores is None else scores.since(num_sent),
            sent_log_probs=None if scores is None else scores.between(start, num_sent),
            cum_log_prob=0.0 if scores is None else scores.sum(start),
            num_cached_tokens=self.num_cached,
            wants_num_output_tokens=request.wants_num_output_tokens,
            wants_output_ids=request.wants_output_ids,
            prompt_ids=request.prompt if prompt is not None else None,
            prompt_log_probs=prompt,
        )

    @property
    def _is_first(self) -> bool:
        """Whether the next window is the one, before the first text of the answer, that has what belongs to
        the prompt.
        """
        ended = self.finish != Finish.RUNNING
        if not self.request.stream:
            return ended
        return self.num_sent == 0 and (ended or bool(self.tokens))
