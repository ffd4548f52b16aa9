"""Why a model of the hub can't be had, in one line, by what huggingface_hub raises."""

from __future__ import annotations

import errno
from pathlib import Path

from python_backends.checkpoint.model_names import HubName


class HubError(ValueError):
    """The model can't be had. The message says why, without the model's name."""


def why(error: Exception, name: HubName) -> str:
    """What `error` means for a user, in one line."""
    import httpx2
    from huggingface_hub import errors

    while isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why the hub didn't give what the cache doesn't have
    if isinstance(error, errors.GatedRepoError):
        return f"is gated: accept its terms at {endpoint()}/{name.model}, and set HF_TOKEN{_token_now()}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no revision {name.revision} at {endpoint()}"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no such directory, and no such model at {endpoint()}; or it is private:"
            f" set HF_TOKEN to a token that may read it{_token_now()}"
        )
    if status in (401, 403):
        return (
            f"{endpoint()} refuses access ({status}): set HF_TOKEN to a token that may read it{_token_now()}"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"there is no space left on the disk of the cache {cache()}; HF_HOME names another place"
    if isinstance(error, httpx2.HTTPError | errors.OfflineModeIsEnabled) or status:
        reason = (
            "HF_HUB_OFFLINE is set" if isinstance(error, errors.OfflineModeIsEnabled) else one_line(error)
        )
        return f"is not whole in the cache {cache()}, and {endpoint()} can't be asked: {reason}"
    return f"can't be downloaded into the cache {cache()}: {one_line(error)}"


def _token_now() -> str:
    from huggingface_hub import get_token

    return " (the token that is set may not)" if get_token() else " (none is set)"


def cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().absolute()


def endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
