"""Measures what a forward pass keeps for the backward pass of LoRA adapters, ours and PEFT's: bytes a token
and layer.

    python -m benchmarks.finetuning_memory --json benchmarks/results/finetuning_memory.json

`kept` is measured on two layers less one layer: of ours the tensors that a pack has, KV blocks included; of
PEFT the tensors that autograd saves, weights excluded. `computed` is what `finetuning/pruning.py` says.
`fewer` is PEFT's without checkpointing over it. `step_mib` is by how much one optimiser step over four
sequences of 256 tokens raises the peak of the process's resident memory, for the whole model: logits and what
is made again for a while are in it, weights are not. Adapters have rank 16 and all seven modules of a layer.
Every figure comes from a process of its own.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.common.work import resident_mib
from python_backends.nouns.training import Keep

KINDS = ("peft", "peft_checkpointing", "products", "attention", "inputs")
DTYPES = {"S": "float32", "M": "float32", "8B": "bfloat16"}
QUICK_KINDS = ("peft", "inputs")
WHOLE = ("S",)  # shapes whose whole model takes a step
LENGTH, NUM_SEQUENCES = 256, 4
SMALL_VOCABULARY = 64  # where the head is not measured


@dataclass(frozen=True, slots=True)
class Row:
    shape: str
    dtype: str
    kind: str
    computed: float | None  # bytes a token and layer
    kept: float
    fewer: float
    step_mib: float | None


def kept(shape: str, kind: str, length: int) -> tuple[float | None, float]:
    """Computed and measured bytes a token and layer."""
    count = our_bytes if kind in ("products", "attention", "inputs") else peft_bytes
    one, two = (count(shape, kind, layers, length) for layers in (1, 2))
    computed = None if one[0] is None or two[0] is None else two[0] - one[0]
    return computed, (two[1] - one[1]) / (NUM_SEQUENCES * length)


def our_bytes(shape: str, keep: str, num_layers: int, length: int) -> tuple[float, int]:
    """Computed bytes a token and measured bytes of a pack, of all layers."""
    from benchmarks.common.finetuning_trainers import ADAPTER, MAX_TOKENS, build_model, random_examples
    from python_backends.engine.torch.training.lora_in_training import LoraInTraining
    from python_backends.engine.torch.training.model import trained_model
    from python_backends.finetuning.packs import packed
    from python_backends.finetuning.pruning import plans
    from python_backends.nouns.training import Keep, Tile
    from tests.support.model_source import read_from

    built = build_model(shape, DTYPES[shape], num_layers, SMALL_VOCABULARY)
    model = trained_model(*read_from(built), MAX_TOKENS)
    del built
    adapter = LoraInTraining(model, ADAPTER, seed=1)
    made = plans(adapter.facts, adapter.targets, Keep(keep))
    pack = packed(random_examples([length] * NUM_SEQUENCES, 1.0, SMALL_VOCABULARY))
    adapter.install(made)
    run = adapter.begin(pack, pack.num_labels)
    for layer in range(num_layers):
        run.forward(Tile(layer, 0, len(pack.tokens)))
    values = sum(sum(plan.kept.values()) for plan in made)
    return values * model.dtype.itemsize, _kept_bytes(run)


def _kept_bytes(run: Any) -> int:
    """Of the pack of `run`: activations, and KV blocks with the one for padding."""
    tensors = [rows for layer in run.state.activations._rows for rows in layer.values()]
    pieces = [piece for rows in tensors for piece in rows._pieces]
    return sum(each.nbytes for each in [*pieces, run.cache.blocks])


def peft_bytes(shape: str, kind: str, num_layers: int, length: int) -> tuple[None, int]:
    """Bytes of all storages that autograd saves of a forward pass, without weights."""
    import torch

    from benchmarks.common.finetuning_trainers import adapted, build_model, padded, random_examples

    model = adapted(
        build_model(shape, DTYPES[shape], num_layers, SMALL_VOCABULARY), kind == "peft_checkpointing"
    )
    tokens, labels, _ = padded(random_examples([length] * NUM_SEQUENCES, 1.0, SMALL_VOCABULARY))
    weights = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    saved: dict[int, Any] = {}  # storages by address; they live on, so that no address comes twice

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert loss.requires_grad
    return None, sum(storage.nbytes() for storage in saved.values())


def step_mib(shape: str, kind: str, length: int) -> tuple[None, float]:
    """Peak over what was resident before, in the second of two optimiser steps."""
    from benchmarks.common.finetuning_trainers import OurTrainer, PeftTrainer, build_model, random_examples

    model = build_model(shape, DTYPES[shape])
    trainer: OurTrainer | PeftTrainer
    if kind in ("peft", "peft_checkpointing"):
        trainer = PeftTrainer(model, kind == "peft_checkpointing")
    else:
        trainer = OurTrainer(model, Keep(kind))
    del model
    peaks: list[float] = []

    def watch() -> None:
        peaks.append(resident_mib("VmHWM"))
        _begin_peak()
        peaks.append(resident_mib("VmRSS"))

    trainer.train(random_examples([length] * NUM_SEQUENCES, 1.0), NUM_SEQUENCES, 2, watch)
    return None, peaks[2] - peaks[1]


def _begin_peak() -> None:
    """Gives free memory back, and counts the peak from now on."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def measure(shapes: list[str], kinds: tuple[str, ...], length: int) -> list[Row]:
    bar = tqdm(total=len(kinds) * sum(1 + (shape in WHOLE) for shape in shapes), disable=None)
    rows = []
    for shape in shapes:
        naive = 0.0
        for kind in kinds:
            computed, found = _apart(kept, shape, kind, length, bar)
            step = _apart(step_mib, shape, kind, length, bar)[1] if shape in WHOLE else None
            naive = naive or found
            rows.append(Row(shape, DTYPES[shape], kind, computed, found, naive / found, step))
            tqdm.write(f"{shape}, {kind}: {found:.0f} bytes a token and layer")
    bar.close()
    return rows


def _apart(
    function: Callable[..., tuple[float | None, float]], shape: str, kind: str, length: int, bar: Any
) -> tuple[float | None, float]:
    """In a process of its own."""
    bar.set_description(f"{shape}, {kind}")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(function, (shape, kind, length))
    bar.update()
    return found


def main() -> None:
    from benchmarks.results_file import table, write_result

    parser = command_line(__doc__, quick="the smallest shape, short sequences, two of five kinds")
    parser.add_argument("--shapes", default="S,M,8B", help="which of S, M and 8B")
    arguments = parser.parse_args()
    work = (["S"], QUICK_KINDS, 32) if arguments.quick else (arguments.shapes.split(","), KINDS, LENGTH)
    rows = measure(*work)
    if arguments.json:
        about = {"sequences": NUM_SEQUENCES, "tokens_a_sequence": work[2]}
        write_result(arguments.json, {**about, "rows": [asdict(row) for row in rows]})
    print(table([_shown(row) for row in rows]))


def _shown(row: Row) -> dict[str, str]:
    numbers = {"computed": row.computed, "kept": row.kept, "step_mib": row.step_mib}
    shown = {name: "–" if value is None else f"{value:,.0f}" for name, value in numbers.items()}
    return {
        "shape": f"{row.shape}, {row.dtype}",
        "kind": row.kind,
        "computed": shown["computed"],
        "kept": shown["kept"],
        "fewer": f"{row.fewer:.1f} ×",
        "step_mib": shown["step_mib"],
    }


if __name__ == "__main__":
    main()
