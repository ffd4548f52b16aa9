"""How much training fits between two steps of serving, so that those who wait for tokens do not notice.

Prefills and decodes go first. Where sequences decode, a step and the training before it take no longer than
the time per output token that the settings allow (FlexLLM, NSDI 2026: the most training tokens for which the
expected time stays within the objective). A window may be in the step itself. Where the server is idle, a new
request waits at most so long. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import Pack
from python_backends.scheduling.piece_time import PieceTime, loads, loss_loads
from python_backends.scheduling.step_time import StepTime

# of the objective: what a step and the training before it may be expected to take. What takes longer is
# caught up by later steps (`Lateness`), so the time per output token of an answer is within the objective
GOAL = 0.93
LEAST, MOST = 16, 256  # tokens of a piece, if its pack has as many; more take no less time each
SIZES = (*range(MOST, 64, -32), 64, 48, 32, LEAST)
# a piece has at most so many times the tokens of the largest one so far; LEAST until a time is known
GROWTH = 2
MOST_LATE_S = 0.5  # that is caught up: what takes longer was interrupted, or there was no job meanwhile

Padded = Callable[[int], int]  # rows of a step → the rows that are computed


class Lateness:
    """How much later than the objective the requests that run have their tokens: a step with prompts may take
    longer than it. `step_begins` changes it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last_s: float | None = None  # when a step began in which sequences decode

    def step_begins(self, plan: StepPlan | None, now_s: float, goal_s: float) -> None:
        """With the training before it. `plan` is None where there is nothing to compute; `goal_s` is what a
        step and the training before it may take.
        """
        if plan is None:
            self.seconds = 0.0
        elif self._last_s is not None:
            late_s = self.seconds + now_s - self._last_s - goal_s
            self.seconds = min(MOST_LATE_S, max(0.0, late_s))
        self._last_s = now_s if plan is not None and plan.num_decodes else None


def slack_s(
    plan: StepPlan | None, times: StepTime, tpot_s: float, idle_s: float, late_s: float = 0.0
) -> float:
    """Seconds for training before `plan` is launched; `plan` is None where there is nothing to compute. There
    is no time before a step with prompts, whose first tokens are waited for. `late_s`, by which requests are
    late, is caught up first.
    """
    if plan is None:
        return idle_s
    if len(plan.tokens):
        return 0.0
    return max(0.0, GOAL * tpot_s - times.expected_s(plan) - late_s)


def forward(seconds: float, times: PieceTime, pack: Pack, first: int) -> int:
    """How many tokens from `first` on are computed forward within `seconds`, in as many layers as in `times`;
    0: not even the least piece.
    """
    sizes = _sizes(len(pack.tokens) - first)
    return _most(seconds, times, sizes, lambda tokens: times.seconds(loads(pack, first, first + tokens)))


def fused_window(
    seconds: float, times: PieceTime, pack: Pack, first: int, num_rows: int, padded: Padded
) -> int:
    """How many tokens from `first` on add at most `seconds` to a step of `num_rows` other rows; 0: not even
    the least window. `times`: what windows add. No margin is needed, since that of the step holds for all of
    it. With such a window the step needs no rows of padding, unless it is the last one of its pack.
    """
    sizes = _fused_sizes(len(pack.tokens) - first, num_rows, padded)
    return _most(seconds, times, sizes, lambda tokens: times.expected_s(loads(pack, first, first + tokens)))


def loss(seconds: float, times: PieceTime, pack: Pack, first: int, last: int) -> int:
    """Of how many of the tokens [first, last) the loss is computed within `seconds`; 0: not even of the least
    number.
    """
    sizes = _sizes(last - first)
    return _most(seconds, times, sizes, lambda tokens: times.seconds(loss_loads(pack, first, first + tokens)))


def backward(seconds: float, times: PieceTime, pack: Pack, last: int) -> int:
    """How many tokens before `last` are computed backward in one layer within `seconds`; 0: not even the
    least piece.
    """
    return _most(seconds, times, _sizes(last), lambda tokens: times.seconds(loads(pack, last - tokens, last)))


def _most(seconds: float, times: PieceTime, sizes: list[int], takes_s: Callable[[int], float]) -> int:
    """The largest of few sizes, of which each `takes_s`: for every new one the libraries of a CPU generate
    code.
    """
    known = max(LEAST, GROWTH * times.most_tokens) if times.is_learned else LEAST
    for tokens in sizes:
        is_known = tokens <= known or tokens == sizes[-1]
        if is_known and takes_s(tokens) <= seconds:
            return tokens
    return 0


def _sizes(left: int) -> list[int]:
    """All that is left, then the smaller ones of SIZES."""
    return [min(left, MOST), *(size for size in SIZES if size < min(left, MOST))]


def _fused_sizes(left: int, num_rows: int, padded: Padded) -> list[int]:
    """All that is left, then those with which a step of `num_rows` others has no rows of padding."""
    found, rows = [], padded(num_rows + LEAST)
    while rows - num_rows < min(left, MOST + 1):
        found.append(rows - num_rows)
        rows = padded(rows + 1)
    return [*([left] if left <= MOST else []), *reversed(found)]
