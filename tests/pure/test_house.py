"""The house keeps its floors: imports go downward, heavy libraries stay in their
rooms, the wiring fits, settings are explained.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from commands.settings import gapless_toml
from python_backends.cluster.policies import POLICIES as CLUSTER_POLICIES
from python_backends.engine.kinds import KINDS
from python_backends.scheduling.policies import POLICIES
from python_backends.settings import (
    ClusterSettings,
    EngineSettings,
    SchedulingSettings,
    Settings,
    SettingsError,
    add_arguments,
    dump,
    load,
    of_command_line,
    read_settings,
)
from python_backends.settings.setting import allowed
from python_backends.watching.metrics import COUNTERS, DOOR_COUNTERS, GAUGES, HISTOGRAMS, LABELLED

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_backends"
ROOMS_OF = {  # libraries that stay in their rooms
    "torch": {"engine", "checkpoint"},  # there, only where a tensor is read
    "transformers": set(),  # the reference of tests alone
    "triton": {"engine"},  # the language; the server's Python is triton_python_backend_utils
    "zmq": {"wires", "moving"},
    "msgspec": {"nouns"},
    "tokenizers": {"text", "checkpoint"},
    "llguidance": {"guides"},
    "gguf": {"checkpoint"},
    "jinja2": {"text"},
    "triton_python_backend_utils": {"triton_models"},
    "psutil": {"launcher"},
    "sortedcontainers": {"scheduling"},
    "sentence_transformers": {"prediction"},
    "sklearn": {"prediction"},
    "tensorrt_llm": {"engine"},
    "opentelemetry": {"watching"},
    "huggingface_hub": {"checkpoint"},
    "httpx2": {"checkpoint"},
}
FORBIDDEN_WORDS = ("manager", "handler", "helper", "util", "factory", "driver", "controller")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return frozenset(found)


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_name(path: Path) -> str:
    """Within the package: checkpoint.gguf.header."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


CHECKPOINT = [path for path in MODULES if room(path) == "checkpoint"]
FOLDERS = sorted({path.parent for path in MODULES})


def imports_within(folder: Path) -> dict[str, set[str]]:
    """What each file and folder of `folder` imports of the others."""
    parts = folder.relative_to(ROOT).parts
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        here = path.relative_to(folder).parts[0].removesuffix(".py")
        names = [name.split(".") for name in imports(path)]
        within = {
            name[len(parts)]
            for name in names
            if tuple(name[: len(parts)]) == parts and len(name) > len(parts)
        }
        found[here] = found.get(here, set()) | within - {here}
    return found


def floors(imported: dict[str, set[str]]) -> list[set[str]]:
    """Each is above those that it imports. What imports each other has no floor, and is left out."""
    left, found = {name: below & imported.keys() for name, below in imported.items()}, []
    while lowest := {name for name, below in left.items() if not below & left.keys()}:
        found.append(lowest)
        left = {name: below for name, below in left.items() if name not in lowest}
    return found


def without_floor(folder: Path) -> set[str]:
    """What imports each other, of the files and folders of `folder`."""
    imported = imports_within(folder)
    return imported.keys() - set().union(*floors(imported))


def test_imports_go_downward_only() -> None:
    """From room to room, and from file to file inside a room."""
    assert {str(folder): names for folder in FOLDERS if (names := without_floor(folder))} == {}


def test_the_served_package_imports_nothing_that_stands_above_it() -> None:
    above = {"benchmarks", "build", "client", "commands", "front", "models", "tests"}
    assert not [path for path in MODULES if {name.split(".")[0] for name in imports(path)} & above]


def test_commands_import_neither_the_front_nor_the_client() -> None:
    """They start these as modules, by name."""
    above = {"benchmarks", "build", "client", "front", "models", "tests"}
    found = sorted((ROOT / "commands").rglob("*.py"))
    assert found
    assert not [path for path in found if {name.split(".")[0] for name in imports(path)} & above]


def test_what_imports_each_other_has_no_floor() -> None:
    assert floors({"a": {"b"}, "b": {"a"}, "c": set(), "d": {"c"}}) == [{"c"}, {"d"}]


def test_design_md_draws_the_floors_as_they_are() -> None:
    """Its table names every room once, and no room stands above one that it is imported by."""
    text = (ROOT / "docs/design.md").read_text()
    section = text[text.index("## Floors") : text.index("\n\n`engine/`")]
    drawn = [
        re.findall(r"`(\w+)/?`", row.split("|")[2]) for row in section.splitlines() if row.startswith("| L")
    ]
    imported = imports_within(PACKAGE)
    assert sorted(name for row in drawn for name in row) == sorted(imported.keys() - {"__init__"})
    depth = {name: number for number, row in enumerate(drawn) for name in row}
    for name, below in imported.items():
        assert all(depth[each] > depth[name] for each in below), name


def test_libraries_stay_in_their_rooms() -> None:
    imported = [(path, name) for path in MODULES for name in imports(path)]
    assert [
        (str(path), name)
        for path, name in imported
        if room(path) not in ROOMS_OF.get(name.split(".")[0], {room(path)})
    ] == []


def test_the_stubs_import_no_torch() -> None:
    """Rooms that the three models use, all the way down."""
    for path in MODULES:
        if room(path) not in ("checkpoint", "engine", "finetuning", "instance", "launcher"):
            reached = {name.split(".")[1] for name in imports(path) if name.startswith("python_backends.")}
            assert "engine" not in reached or engine_modules(path) <= {"kinds", "protocol"}
            assert "torch" not in imports(path)


def engine_modules(path: Path) -> set[str]:
    return {name.split(".")[2] for name in imports(path) if name.startswith("python_backends.engine.")}


IMPORTS_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"python_backends.{name}")
    assert "torch" not in sys.modules, name
"""


def test_what_is_asked_of_engines_and_checkpoints_brings_no_torch_along() -> None:
    modules = ["engine.kinds", "engine.protocol", *map(module_name, CHECKPOINT)]
    subprocess.run([sys.executable, "-c", IMPORTS_ALL, *modules], check=True, cwd=ROOT)


def test_opentelemetry_is_imported_only_when_tracing_is_switched_on() -> None:
    """By functions that ask the setting first; what stands at the top of a module is imported always."""
    tracing = {"python_backends.watching.spans", "python_backends.triton_models.tracing"}
    for path in MODULES:
        if path.stem not in ("spans", "tracing"):
            at_the_top = ast.Module(
                [node for node in parsed(path).body if not isinstance(node, ast.FunctionDef | ast.If)],
                [],
            )
            names = {node.module for node in ast.walk(at_the_top) if isinstance(node, ast.ImportFrom)}
            assert not names & tracing, path


def defined_names(path: Path) -> set[str]:
    """Of the module, its functions and its classes."""
    nodes = ast.walk(parsed(path))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {path.stem}


def test_names_are_the_fields_own() -> None:
    names = [(path, name) for path in MODULES for name in defined_names(path)]
    assert [
        (str(path), name) for path, name in names if set(FORBIDDEN_WORDS) & set(name.lower().split("_"))
    ] == []


def config(model: str) -> ModelConfig:
    return text_format.Parse((ROOT / "model_repository" / model / "config.pbtxt").read_text(), ModelConfig())


def test_the_wiring_of_the_ensemble_fits_names_and_types() -> None:
    ensemble = config("ensemble")
    known = {tensor.name: tensor.data_type for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = config(step.model_name)
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        assert set(step.input_map) == set(inputs)
        assert all(known[source] == inputs[name].data_type for name, source in step.input_map.items())
        known |= {target: outputs[name].data_type for name, target in step.output_map.items()}
    assert all(known[tensor.name] == tensor.data_type for tensor in ensemble.output)


@pytest.mark.parametrize("model", ["ensemble", "tokenizer", "scheduler", "detokenizer", "length_predictor"])
def test_every_model_takes_batches_of_64_and_is_one_import(model: str) -> None:
    written = config(model)
    assert written.name == model
    assert written.max_batch_size == 64
    assert written.model_transaction_policy.decoupled == (model in ("scheduler", "detokenizer"))
    source = ROOT / "model_repository" / model / "1/model.py"
    assert model == "ensemble" or len(ast.parse(source.read_text()).body) == 1


def test_the_tokenizer_answers_at_most_four_requests_together() -> None:
    assert list(config("tokenizer").dynamic_batching.preferred_batch_size) == [4]


def test_client_tensors_are_the_same_at_the_ensemble_and_the_tokenizer() -> None:
    assert list(config("ensemble").input) == [strip(tensor) for tensor in config("tokenizer").input]
    assert all(tensor.optional for tensor in config("ensemble").input)


def strip(tensor):  # type: ignore[no-untyped-def]
    """Ragged batches are the tokenizer's own affair."""
    tensor.allow_ragged_batch = False
    return tensor


def test_gapless_toml_explains_every_setting_with_its_default() -> None:
    """It is what `make settings` writes, and reading it gives the defaults."""
    assert (ROOT / "gapless.toml").read_text() == gapless_toml()
    assert load(ROOT / "gapless.toml") == Settings()


def test_settings_survive_the_run_directory(tmp_path: Path) -> None:
    settings = load(ROOT / "gapless.toml", {"engine.slots": "64", "model.random_weights": "true"})
    assert settings.engine.slots == 64
    dump(settings, tmp_path / "settings.json")
    assert read_settings(tmp_path / "settings.json") == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"engine.slots": "0"}, "engine.slots = 0: must be between 1 and 4096"),
        ({"engine.slots": "many"}, "must be of type int"),
        ({"engine.slot": "1"}, "unknown setting engine.slot"),
        ({"machine.slots": "1"}, "unknown setting machine.slots"),
        ({"model.dtype": "int3"}, "must be one of auto, float32, bfloat16"),
        (
            {"engine.kind": "openvino"},
            "engine.kind = 'openvino': does not exist any more; write 'auto'",
        ),
        ({"tensorrt_llm.adapters": "here"}, "tensorrt_llm.adapters is called adapters.directory now"),
        ({"finetuning.tpot_ms": "50"}, "finetuning.tpot_ms is called scheduling.late_token_ms now"),
        ({"cluster.min_instances": "2"}, "cluster.min_instances is called cluster.instances now"),
        ({"streams.coalescing_ms": "0"}, "unknown setting streams.coalescing_ms; there are max_open, "),
        (
            {"cluster.instances": "5", "cluster.max_instances": "4"},
            "cluster.instances = 5: must be at most cluster.max_instances = 4",
        ),
        (
            {"cluster.scale_up_tokens": "960"},
            "cluster.scale_up_tokens = 960: must be below cluster.scale_down_tokens = 960",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(
    override: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(ROOT / "gapless.toml", override)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"slots = 3", "slots: must be a section, one of model, engine,"),
        (b"engine = 3", "engine: must be a section"),
        (b"[machine]\nslots = 3", "machine: must be a section"),
        (b"[engine]\nslot = 3", "unknown setting engine.slot; there are kind, slots,"),
        (b"[engine]\nslots = true", "engine.slots = True: must be of type int"),
        (b"[engine", "gapless.toml: "),
        (b"# \xff", "gapless.toml: "),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "gapless.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(path)


def test_the_environment_goes_before_the_file_and_the_command_line_before_both() -> None:
    environment = {
        "GAPLESS_ENGINE__SLOTS": "32",
        "GAPLESS_ENGINE__KIND": "torch",
        "GAPLESS_MODEL": "no setting",
        "PATH": "/bin",
    }
    read = load(ROOT / "gapless.toml", {"engine.slots": "64"}, environment)
    assert (read.engine.kind, read.engine.slots) == ("torch", 64)
    with pytest.raises(SettingsError, match=r"unknown setting engine\.slot"):
        load(ROOT / "gapless.toml", {}, {"GAPLESS_ENGINE__SLOT": "32"})


def test_a_command_line_reads_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    monkeypatch.setenv("GAPLESS_ENGINE__SLOTS", "32")
    monkeypatch.setenv("GAPLESS_ENGINE__KIND", "torch")
    read = of_command_line(parser.parse_args(["--set", "engine.slots=64"]))
    assert (read.engine.kind, read.engine.slots) == ("torch", 64)


def test_nothing_is_read_by_pickle() -> None:
    """A pickle runs code of the one who wrote it."""
    ways = (
        r"\b(cloud)?(pickle|dill|marshal|shelve)\.loads?\b|import \w*(pickle|dill|marshal)|allow_pickle=True"
    )
    assert not [path for path in MODULES if re.search(ways, path.read_text())]


def test_every_setting_is_read_somewhere() -> None:
    """A setting that nothing reads does nothing."""
    code = "\n".join(path.read_text() for path in MODULES if room(path) != "settings")
    code += (PACKAGE / "settings/all_settings.py").read_text() + (
        PACKAGE / "settings/sections/engine.py"
    ).read_text()
    code += "\n".join(path.read_text() for path in (ROOT / "front").glob("*.py"))
    for section in dataclasses.fields(Settings):
        for field in dataclasses.fields(getattr(Settings(), section.name)):
            assert re.search(rf"\.{field.name}\b", code), f"{section.name}.{field.name}"


# --- state


def test_the_slot_tables_arrays_are_written_by_its_verbs_alone() -> None:
    """No other module assigns to an element of one of them."""
    tree = ast.parse((PACKAGE / "scheduling/state/slots.py").read_text())
    columns = {
        node.target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
    }
    assert {"computed", "planned", "known", "generations", "capacity"} <= columns
    for path in (PACKAGE / "scheduling").rglob("*.py"):
        if path.stem != "slots":
            assert not [name for name in written_elements(parsed(path)) if name in columns], path


def written_elements(tree: ast.AST) -> list[str]:
    """`x` of every `….x[…] = …` and `….x[…] += …`."""
    targets = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets += [each for target in node.targets for each in ast.walk(target)]
        elif isinstance(node, ast.AugAssign):
            targets += list(ast.walk(node.target))
    written = [
        node.value for node in targets if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    ]
    return [value.attr for value in written if isinstance(value, ast.Attribute)]


def test_a_write_to_an_array_is_found() -> None:
    assert written_elements(ast.parse("self.slots.computed[slot] = 3\na.b[1] += 1\nc = d.e[2]")) == [
        "computed",
        "b",
    ]


WRITERS = {  # of the attributes of a stream, besides the stream itself
    "submissions": {
        "instance",
        "last_request_epoch",
        "lost_slot",
        "num_prefilled",
        "previous",
        "request_epoch",
        "seated",
    },
    "quarantine": {"crash_mark", "crashed_at", "crashed_ns", "crashes"},
    "table": {"error", "first_token_ns", "num_cached", "prediction", "started_ns"},
    "unconfirmed": {"unacked_ns"},
}


def test_each_part_of_a_stream_has_one_writer() -> None:
    tree = ast.parse((PACKAGE / "streams/stream.py").read_text())
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert set().union(*WRITERS.values()) <= attributes
    for path in (PACKAGE / "streams").glob("*.py"):
        if path.stem != "stream":
            written = written_attributes(parsed(path)) & attributes
            assert written == WRITERS.get(path.stem, set()), path


def written_attributes(tree: ast.AST) -> set[str]:
    """Of other objects than `self`: `x` of `….x = …`, `….x += …`,
    `….x[…] = …` and `….x.pop()` and the like.
    """
    found = set()
    for node in ast.walk(tree):
        changed = None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            changed = node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            changed = node.value
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING
        ):
            changed = node.func.value
        if isinstance(changed, ast.Attribute) and not (
            isinstance(changed.value, ast.Name) and changed.value.id == "self"
        ):
            found.add(changed.attr)
    return found


CHANGING = ("append", "clear", "pop", "popleft", "extend", "update", "add", "discard", "remove")


def test_a_write_to_another_object_is_found() -> None:
    code = (
        "stream.a = 1\nstream.b += 1\nx.c[0] = 1\nstream.d[-1] = 2\nstream.e.pop()\nself.f ="
        " 1\nself.g.append(1)\ny = stream.h"
    )
    assert written_attributes(ast.parse(code)) == {"a", "b", "c", "d", "e"}


def test_every_policy_and_every_engine_can_be_chosen_by_a_setting() -> None:
    choices = {
        (section, field.name): set(allowed(field).choices)
        for section in (EngineSettings, SchedulingSettings, ClusterSettings)
        for field in dataclasses.fields(section)
    }
    assert choices[SchedulingSettings, "policy"] == POLICIES.keys()
    assert choices[ClusterSettings, "policy"] == CLUSTER_POLICIES.keys()
    assert choices[EngineSettings, "kind"] == {"auto", *KINDS}


def test_the_docs_have_a_row_for_every_policy() -> None:
    text = (ROOT / "docs/scheduling.md").read_text()
    section = text[text.index("### Policies") : text.index("### Step time")]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == POLICIES.keys()


# --- metrics


def test_every_metric_is_counted_somewhere_and_every_number_that_is_counted_is_a_metric() -> None:
    """A name that nothing counts stays 0; one that is not declared ends the export of all others."""
    declared = GAUGES.keys() | COUNTERS.keys() | HISTOGRAMS.keys()
    counted = set().union(*(names_of_metrics(path) for path in MODULES if path.stem != "metrics"))
    assert declared == counted - DOOR_COUNTERS.keys()
    assert {*LABELLED} <= declared


@cache
def names_of_metrics(path: Path) -> frozenset[str]:
    """Strings that have the form of one."""
    nodes = ast.walk(parsed(path))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str}
    return frozenset(string for string in strings if re.fullmatch(r"gapless_[a-z0-9_]+", string))


# --- tests


def test_what_tests_need_is_in_the_folder_support() -> None:
    tests = ROOT / "tests"
    apart = (tests / "support", tests / "standin")
    for path in tests.rglob("*.py"):
        if not any(path.is_relative_to(folder) for folder in apart):
            assert path.stem.startswith("test_") or path.stem in ("conftest", "__init__"), path
    for path in (tests / "support").rglob("*.py"):
        assert not path.stem.startswith("test_"), path
        named = [name for name in imports(path) if name.startswith("tests.")]
        assert all(name.startswith("tests.support") for name in named), path
