"""What we pass to TensorRT-LLM, and what its stand-in takes, exists in
TensorRT-LLM: signatures were read from its sources.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from python_backends.text.door.table import FIELDS

ROOT = Path(__file__).resolve().parents[2]
API: dict[str, Any] = json.loads((ROOT / "tests/trtllm_api.json").read_text())
ADAPTER = (ROOT / "python_backends/engine/tensorrt_llm/engine.py").read_text()

CALLS = {  # how the adapter calls it: where its parameters stand
    "LLM": ("tensorrt_llm.LLM.__init__", "tensorrt_llm.llmapi.TorchLlmArgs"),
    "SamplingParams": ("tensorrt_llm.SamplingParams",),
    "KvCacheConfig": ("tensorrt_llm.llmapi.KvCacheConfig",),
    "SchedulerConfig": ("tensorrt_llm.llmapi.SchedulerConfig",),
    "CudaGraphConfig": ("tensorrt_llm.llmapi.CudaGraphConfig",),
    "LoRARequest": ("tensorrt_llm.executor.LoRARequest",),
    "LoraConfig": ("tensorrt_llm.lora_helper.LoraConfig",),
    "generate_async": ("tensorrt_llm.LLM.generate_async",),
    "get_stats_async": ("tensorrt_llm.LLM.get_stats_async",),
}
OBJECTS = {  # what the adapter calls a thing: where its attributes stand
    "output": ("tensorrt_llm.llmapi.CompletionOutput",),
    "result": ("tensorrt_llm.llmapi.RequestOutput",),
    "policies": ("tensorrt_llm.llmapi.CapacitySchedulerPolicy",),
}
ROOMS = {
    "tensorrt_llm": {"LLM", "SamplingParams"},
    "tensorrt_llm.executor": {"LoRARequest"},
    "tensorrt_llm.lora_helper": {"LoraConfig"},
}


def names(key: str) -> set[str]:
    """Everything that can be passed to it or looked up on it, in any version that was read."""
    entry = API[key]
    found = [
        *entry.get("params", []),
        *entry.get("properties", []),
        *entry.get("attributes", []),
        *entry.get("methods", {}),
    ]
    found += [*entry.get("newer", {}).get("added", []), *entry.get("values", [])]
    return {name.split("=")[0] for name in found}


def wrong_names(source: str) -> list[str]:
    """What the adapter passes, reads or imports, and TensorRT-LLM doesn't have."""
    tree = ast.parse(source)
    return [*_wrong_keywords(tree), *_wrong_attributes(tree), *_wrong_imports(tree)]


def _wrong_keywords(tree: ast.AST) -> list[str]:
    wrong = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if called in CALLS:
            known = set().union(*map(names, CALLS[called]))
            wrong += [
                f"{called}({word.arg}=)" for word in call.keywords if word.arg and word.arg not in known
            ]
            wrong += [f"{called}: an argument without its name"] if call.args else []
    return wrong


def _wrong_attributes(tree: ast.AST) -> list[str]:
    reads = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    return [
        f"{node.value.id}.{node.attr}"
        for node in reads
        if isinstance(node.value, ast.Name) and node.value.id in OBJECTS
        if not any(node.attr in names(key) for key in OBJECTS[node.value.id])
    ]


def _wrong_imports(tree: ast.AST) -> list[str]:
    taken = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    exported = {
        "tensorrt_llm.llmapi": set(
            API["tensorrt_llm.llmapi.__all__"]["common_to_the_texts_read_with_TorchLlmArgs"]
        ),
        **ROOMS,
    }
    ours = [(room, name) for room, name in taken if room and room.startswith("tensorrt_llm")]
    return [f"from {room} import {name}" for room, name in ours if name not in exported.get(room, set())]


def test_everything_that_the_adapter_names_exists_in_tensorrt_llm() -> None:
    assert wrong_names(ADAPTER) == []


@pytest.mark.parametrize("called", CALLS)
def test_the_adapter_spells_out_the_arguments_of_each_call(called: str) -> None:
    """A call that this test can't see would not be compared."""
    calls = [node for node in ast.walk(ast.parse(ADAPTER)) if isinstance(node, ast.Call)]
    spelled = [
        call for call in calls if called in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))
    ]
    assert spelled
    assert all(any(word.arg for word in call.keywords) for call in spelled)


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("max_batch_size=engine.slots,\n", "max_num_slots=engine.slots,\n", "LLM(max_num_slots=)"),
        ("sampling_params=self", "sampling=self", "generate_async(sampling=)"),
        ("inputs=admit", "prompt_token_ids=admit", "generate_async(prompt_token_ids=)"),
        ("bad_token_ids=", "bad_words=", "SamplingParams(bad_words=)"),
        ("get_stats_async(timeout=", "get_stats_async(timeout_s=", "get_stats_async(timeout_s=)"),
        ("tokens_per_block=", "block_size=", "KvCacheConfig(block_size=)"),
        ("capacity_scheduler_policy=", "policy=", "SchedulerConfig(policy=)"),
        ("lora_int_id=", "lora_id=", "LoRARequest(lora_id=)"),
        ("max_lora_rank=", "max_rank=", "LoraConfig(max_rank=)"),
        ("output.token_ids_diff", "output.new_token_ids", "output.new_token_ids"),
        ("result.abort()", "result.cancel()", "result.cancel"),
        ("policies.MAX_UTILIZATION", "policies.MAXIMUM", "policies.MAXIMUM"),
        ("import LoRARequest", "import LoraRequest", "from tensorrt_llm.executor import LoraRequest"),
        ("RequestError,", "EngineDeadError,", "from tensorrt_llm.llmapi import EngineDeadError"),
        ("inputs=admit", "admit", "generate_async: an argument without its name"),
    ],
)
def test_a_wrong_name_in_the_adapter_is_found(right: str, wrong: str, found: str) -> None:
    assert right in ADAPTER
    assert found in wrong_names(ADAPTER.replace(right, wrong, 1))


# --- the stand-in

SIGNATURES = [
    *(
        "tensorrt_llm.LLM.__init__",
        "tensorrt_llm.LLM.generate_async",
        "tensorrt_llm.LLM.shutdown",
        "tensorrt_llm.LLM.get_stats_async",
    ),
    *(
        "tensorrt_llm.SamplingParams",
        "tensorrt_llm.llmapi.KvCacheConfig",
        "tensorrt_llm.llmapi.SchedulerConfig",
    ),
    *(
        "tensorrt_llm.llmapi.CudaGraphConfig",
        "tensorrt_llm.executor.LoRARequest",
        "tensorrt_llm.lora_helper.LoraConfig",
    ),
    "tensorrt_llm.llmapi.CompletionOutput",
]


def found_at(path: str) -> Any:
    """The stand-in's object of this name."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ImportError(path)


def parameters(found: Any) -> dict[str, Any]:
    """Its parameters with their defaults, in order; of a method without self."""
    return {name: item for name, item in inspect.signature(found).parameters.items() if name != "self"}


def written(item: inspect.Parameter) -> str:
    """A parameter as the API file writes it."""
    if item.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{item.name}"
    default = getattr(item.default, "name", item.default)
    return item.name if item.default is inspect.Parameter.empty else f"{item.name}={default!r}"


def ignored(adapter: str) -> set[str]:
    """Attributes of `Sampling` that a field sets and `_sampling_params` does not read."""
    function = next(
        node
        for node in ast.walk(ast.parse(adapter))
        if isinstance(node, ast.FunctionDef) and node.name == "_sampling_params"
    )
    read = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return {field.sampling for field in FIELDS.values() if field.sampling} - read


def test_every_field_that_chooses_tokens_is_passed_on() -> None:
    """One that TensorRT-LLM does not have must be refused: it has to be in `unsupported` then, and here."""
    assert ignored(ADAPTER) == set()


def test_a_field_that_is_not_passed_on_is_found() -> None:
    assert ignored(ADAPTER.replace("asked.min_p", "0")) == {"min_p"}


@pytest.mark.parametrize("path", SIGNATURES)
def test_the_stand_in_has_tensorrt_llms_signatures(path: str) -> None:
    ours = parameters(found_at(path))
    theirs = {text.lstrip("*").split("=")[0]: text for text in API[path]["params"]}
    assert list(ours) == list(theirs)
    for name, text in theirs.items():
        if "=" in text:  # else the file doesn't say whether there is a default
            assert written(ours[name]).replace("'", "") == text.replace("'", "")


@pytest.mark.parametrize(
    "path", ["tensorrt_llm.llmapi.RequestOutput", "tensorrt_llm.executor.result.GenerationResult"]
)
def test_the_stand_ins_results_have_what_tensorrt_llms_have(path: str) -> None:
    wanted = API[path]
    assert all(hasattr(found_at(path), name) for name in wanted["methods"])
    result = found_at("tensorrt_llm.executor.result.RequestOutput")(1, [1], lambda number: None)
    assert all(hasattr(result, name) for name in [*wanted["properties"], *wanted["attributes"]])


def test_the_stand_ins_outputs_have_what_tensorrt_llms_have() -> None:
    wanted = API["tensorrt_llm.llmapi.CompletionOutput"]
    output = found_at("tensorrt_llm.llmapi.CompletionOutput")(0)
    assert [field.name for field in dataclasses.fields(output)] == wanted["params"]
    assert all(hasattr(output, name) for name in wanted["properties"])


def test_the_stand_ins_errors_and_policies_are_tensorrt_llms() -> None:
    assert found_at("tensorrt_llm.llmapi.RequestError").__bases__ == (RuntimeError,)
    assert found_at("tensorrt_llm.llmapi.RequestError") is found_at(
        "tensorrt_llm.executor.utils.RequestError"
    )
    assert list(parameters(found_at("tensorrt_llm.executor.utils.EngineDeadError"))) == ["root_cause"]
    values = {item.name for item in found_at("tensorrt_llm.llmapi.CapacitySchedulerPolicy")}
    assert values == set(API["tensorrt_llm.llmapi.CapacitySchedulerPolicy"]["values"])
    assert set(found_at("tensorrt_llm.llmapi").__all__) <= set(API["tensorrt_llm.llmapi.__all__"]["relevant"])
