"""Compiles grammars, and keeps the latest of them; prepares the matchers of answers that go on.

The door compiles to check, an instance to follow. Threads with a large stack compile: llguidance calls
itself once for each grammar within another one, and a chain of a thousand is no error. Everything is bounded:
the size of a guide, what compiling and one mask may cost, how long the caller waits, how many compiled
grammars, refusals and prepared matchers are kept. A thread that compiles for longer goes on, and the other
one compiles what comes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from math import lcm

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from python_backends.guides.errors import GuideError, UncompiledError
from python_backends.guides.matcher import Matcher
from python_backends.guides.prepared import Followed, PreparedMatchers, begun
from python_backends.guides.vocabulary import Vocabulary

# read when the first error comes: with it, each of a thousand grammars within another adds one to a message;
# one that is set stays, because a title of the process needs the first variable where it was
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")

Compiled = LLMatcher  # of which each answer gets a copy

MAX_GUIDE_BYTES = 128 * 1024  # compiled in 0.1 s, if it is 500 schemas of tools
COMPILE_S = 1.0  # the door waits; a hundred times as long as common ones take
KEPT_S = 3.0  # of a processor: what took longer is refused, also when it has been compiled meanwhile
ADMIT_S = 10.0  # an instance waits, in the rare case that it must compile a guide again
NUM_THREADS = 2
# of a remainder there are so many states
MOST_MULTIPLE = 10_000
MULTIPLE = re.compile(r'multipleOf\\*"\s*:\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)')
# several multiples may be asked of one number
TOGETHER = re.compile(r'(allOf|anyOf|oneOf|patternProperties|\$ref)\\*"')
ESCAPED = re.compile(r"(?<!\\)\\+u00([2-7][\da-fA-F])")
MOST_KEPT = 64  # compiled grammars, and refused ones
STACK_BYTES = 512 * 1024 * 1024  # addresses, not memory: 4 kB for each byte of the longest guide
# many times what common schemas and regular expressions cost. Made with the first grammar: an engine without
# guides starts with an older llguidance, too, as a place in PYTHONPATH may have it
LIMITS = partial(
    LLParserLimits,
    initial_lexer_fuel=300_000,
    step_lexer_fuel=50_000,
    max_grammar_size=150_000,
    max_lexer_states=16_384,
    max_items_in_row=600,  # 500 tools are 501; a step takes the square of what a grammar leaves open
    verbose_errors=False,
)


class Guides:
    """May be called by several threads."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """`vocabulary` is asked for once, when the first grammar comes."""
        self._vocabulary = vocabulary
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[str, Compiled] = OrderedDict()  # the longest unused first
        self._refused: OrderedDict[str, str] = OrderedDict()  # what is wrong with them; the oldest first
        self._begun: dict[str, Future[Compiled]] = {}  # of those that `begin` has had compiled since
        self._prepared = PreparedMatchers()
        self._lock, self._tokens_lock = threading.Lock(), threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, grammar: str) -> Future[Compiled]:
        """Has `grammar` compiled, unless it is. The result is not to be changed; it is GuideError if the
        grammar can't be followed.
        """
        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
                done: Future[Compiled] = Future()
                done.set_result(self._kept[grammar])
                return done
            if grammar in self._refused:
                refused: Future[Compiled] = Future()
                refused.set_exception(GuideError(self._refused[grammar]))
                return refused
            if grammar not in self._begun:
                self._begun[grammar] = self._pool().submit(partial(self._compile, grammar))
            return self._begun[grammar]

    def check(self, grammar: str) -> None:
        """Raises GuideError if no answer can follow `grammar`, or following it would cost too much;
        UncompiledError if that is not known in time.
        """
        self._known_tokens()
        self._compiled(grammar, COMPILE_S)

    def prepare(self, followed: Followed) -> Future[None]:
        """Has done what takes long of `matcher`. The result is GuideError if that raises it."""
        with self._lock:
            return self._pool().submit(partial(self._prepare, followed))

    def is_prepared(self, followed: Followed) -> bool:
        """Whether `matcher` has little to do for it."""
        if followed.tokens:
            return followed in self._prepared
        return self.is_compiled(followed.grammar)

    def is_compiled(self, grammar: str) -> bool:
        with self._lock:
            return grammar in self._kept

    def matcher(self, followed: Followed) -> Matcher:
        """For an answer that goes on from there. Raises GuideError."""
        prepared = self._prepared.take(followed)
        return prepared or begun(self._compiled(followed.grammar, ADMIT_S), followed)

    def _prepare(self, followed: Followed) -> None:
        with self._lock:
            compiled = self._kept.get(followed.grammar)
        compiled = compiled or self._compile(followed.grammar)
        if followed.tokens:  # else what was compiled is copied when it is wanted
            self._prepared.add(followed, begun(compiled, followed))

    def _compiled(self, grammar: str, patience_s: float) -> Compiled:
        compiled = self.begin(grammar)
        try:
            return compiled.result(patience_s)
        except (TimeoutError, CancelledError):
            with self._lock:
                if compiled.cancel():  # no thread has begun with it
                    self._begun.pop(grammar, None)
            said = f"could not be compiled within {patience_s:g} s; it may be compiled a moment later"
            raise UncompiledError(said) from None

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = _with_large_stacks()
        return self._threads

    def _known_tokens(self) -> LLTokenizer:
        with self._tokens_lock:
            if self._tokens is None:
                self._tokens = self._vocabulary().compiled()
            return self._tokens

    def _compile(self, grammar: str) -> Compiled:
        try:
            return self._newly_compiled(grammar)
        except GuideError as error:
            with self._lock:
                self._refused[grammar] = str(error)
                while len(self._refused) > MOST_KEPT:
                    self._refused.popitem(last=False)
            raise
        finally:
            with self._lock:
                self._begun.pop(grammar, None)

    def _newly_compiled(self, grammar: str) -> Compiled:
        began_s = time.thread_time()
        _refuse_large_multiples(grammar)
        matcher = LLMatcher(self._known_tokens(), grammar, log_level=0, limits=LIMITS())
        _look(matcher)
        _look(_with_one_token(matcher))  # many guides that can't be followed show that only there
        if time.thread_time() - began_s > KEPT_S:
            raise GuideError(f"takes a processor more than {KEPT_S:g} s to compile")
        with self._lock:
            self._kept[grammar] = matcher
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return matcher


def _look(matcher: LLMatcher) -> None:
    """Raises GuideError if it can't say what comes next."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise GuideError(_plain(matcher.get_error()))


def _with_one_token(matcher: LLMatcher) -> LLMatcher:
    """A copy that has taken the first token that may come."""
    copied = matcher.deep_copy()
    words = np.frombuffer(copied.compute_bitmask(), np.uint8)
    copied.consume_token(int(np.flatnonzero(np.unpackbits(words, bitorder="little"))[0]))
    return copied


def _with_large_stacks() -> ThreadPoolExecutor:
    """Threads that have started."""
    pool, started = ThreadPoolExecutor(NUM_THREADS, "guides"), threading.Barrier(NUM_THREADS + 1)
    before = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(NUM_THREADS):
            pool.submit(started.wait)
    finally:
        threading.stack_size(before)
    started.wait()
    return pool


def _refuse_large_multiples(grammar: str) -> None:
    """Raises GuideError. Compiling them takes minutes, and all memory."""
    plain = ESCAPED.sub(lambda found: chr(int(found[1], 16)), grammar)
    all_digits = set[int]()
    for number in MULTIPLE.findall(plain):
        digits = number.lower().partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")
        all_digits.add(multiple := int(digits[:10] or 1))
        if multiple > MOST_MULTIPLE:
            raise GuideError(f"multipleOf = {number}: must have digits below {MOST_MULTIPLE:,}")
    if not TOGETHER.search(plain):
        return
    for least in accumulate(all_digits, lcm):
        if least > MOST_MULTIPLE:
            raise GuideError(
                "multipleOf: with allOf, anyOf, oneOf, patternProperties or $ref the least common multiple"
                f" of all of them must be at most {MOST_MULTIPLE:,}, not {least:,} or more"
            )


def _plain(error: str) -> str:
    """llguidance's message without what it adds for its own developers."""
    if "NoExtension" in error:
        return "no text can follow it"
    return error.replace("<non-verbose/>", "")
