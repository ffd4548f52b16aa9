"""Predicts what steps of the torch engine cost on a GPU, from counts taken without one: launches and bytes of
each step, and its time compared with the floor of the bandwidth.

    python -m benchmarks.gpu_floor --json benchmarks/results/gpu_floor.json

Counted: the engine's own steps launch these kernels for shapes of Llama 3 (`gpu/counts.py`). Assumed: what a
launch costs, below and in the result. So the times are predictions, in two columns: all assumptions at their
better end, and all at their worse one. `gpu` prints them next to what it measures.

A step's time on the device is the sum over its kernels, one after the other, of a constant and of the longer
of bytes / bandwidth and operations / speed. Its time on the host is that of its launches. A step that is
launched ahead takes the longer of both. The floor is all weights of products and the KV that must be read,
divided by the bandwidth of a copy, as in `gpu/steps.py`. The gap is what stands on the device between the
marks of two steps' timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm
from transformers import LlamaConfig

from benchmarks.common.command_line import command_line
from benchmarks.gpu.counts import PRODUCTS, Counted, CountedModel, Launch
from benchmarks.gpu.model import LLAMA_3_1_8B, TINY
from benchmarks.results_file import table, write_result

LLAMA_3_2_1B = LLAMA_3_1_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA_3_1_8B["rope_parameters"] | {"factor": 32.0},
}
MODELS = {"1B": LLAMA_3_2_1B, "8B": LLAMA_3_1_8B}
SLOTS, QUICK_SLOTS = (1, 8, 16, 64), (4,)
CONTEXT_TOKENS = 512
MIXED_SHARE = 0.2  # of the steps, for the gap
MAX_MODEL_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    bandwidth: float  # of a copy, bytes read and written a second
    peak_flops: float = 989e12  # of bfloat16 without sparsity, a second, by NVIDIA's data sheet


@dataclass(frozen=True, slots=True)
class Costs:
    """Assumed, not measured."""

    kernel_s: float  # of a kernel on the device, whatever it does: begin, end, and the next one's begin
    product_share: float  # of a copy's bandwidth that the product of few rows reaches
    flops_share: float  # of the peak that the product of many rows reaches
    torch_s: float  # of the host, for one of torch's operators that launches something
    ours_s: float  # of the host, for a kernel of ours
    copy_s: float  # of the host, for a copy out of pinned memory
    graph_s: float  # of the host, for a captured graph
    draw_s: float  # of the device, for the kernel that draws: 15 to 65 passes over a row of 128,256 logits


COPY_SHARE = 0.9  # of the data sheet's bandwidth that a copy reaches: assumed
GPUS = (Gpu("H100", COPY_SHARE * 3.35e12), Gpu("H200", COPY_SHARE * 4.8e12))
BETTER = Costs(1.5e-6, 0.92, 0.7, 5e-6, 10e-6, 8e-6, 10e-6, 40e-6)
WORSE = Costs(2.5e-6, 0.85, 0.5, 8e-6, 15e-6, 15e-6, 20e-6, 200e-6)
BOTH = (BETTER, WORSE)


def device_s(launches: tuple[Launch, ...], gpu: Gpu, costs: Costs) -> float:
    return sum(_kernel_s(launch, gpu, costs) for launch in launches)


def _kernel_s(launch: Launch, gpu: Gpu, costs: Costs) -> float:
    share = costs.product_share if launch.name in PRODUCTS else 1.0
    reading_s = launch.num_bytes / (share * gpu.bandwidth)
    fixed_s = costs.kernel_s + costs.draw_s * (launch.name == "_draw")
    return fixed_s + max(reading_s, launch.num_flops / (costs.flops_share * gpu.peak_flops))


def host_s(counted: Counted, costs: Costs) -> float:
    """Of all launches; a captured graph is one."""
    each_s = {"torch": costs.torch_s, "ours": costs.ours_s, "copy": costs.copy_s}
    eager_s = sum(each_s[launch.kind] for launch in counted.launches if not launch.is_captured)
    return eager_s + counted.num_replays * costs.graph_s


def step_s(counted: Counted, gpu: Gpu, costs: Costs) -> float:
    """Of a step that is launched ahead."""
    return max(device_s(counted.launches, gpu, costs), host_s(counted, costs))


def gaps_s(steps: tuple[Counted, Counted], gpu: Gpu, costs: Costs) -> list[tuple[float, float]]:
    """(share, seconds) of the gaps between steps in which all decode, and mixed ones in any order."""
    shares, found = (1 - MIXED_SHARE, MIXED_SHARE), []
    for before, share in zip(steps, shares, strict=True):
        after_s = device_s(before.launches[len(before.launches) - before.num_after :], gpu, costs)
        for step, other in zip(steps, shares, strict=True):
            begin_s = device_s(step.launches[: step.num_before], gpu, costs)
            found.append((share * other, after_s + begin_s + costs.kernel_s))
    return found


def quantile(weighted: list[tuple[float, float]], level: float) -> float:
    """The smallest value at which the shares of (share, value) reach `level`."""
    reached = 0.0
    for share, value in sorted(weighted, key=lambda each: each[1]):
        reached += share
        if reached >= level - 1e-9:
            return value
    raise ValueError(f"the shares add up to {reached}")


def config_of(shape: dict[str, Any]) -> Any:
    tied = {"tie_word_embeddings": False} | shape
    return LlamaConfig(
        **tied, max_position_embeddings=131_072, architectures=["LlamaForCausalLM"], eos_token_id=None
    )


def rows_of(name: str, shape: dict[str, Any], slots: int) -> Iterator[dict[str, Any]]:
    """One row for each kind of step."""
    config = config_of(shape)
    model = CountedModel(config, slots, MAX_MODEL_TOKENS, CONTEXT_TOKENS)
    greedy, drawn, mixed = model.decode(drawn=False), model.decode(drawn=True), model.mixed()
    floor_bytes = model.weight_bytes + slots * CONTEXT_TOKENS * kv_token_bytes(config)
    for kind, counted in (("greedy", greedy), ("drawn", drawn), ("mixed", mixed)):
        first: dict[str, Any] = {"model": name, "slots": slots, "step": kind}
        compared = floor_bytes if kind != "mixed" else None
        yield first | counts_of(counted) | times_of(counted, compared) | gap_of(kind, (greedy, mixed))


def kv_token_bytes(config: Any) -> int:
    head_dim = config.hidden_size // config.num_attention_heads
    return int(2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim)


def counts_of(counted: Counted) -> dict[str, Any]:
    launches = counted.launches
    return {
        "launches": len(launches),
        "captured": sum(launch.is_captured for launch in launches),
        "copies": sum(launch.kind == "copy" for launch in launches),
        "GB": round(sum(launch.num_bytes for launch in launches) / 1e9, 3),
    }


def times_of(counted: Counted, floor_bytes: int | None) -> dict[str, Any]:
    """`floor_bytes`: None for a step that is more than reading."""
    found: dict[str, Any] = {"host ms": _between(host_s(counted, costs) for costs in BOTH)}
    for gpu in GPUS:
        found[f"{gpu.name} device ms"] = _between(device_s(counted.launches, gpu, costs) for costs in BOTH)
        found[f"{gpu.name} floor ms"] = found[f"{gpu.name} over floor"] = ""
        if floor_bytes is not None:
            floor_s = floor_bytes / gpu.bandwidth
            found[f"{gpu.name} floor ms"] = round(floor_s * 1e3, 2)
            over = (step_s(counted, gpu, costs) for costs in BOTH)
            found[f"{gpu.name} over floor"] = _between(over, 1 / floor_s)
    return found


def gap_of(kind: str, steps: tuple[Counted, Counted]) -> dict[str, Any]:
    """Of the H100: the gap is launches, so bandwidth hardly matters. Drawn steps are in no mixture."""
    if kind != "mixed":
        return {"gap p50 us": "", "gap p99 us": ""}
    pairs = [gaps_s(steps, GPUS[0], costs) for costs in BOTH]
    return {
        f"gap p{level * 100:.0f} us": _between((quantile(each, level) for each in pairs), 1e6, 0)
        for level in (0.5, 0.99)
    }


def _between(seconds: Any, unit: float = 1e3, digits: int = 2) -> str:
    return " to ".join(f"{each * unit:.{digits}f}" for each in seconds)


def predicted(shape: dict[str, Any], slots: int, context_tokens: int, gpu: Gpu) -> tuple[float, float]:
    """The better and the worse prediction for a greedy step of `slots` slots, in seconds."""
    counted = CountedModel(config_of(shape), slots, MAX_MODEL_TOKENS, context_tokens).decode(drawn=False)
    better, worse = (step_s(counted, gpu, costs) for costs in BOTH)
    return better, worse


def main() -> None:
    parser = command_line(__doc__, quick="a tiny model: does it run at all?")
    asked = parser.parse_args()
    models, sizes = ({"tiny": TINY}, QUICK_SLOTS) if asked.quick else (MODELS, SLOTS)
    cases = [(name, shape, slots) for name, shape in models.items() for slots in sizes]
    rows = [row for case in tqdm(cases, "counting") for row in rows_of(*case)]
    if asked.json:
        assumed = {"gpus": [asdict(gpu) for gpu in GPUS], "better": asdict(BETTER), "worse": asdict(WORSE)}
        what = "predicted from counts; nothing was run on a GPU"
        write_result(asked.json, {"what": what, "assumed": assumed, "rows": rows})
    print("predicted from counts, not measured:")
    print(table(rows))


if __name__ == "__main__":
    main()
