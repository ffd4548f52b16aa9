"""The launcher's command line. Holds a run directory while the launcher lives.

    python -m python_backends.launcher [--settings gapless.toml]
                                       [--set model.directory=… --set engine.slots=64]

Ctrl-C or SIGTERM drains: open requests may end, new ones are refused. A second one ends the server at once.
"""

from __future__ import annotations

import argparse
import logging
import sys

import setproctitle

from python_backends.engine.choice import choose
from python_backends.engine.kinds import kind_of
from python_backends.launcher import run_directories
from python_backends.launcher.health import GiveUpError
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.supervisor import Supervisor
from python_backends.linux.loop_processor import keep_off
from python_backends.linux.time_slice import take_short_turns
from python_backends.settings import SettingsError
from python_backends.settings.command_line import add_arguments, settings_of
from python_backends.settings.writing import help_text

log = logging.getLogger("gapless")

EPILOG = """\
example: python -m python_backends.launcher --set model.directory=/models/qwen --set engine.slots=64

A setting comes from the command line, else from the environment (GAPLESS_ENGINE__SLOTS for engine.slots),
else from gapless.toml. These are all:
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gapless",
        description="Serves a language model on NVIDIA Triton Inference Server.",
        epilog=f"{EPILOG}\n{help_text()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return parser.parse_args()


def main() -> int:
    setproctitle.setproctitle("gapless-launcher")
    logging.basicConfig(level=logging.INFO, format="gapless: %(message)s", stream=sys.stderr)
    asked = arguments()
    parent = run_directories.parent()
    run_directories.sweep(parent)
    try:
        with run_directories.held(parent) as run_directory:
            choice = choose(settings_of(asked))
            for reason in choice.reasons:
                log.info("%s", reason)
            settings = choice.settings
            engine = kind_of(settings)
            # tritonserver and its models inherit this; instances set their own
            take_short_turns(interrupting=not engine.gives_way)
            processors = keep_off() if engine.gives_way else None
            Supervisor(settings, RunFiles(run_directory, settings), processors).serve()
    except (SettingsError, GiveUpError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
