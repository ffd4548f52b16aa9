"""The process: `python -m front RUN_DIRECTORY [NUMBER]`, started by the launcher."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

import setproctitle
import uvicorn

from client.channel import VARIABLES
from front.app import App
from front.attempts import Patience
from front.certificate import Renewal, tls_files
from front.connections import Connection
from front.health import is_up
from front.keys import read_keys
from front.lasting import LastingClient
from front.listening import listen
from front.model import Model
from python_backends.checkpoint.source import CheckpointError
from python_backends.launcher.address import ALL_IPV4, API_KEY, LOOPBACK, in_url, ip_of
from python_backends.linux.process_group import ASK
from python_backends.settings import ROOT, Settings, SettingsError, read_settings
from python_backends.watching.board import Board
from python_backends.watching.launcher_record import is_draining
from python_backends.wires.run_directory import SETTINGS

log = logging.getLogger("gapless.front")

KEEP_ALIVE_S = 75  # of an idle connection: longer than clients keep theirs
BEAT_EVERY_S = 0.5
END_S = 1  # for open answers, after the front was asked to end


async def serve(settings: Settings, run_directory: Path, number: int) -> None:
    """Serves as the front process of this number. Raises SettingsError, CheckpointError and OSError."""
    file = ROOT / settings.front.api_keys if settings.front.api_keys else None
    certificate, key = tls_files(settings.front)
    keys = read_keys(file, os.environ.get(API_KEY, ""))
    ip = ip_of(settings.server.address)
    url = f"{in_url(LOOPBACK if ip == ALL_IPV4 else ip)}:{settings.server.grpc_port}"
    board = Board.inherited()
    model = Model(settings, board)
    patience = Patience(
        is_up=partial(is_up, run_directory, settings.server.http_port),
        is_ending=partial(is_draining, board),
        longest_s=settings.server.ready_s,
        most_new=settings.streams.max_open,
    )
    async with LastingClient(url, patience) as client:
        app = App(settings, run_directory, model, client, keys, number)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=END_S,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        config.load()
        server = uvicorn.Server(config)

        def end() -> None:
            app.end()
            server.should_exit = True

        asyncio.get_running_loop().add_signal_handler(ASK, end)
        others = [asyncio.create_task(_beat(app)), asyncio.create_task(app.health.watch())]
        work = (app.batches, app.corrections, app.tinker.sessions)
        others += [asyncio.create_task(each.run()) for each in work]
        if config.ssl is not None:
            others.append(asyncio.create_task(Renewal(settings.front, config.ssl).run()))
        await server.serve([listen(ip, settings.front.port, settings.front.processes > 1)])
        for other in others:
            other.cancel()


async def _beat(app: App) -> None:
    """Shows the launcher that the loop turns."""
    while True:
        app.shared_metrics.beat()
        await asyncio.sleep(BEAT_EVERY_S)


def main(run_directory: Path, number: int = 0) -> int:
    setproctitle.setproctitle("gapless-front")
    logging.basicConfig(level=logging.INFO, format="front: %(message)s", stream=sys.stderr)
    lines = logging.getLogger("gapless.requests")
    lines.propagate = False
    lines.addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    signal.signal(ASK, lambda *_: sys.exit(0))  # until it serves
    for proxy in VARIABLES:  # it asks Triton alone, which is on this host
        os.environ.pop(proxy, None)
    try:
        asyncio.run(serve(read_settings(run_directory / SETTINGS), run_directory, number))
    except (SettingsError, CheckpointError, OSError) as error:
        log.error("the front can't be started: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
