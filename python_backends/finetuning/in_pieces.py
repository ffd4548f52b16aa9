"""What is the same for every trainer: it does a job in pieces, from a file or step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from python_backends.engine.protocol import AdapterInTraining
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.mini_batch import MiniBatch
from python_backends.finetuning.pack_memory import PackMemory, RevokedError
from python_backends.finetuning.pieces import Kind, Piece
from python_backends.nouns.training import Adam

T = TypeVar("T")


class TrainerInPieces(ABC):
    """`piece` is what comes next; `begin` finds the first one, and `do` does it and finds the next one."""

    def __init__(self, job: Job, adapter: AdapterInTraining, memory: PackMemory) -> None:
        self._job, self._adapter, self._memory = job, adapter, memory
        self.tile_tokens, self.wait = adapter.tile_tokens, adapter.wait
        self._batch: MiniBatch  # since the first BEGIN
        self._step = 0
        self._wasted_tokens = 0  # since the last step
        self._norm = 0.0  # of the gradients
        self._layer = 0  # whose weights change next
        self.piece = Piece(Kind.WAIT)
        self._then: Callable[[], Piece]  # what WAIT does

    @abstractmethod
    def begin(self) -> None:
        """Reads where the job stands."""

    @abstractmethod
    def save(self) -> None:
        """The instance may end: writes what the next one goes on from."""

    def do(self, tokens: int) -> None:
        """Does `piece`, with at most `tokens` tokens if it has a pack."""
        self.piece = self._after(self.piece.kind, tokens)

    @property
    def is_updating(self) -> bool:
        """The weights are between two steps."""
        return self._layer > 0

    def _after(self, kind: Kind, tokens: int) -> Piece:
        """Does a piece of that kind. Returns the next one."""
        match kind:
            case Kind.BEGIN:
                return self._begin_batch()
            case Kind.PACK | Kind.MEMORY:
                return self._begin_pack()
            case Kind.MEASURED:
                return self._measured()
            case Kind.CLIP:
                return self._clip()
            case Kind.UPDATE:
                return self._update()
            case Kind.SAVE:
                return self._save()
            case Kind.WAIT:
                return self._then()
        return self._compute(tokens)

    def _compute(self, tokens: int) -> Piece:
        try:
            self._batch.do(tokens)
        except RevokedError:
            self._wasted_tokens += self._batch.begun_tokens
            return self._again()
        return self._batch.piece

    def _update(self) -> Piece:
        """Of one layer's weights."""
        self._adapter.update(self._layer, self._adam)
        self._layer = (self._layer + 1) % len(self._adapter.facts)
        return Piece(Kind.UPDATE) if self.is_updating else self._end_step()

    def _await(self, files: Future[T], then: Callable[[Future[T]], Piece]) -> Piece:
        """What comes when they are read or written, or can't be."""
        self._then = lambda: then(files) if files.done() else Piece(Kind.WAIT)
        return self._then()

    @abstractmethod
    def _begin_batch(self) -> Piece: ...

    @abstractmethod
    def _begin_pack(self) -> Piece:
        """To wait for its memory may take long: the job may be cancelled meanwhile."""

    @abstractmethod
    def _again(self) -> Piece:
        """Requests have taken the memory of a pack."""

    @abstractmethod
    def _measured(self) -> Piece:
        """A mini-batch that was not learned has its loss."""

    @abstractmethod
    def _clip(self) -> Piece: ...

    @property
    @abstractmethod
    def _adam(self) -> Adam: ...

    @abstractmethod
    def _end_step(self) -> Piece: ...

    @abstractmethod
    def _save(self) -> Piece: ...
