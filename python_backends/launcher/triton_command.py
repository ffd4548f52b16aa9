"""The command line and the environment of tritonserver."""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, in_url, ip_of, of_triton_http
from python_backends.launcher.namesakes import write_namesakes
from python_backends.launcher.triton_files import MODELS, TritonFiles
from python_backends.settings import ServerSettings
from python_backends.watching.board import VARIABLE, Board

log = logging.getLogger("gapless")

ONLY_IPV4 = (sys.executable, "-m", "python_backends.linux.ipv4_only")
STUB_PYTHON = "GAPLESS_STUB_PYTHON"  # another Python for the stubs, where the launcher's has numpy 2
RESTRICTED = ("shared-memory", "model-repository", "trace", "logging")  # only the launcher may use these
# Triton refuses the later steps of an ensemble while it exits: it is asked to exit when no request is open
EXIT_TIMEOUT_S = 3
# of each model, all of it from the start: stubs died, probably while a smaller one grew
SHARED_BYTES = 1 << 24
# threads that pass on what the stubs send; each of Triton's default of 32 would sleep most of the time
POOL_THREADS = 2
# of each of its threads: its JSON reader recurses (docs/limits.md); only the used part takes memory
STACK_BYTES = 512 << 20
PLATFORMS = ("AIP_", "SAGEMAKER_")  # variables of Vertex AI and SageMaker, by which Triton changes its doors
ACCOUNTS_FOR_ALL = 2  # vm.overcommit_memory: reserved memory counts, used or not
ALLOCATOR = {  # glibc's: docs/limits.md, Memory
    # else a hundred threads have an arena each, with pages that no other thread can use
    "MALLOC_ARENA_MAX": "2",
    # bytes; fixed: else the first long prompt raises it, and later ones leave unused gaps in the heap
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}


def command(
    settings: ServerSettings,
    files: TritonFiles,
    run_directory: Path,
    models: Iterable[str],
    key: tuple[str, str],
) -> list[str]:
    """Returns the command of a server that loads `models` and can load each of them again later. `key` is the
    secret header that gives access to the restricted endpoints.
    """
    return [
        *(ONLY_IPV4 if settings.address == ALL_IPV4 else ()),
        str(files.binary),
        f"--model-repository={MODELS}",
        *namesakes(settings, run_directory),
        f"--backend-directory={files.backends}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        *_interfaces(settings),
        *_restrictions(settings, key),
        "--pinned-memory-pool-byte-size=0",  # tensors here are small and stay on the host
        "--allow-gpu-metrics=false",  # needs DCGM, which few hosts have
        "--allow-vertex-ai=false",  # variables of the environment would open it, instead of ours
        "--allow-sagemaker=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--log-info={str(settings.verbose).lower()}",
        f"--backend-config=python,shm-region-prefix-name={run_directory.name}-",
        f"--backend-config=python,shm-default-byte-size={SHARED_BYTES}",
        f"--backend-config=python,stub-timeout-seconds={int(settings.ready_s)}",
        f"--backend-config=python,thread-pool-size={POOL_THREADS}",
        *(_trace_options(settings) if settings.trace_url else ()),
    ]


def stack_bytes() -> int:
    """Returns the stack size for tritonserver's threads: STACK_BYTES, or less if this host allows less. Logs
    a warning if it is less.
    """
    soft, hard = _stack_limits()
    # Linux gives no thread a stack as large as its memory
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = soft if _overcommit() == ACCOUNTS_FOR_ALL else min(hard, memory // 4)
    got = max(soft, min(STACK_BYTES, allowed))
    if got < STACK_BYTES:
        log.warning(
            "tritonserver's threads get stacks of %d MiB instead of %d: deeply nested JSON can end it"
            " (docs/limits.md)",
            got >> 20,
            STACK_BYTES >> 20,
        )
    return got


def _stack_limits() -> tuple[int, int]:
    """Returns the soft and the hard limit in bytes. Without a soft limit glibc gives a thread 2 MiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    unlimited = resource.RLIM_INFINITY
    return 2 << 20 if soft == unlimited else soft, STACK_BYTES if hard == unlimited else hard


def _overcommit() -> int:
    try:
        return int(Path("/proc/sys/vm/overcommit_memory").read_text())
    except (OSError, ValueError):
        return 0


def environment(files: TritonFiles, board: Board) -> dict[str, str]:
    """Returns tritonserver's environment, which the stubs inherit."""
    libraries = [str(path) for path in files.libraries] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return {
        **ALLOCATOR,
        **{name: value for name, value in os.environ.items() if not name.startswith(PLATFORMS)},
        "PATH": f"{Path(os.environ.get(STUB_PYTHON, sys.executable)).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "PYTHONPATH": ".",
        "GAPLESS_RUN_DIRECTORY": ".",
        "no_proxy": _no_proxy(),
        VARIABLE: str(board.fd),
        "TQDM_DISABLE": "1",
        "OMP_NUM_THREADS": "1",  # the processors belong to the engine
        "TOKENIZERS_PARALLELISM": "false",
    }


def _no_proxy() -> str:
    """This host is asked through no proxy: a collector of trace spans may listen on it."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return given if given.strip() == "*" else ",".join(filter(None, (given, "localhost", LOOPBACK, "::1")))


def namesakes(settings: ServerSettings, run_directory: Path) -> list[str]:
    """Returns the options for namesakes, and writes their files if they are missing. Raises OSError.

    Returns no options if `statistics` is set: perf_analyzer, which reads the statistics, asks for each inner
    model by its name.
    """
    if settings.statistics:
        return []
    return [
        "--model-namespacing=true",
        f"--model-repository={write_namesakes(run_directory / 'namesakes').name}",
    ]


def _interfaces(settings: ServerSettings) -> list[str]:
    ip = ip_of(settings.address)
    return [
        f"--http-address={of_triton_http(ip)}",
        f"--http-port={settings.http_port}",
        f"--grpc-address={in_url(ip)}",
        f"--grpc-port={settings.grpc_port}",
        f"--metrics-address={of_triton_http(ip)}",
        f"--metrics-port={settings.metrics_port}",
        "--grpc-keepalive-time=10000",  # ms; finds dead connections
        "--grpc-keepalive-timeout=20000",  # a host that stands still for less keeps them
        # ms; 300,000 by default: it would close the connection of a client that waits and pings more often
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
    ]


def _restrictions(settings: ServerSettings, key: tuple[str, str]) -> list[str]:
    closed = ",".join(RESTRICTED if settings.statistics else (*RESTRICTED, "statistics"))
    header, value = key
    return [
        f"--http-restricted-api={closed}:{header}={value}",
        f"--grpc-restricted-protocol={closed}:{header}={value}",
    ]


def _trace_options(settings: ServerSettings) -> list[str]:
    """Returns the options for Triton's own trace spans, which go to the same receiver as Gapless's."""
    sampling = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1"]
    receiver = [f"opentelemetry,url={settings.trace_url}", "opentelemetry,resource=service.name=gapless"]
    return [f"--trace-config={option}" for option in (*sampling, *receiver)]
