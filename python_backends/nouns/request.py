"""The nouns of a request: what was asked, how it may end, and what travels between the three stages.

Everything here is immutable and imports nothing of the project. The tokenizer makes a `Request`, the
scheduler model turns its progress into `TokenWindow`s, the detokenizer turns those into text and answers with
`Feedback`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, Self

import numpy as np
from msgspec import Struct, convert, structs, to_builtins
from numpy.typing import NDArray

Ids = NDArray[np.int32]  # token ids, one dimension
Floats = NDArray[np.float32]

MAX_BAD_WORD_TOKENS = 4
MAX_STOP_WORDS = 16  # and as many stop ids: each slot keeps a place for them
LEAST_TEMPERATURE = 1e-5  # a smaller one is 0: logits divided by it would leave the range of float32
# told of a token that is impossible, or of which an engine tells nothing: JSON has no infinite numbers
LEAST_LOG_PROB = -9999.0
QUANTILE_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # of a predicted length


class Noun(Struct, frozen=True, array_like=True, tag=True):
    """What travels between processes: written as its name and its fields, in their order (`messages`)."""

    def changed(self, **fields: Any) -> Self:
        """The same, with other values in some fields."""
        return structs.replace(self, **fields)

    def plain(self) -> Any:
        """The same as lists, texts and numbers, for JSON. Only of nouns without arrays."""
        return to_builtins(self)

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """What `plain` gave."""
        return convert(plain, cls)


class RefusedError(ValueError):
    """A request that can't be taken: the message names the field, the value
    and the limit, and is meant for the client.
    """

    code = "invalid_value"  # for programs: the error of the client ends with it


class TooLongError(RefusedError):
    """More than the model's context, or the settings, allow: a prompt, or max_tokens after it."""

    code = "context_length_exceeded"


class LaterError(RefusedError):
    """A request that may be taken when it is sent again."""

    code = "queue_full"


class Finish(IntEnum):
    """Why a sequence ended; `RUNNING` while it has not."""

    RUNNING = 0
    STOP = 1  # a stop id was generated, or a stop word completed
    LENGTH = 2  # max_tokens, or the model's context, is used up
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5

    @property
    def reason(self) -> str:
        return self.name.lower()


class Sampling(Noun, frozen=True):
    """How tokens are chosen and when to stop; checked at the door and not again after it."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0  # below LEAST_TEMPERATURE: greedy
    top_k: int = 0  # 0 keeps all tokens
    top_p: float = 1.0
    min_p: float = 0.0  # tokens less probable than this share of the most probable one are left out
    seed: int = 0  # token number i is drawn from (seed, i) alone
    stop_ids: tuple[int, ...] = ()  # end the sequence, not before min_tokens; the model's EOS ids
    repetition_penalty: float = 1.0  # of tokens in prompt and output
    presence_penalty: float = 0.0  # of tokens in the output
    frequency_penalty: float = 0.0  # of tokens in the output, once for each time
    # of 1 to MAX_BAD_WORD_TOKENS tokens: none of them is ever completed
    bad_words: tuple[tuple[int, ...], ...] = ()
    log_probs: bool = False  # report the log-probability of each token
    num_top_log_probs: int = 0  # and of this number of the most probable tokens in its place
    grammar: str = ""  # as `guides` compiles it: the output is a text of it, whole where a stop id ends it
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, each once, and what is added to their logits

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn; if not, the most probable one is taken."""
        return self.temperature >= LEAST_TEMPERATURE

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def looks_back(self) -> bool:
        """Whether the tokens so far change what may come next, other than by the model."""
        return self.penalizes or bool(self.bad_words)


class AdapterVersion(Noun, frozen=True):
    """A LoRA adapter as it was when a request asked for it; without a name, the model alone."""

    name: str = ""
    version: str = ""  # empty where an engine knows no versions
    digest: str = ""  # of the content, hexadecimal; empty where the engine keeps adapters by itself

    @property
    def full_name(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def root_key(self) -> bytes:
        """What the keys of KV blocks begin with: adapters of other content share no blocks."""
        return bytes.fromhex(self.digest)


BASE = AdapterVersion()


class Subject(Noun, frozen=True):
    """What a request is about, for the prediction of its answer's
    length; texts are cut to what is read of them.
    """

    instruction: str  # what is to be done; may be empty
    user_input: str  # what it is to be done to
    num_input_tokens: int  # of the whole input
    max_tokens: int  # of the answer
    adapter: str = ""  # the digest of its content; empty: none, or an engine that keeps adapters by itself


class Request(Noun, frozen=True, eq=False):
    """What a client asked, checked at the door; nothing changes it."""

    request_id: int
    prompt: Ids  # [prompt]
    sampling: Sampling
    stop_words: tuple[str, ...] = ()
    stream: bool = False
    echo: str = ""  # text that goes before the answer (exclude_input_in_output = false)
    continues_text: bool = False  # the answer continues the prompt's text; else it is a turn of a chat
    wants_num_input_tokens: bool = False
    wants_num_output_tokens: bool = False
    arrival_ns: int = 0  # time.monotonic_ns() at the door
    deadline_ns: int = 0  # same clock; 0 is none
    priority: int = 0  # larger first
    subject: Subject | None = None  # stays with the scheduler model; None: lengths aren't predicted
    adapter: AdapterVersion = BASE  # stays the same through evictions, moves and restarts
    wants_output_ids: bool = False
    # the first tokens of the answer, which its client has from another server, or an earlier life of this one
    delivered: tuple[int, ...] = ()
    client_id: str = ""  # what its client calls it: Triton's `id`, of the front x-request-id
    wants_prompt_log_probs: bool = False  # and as many of the most probable tokens as for the answer's
    drops_answer: bool = False  # max_tokens = 0: its one token is not sent

    @property
    def max_total_tokens(self) -> int:
        return len(self.prompt) + self.sampling.max_tokens


class LengthPrediction(Noun, frozen=True, eq=False):
    """How many tokens the answer to a request may have, from its first to its last."""

    mean: float
    quantiles: Floats  # [len(QUANTILE_LEVELS)] ascending

    @property
    def is_sane(self) -> bool:
        """Whether it can be a length: finite, above 0, and ascending, with a number at every level."""
        values = np.append(self.quantiles, self.mean)
        return len(values) == len(QUANTILE_LEVELS) + 1 and bool(
            np.isfinite(values).all() and (values > 0).all() and (np.diff(self.quantiles) >= 0).all()
        )


class LogProbs(Noun, frozen=True, eq=False):
    """Natural logarithms of the probabilities that the model itself
    gave: before biases, penalties, bans and temperature.
    """

    chosen: Floats  # [tokens]
    # [tokens · num_top] the most probable ids in each token's place, best first; one token after the other
    top_ids: Ids
    top: Floats  # [tokens · num_top] theirs

    @property
    def num_top(self) -> int:
        return len(self.top) // max(1, len(self.chosen))

    def first(self, count: int) -> LogProbs:
        """Of the first `count` tokens."""
        top = count * self.num_top
        return LogProbs(self.chosen[:count], self.top_ids[:top], self.top[:top])

    def kept(self, keep: NDArray[np.bool_]) -> LogProbs:
        """Of the tokens that `keep` [tokens] selects."""
        top = np.repeat(keep, self.num_top)
        return LogProbs(self.chosen[keep], self.top_ids[top], self.top[top])


class TokenWindow(Noun, frozen=True, eq=False):
    """What the detokenizer needs to print the next piece of one answer without remembering anything.

    `tokens` are the output tokens [start, start + len(tokens)). The text up to `num_sent` output tokens went
    out with earlier responses; this window asks for the text of the rest. A probe brings nothing new: it only
    asks whether the client is there.
    """

    request_id: int
    tokens: Ids  # [window]
    start: int = 0
    num_sent: int = 0
    min_tokens: int = 0
    stop_words: tuple[str, ...] = ()
    finish: Finish = Finish.RUNNING
    # send a response even if there is no new text (first chunks, last chunks); False may be swallowed
    emit: bool = True
    silent: bool = False  # swallow the text too: an answer that is not streamed, on its way
    echo: str = ""
    continues_text: bool = False  # the first token keeps the space that some tokenizers drop before a text
    num_input_tokens: int = -1  # -1: not asked for
    log_probs: LogProbs | None = None  # of the tokens from num_sent on; None: not asked for
    # [num_sent - start] with `log_probs`: those of the tokens before them, which a stop word may still cut
    sent_log_probs: Floats | None = None
    cum_log_prob: float = 0.0  # sum over the first `start` tokens
    num_cached_tokens: int = 0  # of the prompt: those whose KV blocks were kept from other requests
    wants_num_output_tokens: bool = False
    wants_output_ids: bool = False
    prompt_ids: Ids | None = None  # [prompt] with `prompt_log_probs`
    prompt_log_probs: LogProbs | None = (
        None  # of the prompt's tokens but the first; in one window of an answer
    )

    @property
    def is_probe(self) -> bool:
        return self.finish == Finish.RUNNING and self.start + len(self.tokens) <= self.num_sent


class WaitReason(StrEnum):
    """Why a request that was accepted has no slot. `gapless_waiting` on /metrics counts them by it."""

    NO_INSTANCE = "no_instance"  # none is ready
    TRIAL = "trial"  # an instance has crashed under some requests: these run apart, or alone, for a while
    STEP = "step"  # it gets its slot with the next step
    SLOT = "slot"  # all slots are taken
    ADAPTER = "adapter"  # its LoRA adapter is not loaded yet
    GUIDE = "guide"  # the guide of its answer is not compiled yet
    MEMORY = "memory"  # a slot is free, and KV blocks don't suffice, now or as foreseen


class Feedback(Noun, frozen=True):
    """What the detokenizer reports to the scheduler model about one window that it has handled."""

    request_id: int
    num_tokens: int  # output tokens that the window reached
    stopped_at: int = 0  # output tokens up to and with the one that completed a stop word; 0: none did
    gone: bool = False  # the client has cancelled or hung up
    answered: bool = False  # a chunk went out to it
    error: str = ""  # the window could not be answered, for this reason


class Idle(Noun, frozen=True):
    """The detokenizer had nothing to do at this time, nor for a while before: windows that were sent to it
    long before, and are not confirmed, are lost.
    """

    at_ns: int  # of the host's monotonic clock
    began_ns: int = 0  # same clock: when this detokenizer was started


NO_GUIDES = ("guided_decoding_guide_type",)  # `unsupported` of an engine whose answers follow no guides


class ModelLimits(Noun, frozen=True):
    """What the loaded engine can take; the door checks against it."""

    max_model_tokens: int  # prompt + output
    vocab_size: int
    num_slots: int
    num_blocks: int
    block_tokens: int
    fingerprint: str = ""  # which weights and settings make the tokens
    row_multiple: int = 32  # a step that is cut to fit has a multiple of it in rows
    max_bad_word_tokens: int = MAX_BAD_WORD_TOKENS
    unsupported: tuple[str, ...] = ()  # fields of a request that this engine can't follow
    adapters: tuple[AdapterVersion, ...] = ()  # that can be asked for; of a name, the newest is the last
    # after so many layers, hidden states are given where the plan wants them read; 0: they are not
    state_layer: int = 0

    def most_tokens(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """What a request may come to hold, its prompt and its answer."""
        return min(num_prompt_tokens + max_tokens, self.max_model_tokens)

    def step_tokens(self, token_budget: int) -> int:
        """The most tokens of one step: one token of a chunk at least, besides all decodes."""
        return max(token_budget, self.num_slots + 1)

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_tokens
