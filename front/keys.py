"""API keys: who may ask. Only their digests stay in memory, and they are compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from python_backends.launcher.address import check_not_blank
from python_backends.settings import SettingsError

SCHEME = "bearer "
HASHED = "sha256:"


class Keys:
    """No keys: everybody may ask."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def allow(self, authorization: str) -> bool:
        """Whether the header `Authorization: Bearer KEY` has one of the keys. All are compared."""
        if not self._digests:
            return True
        given = authorization[len(SCHEME) :] if authorization.lower().startswith(SCHEME) else ""
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        return True in [hmac.compare_digest(digest, known) for known in self._digests]


def key_in(headers: Mapping[str, str]) -> str:
    """Returns the key of a request as an Authorization header has it."""
    return headers.get("authorization", "") or f"Bearer {headers.get('x-api-key', '')}"


def read_keys(file: Path | None, of_environment: str) -> Keys:
    """Reads one key from each line of `file`, as it is or as sha256:HEX; lines that begin with # are none.
    Raises SettingsError.
    """
    check_not_blank(of_environment)
    key = of_environment.strip()
    digests = [hashlib.sha256(key.encode()).digest()] if key else []
    if file is None:
        return Keys(digests)
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"front.api_keys = {str(file)!r}: can't be read: {error}") from error
    digests += [
        _digest(file, number, text)
        for number, line in enumerate(lines, 1)
        if (text := line.strip()) and not text.startswith("#")
    ]
    if not digests:
        raise SettingsError(f"front.api_keys = {str(file)!r}: must have at least one key")
    return Keys(digests)


def _digest(file: Path, number: int, text: str) -> bytes:
    if not text.startswith(HASHED):
        return hashlib.sha256(text.encode()).digest()
    try:
        digest = bytes.fromhex(text.removeprefix(HASHED))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise SettingsError(f"front.api_keys = {str(file)!r}: line {number} must have 64 hexadecimal digits")
    return digest
