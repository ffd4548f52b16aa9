"""The directory of adapters: which names and versions there are, and which of them can be served.

An adapter without a number has the beginning of its digest as its version. Everything new is read once, so
that what can't be served is refused when it appears, by name. Used by the adapters' thread.
Tested in tests/pure/test_adapters.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from python_backends.engine.adapter_directory import CONFIG, NAME, NUMBER, numbered
from python_backends.engine.protocol import BadAdapterError, ReadAdapter
from python_backends.nouns.request import AdapterVersion

log = logging.getLogger("gapless.instance")

Read = Callable[[Path, Path], ReadAdapter]  # of an adapter's directory and the root; raises BadAdapterError

FLAT_DIGITS = 8  # of the digest

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Checked:
    stamp: Stamp
    digest: str  # empty: it is not served


class AdapterFiles:
    def __init__(self, root: Path, read: Read) -> None:
        self._root = root
        self._read = read
        self._checked: dict[Path, _Checked] = {}
        self._warned: set[str] = set()

    def search(self) -> tuple[AdapterVersion, ...]:
        """What can be served, by name; of a name, the newest version is the last. Reads what is new."""
        found = []
        places = list(self._places())
        self._checked = {place: self._check(place) for _, _, place in places}
        for name, number, place in places:
            digest = self._checked[place].digest
            if digest:
                found.append(AdapterVersion(name, number or digest[:FLAT_DIGITS], digest))
        return tuple(found)

    def load(self, adapter: AdapterVersion) -> ReadAdapter:
        """Raises BadAdapterError, also if its content is not what it was when the request came."""
        if not NAME.fullmatch(adapter.name):
            raise BadAdapterError("it has no valid name")
        place = self._root / adapter.name
        if NUMBER.fullmatch(adapter.version) and (place / adapter.version).is_dir():
            place /= adapter.version
        read = self._read(place, self._root)
        if read.digest != adapter.digest:
            raise BadAdapterError("its files have been replaced by others")
        return read

    def _places(self) -> Iterator[tuple[str, str, Path]]:
        """(name, number or "", directory)"""
        try:
            directories = sorted(path for path in self._root.iterdir() if path.is_dir())
        except OSError as error:
            self._warn(str(self._root), f"adapters.directory = {str(self._root)!r}: {error}")
            return
        for directory in directories:
            if not NAME.fullmatch(directory.name):
                self._warn(
                    directory.name, f"adapter {directory.name!r:.200} is not served: its name is not valid"
                )
                continue
            try:
                is_adapter = (directory / CONFIG).exists()
            except OSError as error:  # others may not look into it
                self._warn(directory.name, f"adapter {directory.name} is not served: {error}")
                continue
            if is_adapter:
                yield directory.name, "", directory
            else:
                yield from ((directory.name, place.name, place) for place in numbered(directory))

    def _check(self, place: Path) -> _Checked:
        stamp = _stamp(place)
        known = self._checked.get(place)
        if known is not None and known.stamp == stamp:
            return known
        name = place.relative_to(self._root)
        try:
            digest = self._read(place, self._root).digest
            log.info("adapter %s is served", name)
        except BadAdapterError as error:
            digest = ""
            log.warning("adapter %s is not served: %s", name, error)
        except Exception:  # of memory, for example: one adapter must not end the thread, or the instance
            digest = ""
            log.exception("adapter %s is not served", name)
        return _Checked(stamp, digest)

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("%s", text)


def _stamp(place: Path) -> Stamp:
    """Changes with the files."""
    stamps = []
    for path in sorted(place.glob("adapter_*")):
        try:
            status = path.stat()
        except OSError:
            continue
        stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(stamps)
