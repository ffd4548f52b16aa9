"""Serves a model: starts the launcher, and holds a run directory while it lives.

    python -m commands.serve [--settings gapless.toml]
                             [--set model.directory=… --set engine.slots=64]

Ctrl-C or SIGTERM drains: open requests may end, new ones are refused. A second one ends the server at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

import setproctitle

from commands.model import located
from commands.settings import help_text
from python_backends.cluster.policies import policy_of as cluster_policy
from python_backends.engine.choice import choose
from python_backends.engine.kinds import kind_of
from python_backends.launcher import run_directories
from python_backends.launcher.address import check_key
from python_backends.launcher.health import GiveUpError
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.supervisor import STOPPING, Supervisor
from python_backends.linux import quota
from python_backends.linux.loop_processor import keep_off
from python_backends.linux.time_slice import take_short_turns
from python_backends.scheduling.policies import policy_of as scheduling_policy
from python_backends.settings import SettingsError, add_arguments, of_command_line

log = logging.getLogger("gapless")

EPILOG = """\
example: python -m commands.serve --set model.directory=/models/qwen --set engine.slots=64

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


def open_standard_files() -> None:
    """Gives those that the launcher was started without to /dev/null. Else a socket would get the number of
    one, and the log of all processes would go there.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> int:
    for name in STOPPING:  # until the supervisor drains
        signal.signal(name, lambda *_: sys.exit(0))
    open_standard_files()
    setproctitle.setproctitle("gapless-launcher")
    logging.basicConfig(level=logging.INFO, format="gapless: %(message)s", stream=sys.stderr)
    asked = arguments()
    parent = run_directories.parent()
    run_directories.sweep(parent)
    try:
        with run_directories.held(parent) as run_directory:
            settings = of_command_line(asked)
            check_key(settings, os.environ)
            choice = choose(located(settings))
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
            Supervisor(settings, RunFiles(run_directory, settings), processors).serve()
    except (SettingsError, GiveUpError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
