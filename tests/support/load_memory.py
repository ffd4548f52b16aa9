"""How much memory a process takes while it loads a checkpoint with layers in C++, in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import Stored
from python_backends.checkpoint.tensor_names import HEAD, embedding_name, shapes_of
from python_backends.engine.model.loading import facts_of, open_weights
from python_backends.engine.torch.engine import TorchEngine
from python_backends.linux.freed_memory import give_back_freed_memory
from python_backends.settings import EngineSettings, ModelSettings, Settings

BUNDLED = str(Path(__file__).resolve().parents[2] / "models" / "bundled")
OF_A_LAYER = {"int8": 1.0, "int4": 5 / 8}  # bytes of a number
OF_THE_HEAD = {"int8": 1.0, "int4": 1.0}
PLAIN = {"float32": 4.0, "bfloat16": 2.0}
OF_FEW_BITS = {  # of GGUF, in a model of float32
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), 6 / 8),
    **dict.fromkeys(("Q3_K", "Q5_0", "Q6_K", "Q8_0"), 10 / 8),
    **dict.fromkeys(("Q2_K", "Q5_1", "Q5_K"), 12 / 8),
}


def load(path: str, dtype: str, weights: str) -> tuple[int, int]:
    """The most bytes that the process grew by, and the bytes of the weights that are served."""
    plain = TorchEngine(_settings(BUNDLED, dtype, weights))  # what any model needs once: code, trials
    assert plain._layer_steps is not None
    del plain
    settings = _settings(path, dtype, weights)
    facts = facts_of(settings)
    norm = f"{facts.family.body}.{facts.family.final_norm}.weight"
    open_weights(settings, facts).tensor(norm)  # imports what reads such files
    give_back_freed_memory()
    before = _kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is VmRSS again
    engine = TorchEngine(settings)
    grown = _kib("VmHWM") - before
    assert engine._layer_steps is not None
    stored = open_source(settings.model_directory).tensors
    return 1024 * grown, _served(facts, stored, dtype, weights)


def _settings(path: str, dtype: str, weights: str) -> Settings:
    model = ModelSettings(path, dtype, weights, max_model_tokens=64)
    return Settings(model=model, engine=EngineSettings(slots=1, kv_blocks=2))


def _served(facts: ModelFacts, stored: Mapping[str, Stored], dtype: str, weights: str) -> int:
    """Of scales only those of groups, and no vectors."""
    head, embedding, total = f"{HEAD}.weight", embedding_name(facts), 0.0
    for name, shape in shapes_of(facts).items():
        size = OF_THE_HEAD if name == head else OF_A_LAYER if name != embedding else {}
        plain = size.get(weights, PLAIN[dtype])
        if (dtype, weights) == ("float32", "same"):
            kept = embedding if name == head and facts.is_tied else name
            plain = OF_FEW_BITS.get(stored[kept].dtype, plain)
        if len(shape) > 1 and not (name == embedding and facts.is_tied):
            total += prod(shape) * plain
    return int(total)


def _kib(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])
