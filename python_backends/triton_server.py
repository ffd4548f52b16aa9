"""The tritonserver process: its command line, its health and its end.

Uses the server and the Python backend that the wheel `nvidia-pytriton` carries, or those of a container where there is one. Knows how a
dead stub shows (its process is gone while the server goes on saying "ready") and what brings its model back. The launcher decides.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

from python_backends.config import ROOT, ServerSettings, SettingsError

log = logging.getLogger("gapless")

STUBS = ("tokenizer", "scheduler", "detokenizer")  # without any of them nothing is served
PREDICTOR = "length_predictor"
MODELS = (*STUBS, "ensemble", PREDICTOR)
STUB = "triton_python_backend_stub"
STUB_PYTHON = "GAPLESS_STUB_PYTHON"  # names another Python for the stubs, where ours has numpy 2
RESTRICTED = ("shared-memory", "model-repository", "trace", "logging")  # what only the launcher may use
NOISE = ("Signal (15) received",)
WITHOUT_GPU = ("CUDA driver version is insufficient", "CudaDriverHelper", "NVML", "DCGM", "pinned memory pool", "pinned system memory")
OPEN_REQUESTS = ("gapless_requests_running ", "gapless_requests_waiting ")
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")  # killed as soon as the launcher is gone, however that ended
EXIT_TIMEOUT_S = 3  # Triton refuses the later steps of an ensemble while it exits: it is asked to only when nothing is open
SHARED_BYTES = 1 << 24  # with each model, taken at once: stubs died, it seems while smaller ones grew
ALLOCATOR = {  # glibc's: docs/limits.md, Memory
    "MALLOC_ARENA_MAX": "2",  # not one for each of a hundred threads, each with pages of its own that nobody else can use
    "MALLOC_MMAP_THRESHOLD_": "131072",  # bytes; fixed: else the first long prompt raises it, and the next ones leave holes in the heap
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}
UNLOAD_S, LOAD_S = 6.0, 60.0
ANSWER_S = 5.0  # for a question that it answers from memory
CONTAINER_SERVER = Path("/opt/tritonserver")


class TritonServer:
    def __init__(self, settings: ServerSettings, run_directory: Path, predicts_lengths: bool) -> None:
        self._settings = settings
        self._watched = (*STUBS, PREDICTOR) if predicts_lengths else STUBS
        self._run_directory = run_directory
        self._key = ("gapless-key", secrets.token_hex(16))
        self._process: subprocess.Popen[str] | None = None
        self._stubs: dict[str, psutil.Process] = {}
        self._binary, self._backends, self._libraries = _locate(run_directory)

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*DIES_WITH_PARENT, *self._command()],
            env=self._environment(),
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=_relay, args=[self._process.stdout], name="server log", daemon=True).start()

    def check_ports(self) -> None:
        """Raises SettingsError if somebody else listens on one of them: it would answer for us."""
        for name in ("http_port", "grpc_port", "metrics_port"):
            port = getattr(self._settings, name)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self._settings.address, port))
                except OSError as error:
                    raise SettingsError(f"server.{name} = {port}: {error.strerror or error} on {self._settings.address}") from error

    def is_ready(self) -> bool:
        return self.is_running and self._get("/v2/health/ready")[0] == 200 and not self.dead_stubs() & set(STUBS)

    def answers(self) -> bool:
        """Whether it says that the ensemble takes requests. It goes on saying so when a stub is dead."""
        return self._get("/v2/models/ensemble/ready", timeout_s=ANSWER_S)[0] == 200

    def dead_stubs(self) -> set[str]:
        """Names of the models whose stub process is gone."""
        missing = set(self._watched) - {model for model, stub in self._stubs.items() if stub.is_running() and _models_of(stub)}
        if missing:  # only then are all processes of the machine looked through
            self._stubs = self._find_stubs()
        return set(self._watched) - self._stubs.keys()

    def _find_stubs(self) -> dict[str, psutil.Process]:
        assert self._process is not None
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        return {model: child for child in children for model in _models_of(child)}

    def reload(self, model: str) -> bool:
        """Brings a model whose stub has died back; the others don't notice. `load` alone would do nothing.

        False if it can't be done, or not soon: a request that died inside the stub may keep Triton from unloading for ever.
        """
        path = f"/v2/repository/models/{model}"
        return all(self._post(f"{path}/{verb}", timeout_s) == 200 for verb, timeout_s in (("unload", UNLOAD_S), ("load", LOAD_S)))

    def has_open_requests(self) -> bool:
        """As /metrics says. A server that can't be asked may have some."""
        status, text = self._get("/metrics", self._settings.metrics_port)
        if status != 200:
            return self.is_running
        return any(float(line.split()[-1]) > 0 for line in text.splitlines() if line.startswith(OPEN_REQUESTS))

    def stop(self) -> None:
        """Ends the server, nicely if it will, and everything that is left of it."""
        if self._process is None:
            return
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_TIMEOUT_S + 1)
        self.kill()

    def kill(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # orphaned stubs are in its group
        self._process.wait()
        remove_shared_memory(self._run_directory)

    def _command(self) -> list[str]:
        settings, (header, value) = self._settings, self._key
        closed = ",".join(RESTRICTED if settings.statistics else (*RESTRICTED, "statistics"))
        return [
            str(self._binary),
            f"--model-repository={ROOT / settings.model_repository}",
            f"--backend-directory={self._backends}",
            "--model-control-mode=explicit",  # so that one model can be brought back
            *(f"--load-model={model}" for model in (*self._watched, "ensemble")),
            f"--http-address={settings.address}",
            f"--http-port={settings.http_port}",
            f"--grpc-address={settings.address}",
            f"--grpc-port={settings.grpc_port}",
            f"--metrics-address={settings.address}",
            f"--metrics-port={settings.metrics_port}",
            f"--http-restricted-api={closed}:{header}={value}",
            f"--grpc-restricted-protocol={closed}:{header}={value}",
            "--grpc-keepalive-time=10000",  # ms; finds dead connections
            "--grpc-keepalive-timeout=5000",
            "--pinned-memory-pool-byte-size=0",  # tensors here are small and stay on the host
            "--allow-gpu-metrics=false",  # needs DCGM, which few hosts have
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            f"--log-info={str(settings.verbose).lower()}",
            f"--backend-config=python,shm-region-prefix-name={self._run_directory.name}-",
            f"--backend-config=python,shm-default-byte-size={SHARED_BYTES}",
            f"--backend-config=python,stub-timeout-seconds={int(settings.ready_s)}",
            *(_trace_options(settings) if settings.trace_url else ()),
        ]

    def _environment(self) -> dict[str, str]:
        libraries = [str(path) for path in self._libraries] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
        return {
            **ALLOCATOR,
            **os.environ,
            "PATH": f"{Path(os.environ.get(STUB_PYTHON, sys.executable)).parent}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "PYTHONPATH": str(ROOT),
            "GAPLESS_RUN_DIRECTORY": str(self._run_directory),
            "TQDM_DISABLE": "1",
            "OMP_NUM_THREADS": "1",  # the processors belong to the engine
            "TOKENIZERS_PARALLELISM": "false",
        }

    def _get(self, path: str, port: int = 0, timeout_s: float = 60) -> tuple[int, str]:
        return self._ask("GET", path, port or self._settings.http_port, timeout_s)

    def _post(self, path: str, timeout_s: float) -> int:
        return self._ask("POST", path, self._settings.http_port, timeout_s)[0]

    def _ask(self, method: str, path: str, port: int, timeout_s: float = 60) -> tuple[int, str]:
        """HTTP status and text; status 0 if nobody answers sensibly."""
        connection = http.client.HTTPConnection(self._settings.address, port, timeout=timeout_s)
        try:
            connection.request(method, path, "{}" if method == "POST" else None, dict([self._key]))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()


def _trace_options(settings: ServerSettings) -> list[str]:
    """Triton's own spans, to the same receiver as ours."""
    sampling = ["mode=opentelemetry", "level=TIMESTAMPS", f"rate={settings.trace_every}"]
    receiver = [f"opentelemetry,url={settings.trace_url}", "opentelemetry,resource=service.name=gapless"]
    return [f"--trace-config={option}" for option in (*sampling, *receiver)]


def remove_shared_memory(run_directory: Path) -> None:
    """What the stubs of the server in this run directory have left."""
    for path in Path("/dev/shm").glob(f"{run_directory.name}-*"):
        path.unlink(missing_ok=True)


def _relay(lines: Iterable[str]) -> None:
    """Passes the server's log on, without what it says about every machine that has no GPU."""
    for line in lines:
        if not any(noise in line for noise in (*NOISE, *WITHOUT_GPU)):
            with contextlib.suppress(OSError):  # the terminal is gone
                sys.stderr.write(line)


def _models_of(process: psutil.Process) -> list[str]:
    """The model that a stub serves, by its command line."""
    try:
        line = process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []
    if not line or STUB not in line[0]:
        return []
    return [model for model in MODELS if any(f"/{model}/" in word for word in line)]


def _locate(run_directory: Path) -> tuple[Path, Path, list[Path]]:
    """(server, backend directory, library directories)."""
    if CONTAINER_SERVER.exists():
        return CONTAINER_SERVER / "bin/tritonserver", CONTAINER_SERVER / "backends", [CONTAINER_SERVER / "lib"]
    site = Path(sysconfig.get_path("purelib"))
    wheel = site / "pytriton/tritonserver"
    backends = run_directory / "backends"
    _assemble_backend(wheel, backends / "python")
    return wheel / "bin/tritonserver", backends, [Path(sysconfig.get_config_var("LIBDIR")), site / "nvidia_pytriton.libs"]


def _assemble_backend(wheel: Path, directory: Path) -> None:
    """The Python backend with the stub of *this* Python, linked together from the wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / version / STUB
    for source in [*(wheel / "backends/python").iterdir(), stub]:
        target = directory / source.name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        elif not target.exists():
            target.symlink_to(source)
