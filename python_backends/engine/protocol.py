"""What the instance loop asks of an engine. The loop is written once, against this; `kinds` names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from python_backends.guides.guides import Guides
from python_backends.nouns.request import Ids, ModelLimits
from python_backends.nouns.step import StepOutput, StepPlan
from python_backends.nouns.training import Adam, AdapterShape, LayerFacts, LayerPlan, Pack, Tile


class BadAdapterError(ValueError):
    """An adapter that is not served. The message names the file, the field or the tensor."""


class Engine(Protocol):
    """Runs step plans in the order of their launch.

    `launch` takes one plan and may return before its tokens are there; `collect` waits for the oldest
    launched step and gives its output. An engine keeps, per slot, everything but the waiting order: last
    token, position, block table row, sampling. A fault in either call means that the engine is dead: the
    instance process ends and is started again.

    An engine that `plans_steps` itself takes operations only: its plans have no spans, its own blocks are
    counted by ours and no more, `collect` gives a GatheredOutput soon, if only an empty one, and a slot is
    free when that says so.
    """

    limits: ModelLimits
    plans_steps: bool

    def launch(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepOutput: ...

    def close(self) -> None: ...


@runtime_checkable
class FollowsGuides(Protocol):
    """An engine whose answers follow guides; others name them in `unsupported` of their limits."""

    def follow(self, guides: Guides) -> None:
        """Compiles the guides of sequences; called before the first sequence with one."""


class ReadAdapter(NamedTuple):
    """An adapter as it was read."""

    digest: str  # of its content
    weights: Any  # as its engine keeps them, on the device


@runtime_checkable
class TakesAdapters(Protocol):
    """An engine that computes sequences with LoRA adapters, different ones in the same step.

    A sequence whose adapter has a digest is admitted only between `install_adapter` and `drop_adapter` of
    that digest. The loop calls these two between its calls of `launch`, and drops an adapter only when no
    launched step has to admit a sequence with it. `read_adapter` may be called by another thread.
    """

    def read_adapter(self, directory: Path, root: Path) -> ReadAdapter:
        """Reads and checks the adapter in `directory`. Links lead nowhere outside of `root`. Raises
        BadAdapterError, which names what is wrong.
        """

    def install_adapter(self, digest: str, weights: Any) -> None: ...

    def drop_adapter(self, digest: str) -> None: ...


class PackInTraining(Protocol):
    """Tiles go in, losses come out. Every call may stand between two steps of serving; what a device was told
    then is done before `AdapterInTraining.wait` returns. What was borrowed is touched by these calls alone.
    """

    def forward(self, tile: Tile) -> None: ...

    def loss(self, first: int, last: int) -> float:
        """Of tokens [first, last), after all layers: their part of the mini-batch's loss."""

    def backward(self, tile: Tile) -> None: ...

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """[tokens] of the labels, after the loss; 0 where there is no label."""


class AdapterInTraining(Protocol):
    """An adapter in training."""

    tile_tokens: int  # of a tile: more would take no less time each

    @property
    def facts(self) -> tuple[LayerFacts, ...]: ...
    @property
    def targets(self) -> dict[int, frozenset[str]]:
        """The products with an adapter, by layer."""

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """Weights by PEFT's keys, and moments: a copy."""

    def install(self, plans: tuple[LayerPlan, ...]) -> None:
        """Begins a mini-batch with the weights as they are now."""

    def num_blocks(self, pack: Pack, plans: tuple[LayerPlan, ...]) -> int:
        """How many KV blocks to borrow for a pack; 0: it has memory of its own. ValueError if blocks are too
        small for it.
        """

    def begin(self, pack: Pack, num_labels: int, borrowed: Ids | None) -> PackInTraining:
        """`num_labels`: of the whole mini-batch, by which its loss is divided. `borrowed`: KV blocks for the
        pack.
        """

    def wait(self) -> None:
        """Until the device has done all that it was told."""

    def keep_gradients(self) -> None:
        """Ends the mini-batch: its gradients are added to those that are kept since the last `clip`."""

    def clip(self, max_norm: float) -> float:
        """Returns the norm of the kept gradients, which are clipped to `max_norm` for the updates that
        follow, and kept no longer.
        """

    def update(self, layer: int, adam: Adam) -> None:
        """Changes the weights of one layer; all layers follow in order."""

    def resume(self, state: dict[str, NDArray[Any]], num_steps: int) -> None:
        """Goes on from `state` as it was after `num_steps`. ValueError if it is another adapter's."""


@runtime_checkable
class Trains(Protocol):
    """An engine that trains adapters between its steps, with the weights that it serves."""

    can_train: bool  # with these settings

    def start_training(self) -> Callable[[AdapterShape, int], AdapterInTraining]:
        """What makes an adapter of a shape, by the seed of its first weights. One adapter's mini-batch is
        computed at a time.
        """


@runtime_checkable
class ExportsBlocks(Protocol):
    """An engine whose KV blocks can be read and written as bytes, so that a request goes on in another one.

    Both functions may be called by another thread than the loop's. No launched step writes the blocks that
    are exported: the caller takes full blocks, or those of a request that no launched step has. An import
    waits until the steps launched before it are done, because these may still write to blocks that were
    freed.
    """

    kv_format: str  # type of a number, and the sizes of a block; engines with equal ones can exchange blocks
    block_bytes: int  # of one block

    def export_blocks(self, blocks: Ids) -> NDArray[np.uint8]:
        """A copy of `blocks` [n] as bytes [n · block_bytes]: [n, layers, 2, kv_heads, tokens, dim], keys
        before values.
        """

    def import_blocks(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Writes `data`, as `export_blocks` gives it, to `blocks` [n]. Raises ValueError if it has another
        size.
        """
