"""The directory of adapters: which names and versions there are, and which of them can be served.

An adapter without a number has the beginning of its digest as its version. Everything new is read once, so
that what can't be served is refused when it appears, by name. Used by the adapters' thread.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from python_backends.engine.adapter_directory import CONFIG, NAME, NUMBER, WEIGHTS
from python_backends.engine.protocol import BadAdapterError, ReadAdapter
from python_backends.nouns.request import AdapterVersion

log = logging.getLogger("gapless.instance")

Read = Callable[[Path, Path], ReadAdapter]  # of an adapter's directory and the root; raises BadAdapterError

FLAT_DIGITS = 8  # of the digest

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    number: str  # empty: it has no versions
    directory: Path
    is_newest: bool  # of its name


@dataclass(frozen=True, slots=True)
class _Checked:
    stamp: Stamp
    digest: str  # empty: it is not served


class AdapterFiles:
    def __init__(self, root: Path, read: Read, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._read = read
        self._clock = clock
        self._checked: dict[Path, _Checked] = {}
        self._warned: set[str] = set()
        self.has_more = False  # what the last search had no time to read
        self.look_s = 0.0  # processor time of the last search, without reading

    def search(self, seconds: float = math.inf, *, is_start: bool = False) -> tuple[AdapterVersion, ...]:
        """What can be served, by name; of a name, the newest version is the last. Reads what is new for about
        `seconds`, newest versions first; at the start all of these.
        """
        began_s = time.thread_time()
        places = [(place, _stamp(place.directory)) for place in self._places()]
        self.look_s = time.thread_time() - began_s
        until_s = self._clock() + seconds
        before, self._checked, self.has_more = self._checked, {}, False
        for place, stamp in sorted(places, key=lambda each: not each[0].is_newest):
            known = before.get(place.directory)
            if known is None or known.stamp != stamp:
                must = is_start and place.is_newest
                if not must and self._clock() >= until_s:
                    self.has_more = True
                    continue
                known = self._check(place.directory, stamp)
            self._checked[place.directory] = known
        return tuple(found for place, _ in places for found in self._served(place))

    def _served(self, place: _Place) -> list[AdapterVersion]:
        known = self._checked.get(place.directory)
        if known is None or not known.digest:
            return []
        return [AdapterVersion(place.name, place.number or known.digest[:FLAT_DIGITS], known.digest)]

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

    # --- what there is

    def _places(self) -> Iterator[_Place]:
        for directory in self._directories():
            try:
                yield from self._versions(directory)
            except OSError as error:  # others may not look into it
                self._refuse(directory.name, str(error))

    def _directories(self) -> list[Path]:
        try:
            with os.scandir(self._root) as entries:
                found = [Path(entry) for entry in entries if self._is_directory(entry)]
        except OSError as error:
            self._warn(str(self._root), f"adapters.directory = {str(self._root)!r}: {error.strerror}")
            return []
        for directory in found:
            if not NAME.fullmatch(directory.name):
                self._warn(
                    directory.name, f"adapter {directory.name!r:.200} is not served: its name is not valid"
                )
        return sorted(directory for directory in found if NAME.fullmatch(directory.name))

    def _is_directory(self, entry: os.DirEntry[str]) -> bool:
        """Names that begin with a dot are left out: Kubernetes mounts what it links to under such."""
        if entry.name.startswith("."):
            return False
        try:
            if entry.is_dir():
                return True
            Path(entry).stat()
        except (OSError, RuntimeError) as error:
            name = Path(entry).relative_to(self._root)
            self._refuse(str(name), f"it is a link that leads nowhere ({error})")
        return False

    def _versions(self, directory: Path) -> list[_Place]:
        """Raises OSError."""
        if os.path.lexists(directory / CONFIG):
            return [_Place(directory.name, "", directory, is_newest=True)]
        with os.scandir(directory) as entries:
            numbers = [
                entry.name for entry in entries if NUMBER.fullmatch(entry.name) and self._is_directory(entry)
            ]
        numbers.sort(key=int)
        if not numbers:
            self._refuse(directory.name, f"it has neither {CONFIG} nor a version (a directory with a number)")
        return [
            _Place(directory.name, number, directory / number, number == numbers[-1]) for number in numbers
        ]

    # --- which of it can be served

    def _check(self, place: Path, stamp: Stamp) -> _Checked:
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

    def _refuse(self, name: str, reason: str) -> None:
        self._warn(name, f"adapter {name} is not served: {reason}")

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("%s", text)


def _stamp(place: Path) -> Stamp:
    """Changes with the files, also with such as keep their size and time: ctime can't be set."""
    stamps = []
    for name in (CONFIG, WEIGHTS):
        try:
            status = (place / name).stat()
        except OSError:
            stamps.append((0, 0, 0))
            continue
        stamps.append((status.st_ino, status.st_ctime_ns, status.st_size))
    return tuple(stamps)
