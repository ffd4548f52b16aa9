"""Serves a model: starts the launcher, and holds a run directory while it lives.

    gapless serve [MODEL] [--settings gapless.toml] [--slots 64 --set engine.kv_memory_gib=4]

Ctrl-C or SIGTERM drains: open requests may end, new ones are refused. A second one ends the server at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import setproctitle

from commands.model import located
from commands.settings import help_text
from python_backends.cluster.policies import policy_of as cluster_policy
from python_backends.engine.choice import choose
from python_backends.engine.kinds import kind_of
from python_backends.launcher import run_directories
from python_backends.launcher.address import API_KEY, check_key
from python_backends.launcher.health import GiveUpError
from python_backends.launcher.paths import check_paths
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.supervisor import STOPPING, Supervisor
from python_backends.launcher.triton_files import lacking
from python_backends.linux import quota
from python_backends.linux.loop_processor import keep_off
from python_backends.linux.process_group import obeyed
from python_backends.linux.start_clock import start_clock
from python_backends.linux.time_slice import take_short_turns
from python_backends.scheduling.policies import policy_of as scheduling_policy
from python_backends.settings import AUTO, BUNDLED, SettingsError, add_arguments, of_command_line

log = logging.getLogger("gapless")

SHORT = (  # names that users of other servers know, and the settings that they mean
    (("--host",), "server.address", "the address that all ports listen on"),
    (("--port",), "front.port", "of the interface of OpenAI and the page"),
    (("--served-model-name",), "front.model_names", "what clients of /v1 call the model; several: A,B"),
    (("--slots", "--max-num-seqs"), "engine.slots", "most requests that are computed at the same time"),
    (("--max-model-len",), "model.max_model_tokens", "most tokens of prompt and answer together"),
    (("--dtype",), "model.dtype", "float32 or bfloat16"),
    (("--device",), "model.device", "cpu or cuda"),
    (("--ssl-certfile",), "front.tls_certificate", "for https, PEM"),
    (("--ssl-keyfile",), "front.tls_key", "its private key, PEM"),
)
EPILOG = """\
examples:
  gapless serve Qwen/Qwen2.5-0.5B-Instruct --slots 64
  gapless serve ./my-model --host 0.0.0.0 --port 9000 --api-key sk-mine
  gapless serve my-model.gguf --set adapters.directory=adapters --set engine.kv_memory_gib=4

A setting comes from the command line, else from the environment (GAPLESS_ENGINE__SLOTS for engine.slots),
else from gapless.toml. These are all:
"""


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Serves a language model on NVIDIA Triton Inference Server.",
        epilog=f"{EPILOG}\n{help_text()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a directory, a GGUF file, ORG/NAME on the hub, or bundled; default: SmolLM2-135M-Instruct",
    )
    add_arguments(parser)
    for names, setting, meaning in SHORT:
        parser.add_argument(
            *names,
            action="append",
            type=f"{setting}={{}}".format,
            dest="overrides",
            metavar=names[0].strip("-").upper(),
            help=f"{meaning}: {setting}",
        )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"that clients of /v1 have to send; {API_KEY} in the environment"
    )
    return parser


def arguments() -> argparse.Namespace:
    """A key goes into the environment, which the front inherits."""
    parser = command_parser()
    asked = parser.parse_args()
    if asked.api_key is not None:
        if not asked.api_key.strip():
            parser.error("--api-key: must not be blank; without a key, leave it out")
        os.environ[API_KEY] = asked.api_key
    if asked.model is not None:
        asked.overrides = [*asked.overrides, f"model.directory={_path_or_name(asked.model)}"]
    return asked


def _path_or_name(given: str) -> str:
    """A path in full, so that it is found wherever the command was given."""
    path = Path(given)
    return str(path.absolute()) if given not in (AUTO, BUNDLED) and path.exists() else given


def open_standard_files() -> None:
    """Gives those that the launcher was started without to /dev/null. Else a socket would get the number of
    one, and the log of all processes would go there.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


@contextmanager
def _written_in(parent: Path) -> Iterator[None]:
    """Raises SettingsError where the run directory can't be made or written there."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"the run directory can't be made in {parent}: {error.strerror or error};"
            f" {'RUNTIME_DIRECTORY' if os.geteuid() == 0 else 'TMPDIR'} names another place"
        ) from error


def main() -> int:
    start_clock.ended("imports")
    for name in obeyed(*STOPPING):  # until the supervisor drains
        signal.signal(name, lambda *_: sys.exit(0))
    open_standard_files()
    setproctitle.setproctitle("gapless-launcher")
    logging.basicConfig(level=logging.INFO, format="gapless: %(message)s", stream=sys.stderr)
    asked = arguments()
    parent = run_directories.parent()
    run_directories.sweep(parent)
    try:
        with ExitStack() as held:
            with _written_in(parent):
                run_directory = held.enter_context(run_directories.held(parent))
            settings = of_command_line(asked)
            check_key(settings, os.environ)
            check_paths(settings)
            start_clock.ended("settings")
            choice = choose(located(settings))
            start_clock.ended("finding the model")
            for reason in choice.reasons:
                log.info("%s", reason)
            if limits := quota.as_text():
                log.info("%s", limits)
            settings = choice.settings
            gives_way = kind_of(settings).gives_way(settings)
            scheduling_policy(settings.scheduling)  # one of others is found now, or refused
            cluster_policy(settings.cluster)
            # tritonserver and its models inherit this; instances set their own
            take_short_turns(interrupting=not gives_way)
            processors = keep_off() if gives_way else None
            if missing := lacking():
                raise SettingsError(missing)
            with _written_in(parent):
                files = RunFiles(run_directory, settings)
            Supervisor(settings, files, processors).serve()
    except (SettingsError, GiveUpError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
