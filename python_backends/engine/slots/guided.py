"""Which tokens may come next in the slots whose answers follow a guide: a matcher for each, and the mask of
each step.

Owns the matchers. One is made when a sequence takes a slot, from its output so far, so evictions, restarts
and moves change nothing. A step's mask depends on the token of the step before: its way to the host begins
when it is chosen, and it is waited for when the next mask is made, after the next forward pass was put on the
device. Called by the sampling state.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import on_the_way, to_device
from python_backends.engine.slots.allowed import Allowed
from python_backends.guides.errors import GuideError
from python_backends.guides.guides import Guides
from python_backends.guides.matcher import Matcher, num_words
from python_backends.guides.prepared import Followed
from python_backends.nouns.request import Finish, ModelLimits
from python_backends.nouns.step import Admit

log = logging.getLogger("gapless.instance")


@dataclass(slots=True)
class _Answer:
    matcher: Matcher | None  # None: it can't be followed, and no token may come
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The tokens of one step on their way to the host."""

    rows: NDArray[np.int64]  # [guided] of the step
    answers: list[_Answer]
    arrive: Callable[[], Tensor]  # waits for [2, rows] tokens and finishes


class GuidedSlots:
    def __init__(self, limits: ModelLimits, device: torch.device) -> None:
        self._vocab_size, self._device = limits.vocab_size, device
        self._guides: Guides | None = None
        self._answers: dict[int, _Answer] = {}  # by slot
        self._choosing: tuple[NDArray[np.int64], list[_Answer]] | None = None  # of the step without tokens
        self._chosen: deque[_Chosen] = deque()

    def follow(self, guides: Guides) -> None:
        """To be called before the first sequence with a guide."""
        self._guides = guides

    def admit(self, admits: Sequence[Admit]) -> None:
        for admit in admits:
            self._answers.pop(admit.slot, None)
            if admit.sampling.grammar:
                self._answers[admit.slot] = _Answer(self._matcher(admit))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._answers.pop(slot, None)

    def allowed(self, rows: Tensor, host_rows: NDArray[np.int64], slots: NDArray[np.int32]) -> Allowed:
        """For `slots` [guided], whose rows of the step are `rows` [guided], and
        `host_rows`. Waits for the tokens of earlier steps.
        """
        self._take_chosen()
        answers = [self._answers[slot] for slot in slots.tolist()]
        masks: NDArray[np.int32] = np.zeros((len(answers), num_words(self._vocab_size)), np.int32)
        for mask, answer in zip(masks, answers, strict=True):
            if answer.has_ended:
                mask[:] = -1  # its row is computed, and dropped
            elif answer.matcher is not None:
                answer.matcher.fill(mask)
        self._choosing = host_rows, answers
        return Allowed(rows, to_device(masks.view(np.uint8), self._device))

    def append(self, result: Tensor) -> None:
        """`result` [2, rows], tokens and finishes, is what the step gave for which `allowed` was called."""
        if self._choosing is not None:
            self._chosen.append(_Chosen(*self._choosing, on_the_way(result)))
            self._choosing = None

    def _take_chosen(self) -> None:
        while self._chosen:
            step = self._chosen.popleft()
            tokens, finishes = step.arrive().numpy()[:, step.rows].tolist()
            for answer, token, finish in zip(step.answers, tokens, finishes, strict=True):
                _take(answer, token, finish)

    def _matcher(self, admit: Admit) -> Matcher | None:
        output = admit.tokens[admit.num_prompt_tokens :].tolist()
        assert self._guides is not None, "this engine was given no guides"
        try:
            return self._guides.matcher(Followed(admit.sampling.grammar, output, admit.sampling.stop_ids))
        except GuideError as error:
            log.warning("slot %d: its guide can't be followed, so its request fails: %s", admit.slot, error)
            return None


def _take(answer: _Answer, token: int, finish: int) -> None:
    if finish != Finish.RUNNING:
        answer.has_ended = True
    elif answer.matcher is not None and not answer.has_ended:
        answer.matcher.take([token])
