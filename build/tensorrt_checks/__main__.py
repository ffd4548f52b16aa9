"""Checks on a machine with a GPU that TensorRT-LLM does what the tensorrt_llm engine needs: run it first.

    python -m build.tensorrt_checks
    python -m build.tensorrt_checks --model /models/Llama-3.2-1B-Instruct --slots 32

It needs tensorrt_llm (the container nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3 has it), but neither
weights nor network: it writes a small Llama configuration, and TensorRT-LLM makes random weights. With
--model it uses a given checkpoint instead. It loads the engine twice: with max_utilization and a LoRA
adapter, and with the usual settings.

It prints one verdict a line: "ok" is a promise of docs/tensorrt_llm.md that holds, "FAIL" one that does not,
"note" a difference between versions of TensorRT-LLM. A field of requests that has no effect belongs
into `unsupported` of engine/tensorrt_llm/limits.py. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from build.tensorrt_checks.checks import OTHERWISE, USUAL, Check
from build.tensorrt_checks.model import write_adapter, write_model
from build.tensorrt_checks.serving import Serving
from python_backends.settings import (
    AdapterSettings,
    EngineSettings,
    ModelSettings,
    Settings,
    SettingsError,
    TensorRTLLMSettings,
)

BLOCK_TOKENS = 32


def say(passed: bool | None, text: str) -> bool:
    """Prints a verdict. Returns False if it is a failure."""
    print(f"{'note' if passed is None else 'ok  ' if passed else 'FAIL'} {text}", flush=True)
    return passed is not False


def usual_settings(asked: argparse.Namespace, directory: Path) -> Settings:
    dummy = {} if asked.model else {"load_format": "dummy"}
    return Settings(
        model=ModelSettings(
            directory=str(asked.model or write_model(directory / "model")), device="cuda", dtype="bfloat16"
        ),
        engine=EngineSettings(
            kind="tensorrt_llm",
            slots=asked.slots,
            block_tokens=BLOCK_TOKENS,
            kv_blocks=asked.slots * 1024 // BLOCK_TOKENS,
            token_budget=2048,
        ),
        tensorrt_llm=TensorRTLLMSettings(
            tensor_parallelism=asked.tensor_parallelism,
            arguments=json.dumps({**dummy, **asked.arguments}),
        ),
    )


def other_settings(settings: Settings, asked: argparse.Namespace, directory: Path) -> Settings:
    adapters = ""
    if not asked.model:
        with contextlib.suppress(ImportError):
            adapters = str(write_adapter(directory / "adapters" / "random").parent)
    chosen = replace(settings.tensorrt_llm, capacity="max_utilization")
    few = settings.engine.slots * 320 // BLOCK_TOKENS  # so that KV blocks are scarce, not slots
    return replace(
        settings,
        engine=replace(settings.engine, kv_blocks=few),
        tensorrt_llm=chosen,
        adapters=AdapterSettings(adapters),
    )


def run_checks(settings: Settings, checks: Sequence[Check]) -> bool:
    """Runs the checks. Returns False if one failed, or the engine could not be loaded."""
    started_s = time.monotonic()
    try:
        serving = Serving(settings)
    except SettingsError as error:
        return say(False, str(error))
    chosen = settings.tensorrt_llm
    say(
        True,
        f"loaded in {time.monotonic() - started_s:.0f} s: capacity {chosen.capacity}",
    )
    passed = True
    with serving:
        for check in checks:
            try:
                for verdict in check(serving):
                    passed &= say(*verdict)
            except Exception as error:
                return say(False, f"{check.__name__}: {error!r}")
    return passed


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIRECTORY",
        help="a checkpoint; default: a small Llama with random weights",
    )
    parser.add_argument("--slots", type=int, default=8, help="requests at the same time (default 8)")
    parser.add_argument(
        "--tensor-parallelism",
        type=int,
        default=1,
        metavar="GPUS",
        help="GPUs that share the model (default 1)",
    )
    parser.add_argument(
        "--arguments", type=json.loads, default={}, metavar="JSON", help="more arguments of tensorrt_llm.LLM"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    asked = arguments(given)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        import tensorrt_llm
    except (ImportError, OSError) as error:
        say(False, f"tensorrt_llm can't be imported: {error}")
        return 1
    say(
        None,
        f"tensorrt_llm {getattr(tensorrt_llm, '__version__', 'of unknown version')} on Python"
        f" {sys.version.split()[0]}",
    )
    with tempfile.TemporaryDirectory(prefix="gapless-check-") as name:
        settings = usual_settings(asked, Path(name))
        passed = run_checks(other_settings(settings, asked, Path(name)), OTHERWISE)
        passed = run_checks(settings, USUAL) and passed
    say(passed, "all checks passed" if passed else "not all checks passed; see above")
    return 0 if passed else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the last check has killed TensorRT-LLM's workers: its code at exit may never end
