"""The certificate of https: its files, which may be renewed while the front serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from python_backends.settings import ROOT, FrontSettings, SettingsError

log = logging.getLogger("gapless.front")

LOOK_EVERY_S = 60.0


def tls_files(front: FrontSettings) -> tuple[str | None, str | None]:
    """The paths of the certificate and of its key; None: there is none. Raises SettingsError."""
    named = {"tls_certificate": front.tls_certificate, "tls_key": front.tls_key}
    if front.tls_key and not front.tls_certificate:
        raise SettingsError(f"front.tls_key = {front.tls_key!r}: needs front.tls_certificate")
    for name, path in named.items():
        try:
            (ROOT / path).open("rb").close() if path else None
        except OSError as error:
            raise SettingsError(f"front.{name} = {path!r}: can't be read: {error.strerror}") from error
    certificate, key = (str(ROOT / path) if path else None for path in named.values())
    if certificate is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            said = " and ".join(f"front.{name} = {path!r}" for name, path in named.items() if path)
            raise SettingsError(f"{said}: must be a certificate with its key, PEM: {error}") from error
    return certificate, key


class Renewal:
    """Reads the files again when they have changed. Connections that are open keep their certificate."""

    def __init__(self, front: FrontSettings, context: ssl.SSLContext) -> None:
        """`context` has what the files have now. Raises SettingsError and OSError."""
        self._front = front
        self._context = context
        self._files = tls_files(front)
        self._known = self._marks()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        try:
            if (marks := self._marks()) == self._known:
                return
            # on another context first: this one would lose its key to a certificate that does not fit
            certificate, key = tls_files(self._front)
            if certificate is not None:
                self._context.load_cert_chain(certificate, key)
            self._known = marks
            log.info("the certificate was read again")
        except (OSError, SettingsError) as error:
            log.warning("the certificate of before is served: %s", error)

    def _marks(self) -> list[tuple[int, int]]:
        """What is different of other files."""
        found = [Path(path).stat() for path in self._files if path is not None]
        return [(each.st_ino, each.st_mtime_ns) for each in found]
