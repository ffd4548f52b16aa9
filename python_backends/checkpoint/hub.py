"""A model by its name on the hub of Hugging Face: found in this machine's cache, else downloaded into it.

What the cache has whole is taken as it is, and the hub is not asked: a server that is started again serves
the same weights, with or without a network. huggingface_hub does the work, so its variables of the
environment count: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE. Called by `commands.model`, which brings no
other library of Hugging Face along.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from python_backends.checkpoint.hub_errors import HubError, cache, endpoint, one_line, why
from python_backends.checkpoint.hub_files import TEXTS, weights_of
from python_backends.checkpoint.model_names import HubName

log = logging.getLogger("gapless")

TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"


def find_model(name: HubName) -> Path:
    """The directory of the model's files, or the path of its GGUF file. Downloads what the cache doesn't
    have. Raises HubError.
    """
    os.environ.setdefault(TELEMETRY, "1")  # else it asks the hub for a list at each start
    try:
        import httpx2
        from huggingface_hub import errors
        from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError
    except ImportError as error:  # an image with another version
        raise HubError(f"names need huggingface_hub as requirements.lock has it ({error})") from error
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # not a line for each request
    try:
        return _model(name, is_local=True)
    except (LocalEntryNotFoundError, CachedRepoTreeNotFoundError):
        log.info("%s is not whole in the cache %s: asking %s", name.model, cache(), endpoint())
    except errors.HFValidationError as error:
        raise HubError(f"is no name of a model: {one_line(error)}") from error
    try:
        return _model(name, is_local=False)
    except HubError:
        raise
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise HubError(why(error, name)) from error


def _model(name: HubName, *, is_local: bool) -> Path:
    """Raises what the library raises where a file is not there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        """Named by the file alone."""

        def __init__(self, *given: Any, desc: str = "", **options: Any) -> None:
            super().__init__(*given, desc=desc.rpartition("/")[2], **options)  # type: ignore[no-untyped-call]

    directory, sizes = _texts(name, is_local=is_local)
    weights = weights_of(sizes, directory, name.gguf)
    if not is_local:
        _check_disk({file: sizes[file] for file in weights if not (directory / file).is_file()})
    for file in weights:  # one after the other, in this thread: a signal ends it at once
        hf_hub_download(name.model, file, revision=directory.name, local_files_only=is_local, tqdm_class=Bar)
    log.info("%s at commit %s is in the cache: %s", name.model, directory.name[:12], directory)
    return directory / weights[0] if weights[0].endswith(".gguf") else directory


def _texts(name: HubName, *, is_local: bool) -> tuple[Path, dict[str, int]]:
    """The directory, which has all files but the weights, and the sizes of all files of the model."""
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    asked: dict[str, Any] = {"revision": name.revision, "local_files_only": is_local}
    with disable_progress_bars():
        found = snapshot_download(name.model, allow_patterns=list(TEXTS), **asked)
    directory = Path(found)
    try:
        files = get_cached_repo_tree(name.model, revision=directory.name)
    except CachedRepoTreeNotFoundError:  # an older library filled the cache, and the hub can't be asked
        if is_local:
            raise
        return directory, {path.name: 0 for path in directory.iterdir()}
    return directory, {file.path: file.size for file in files}


def _check_disk(wanted: dict[str, int]) -> None:
    """Raises HubError if the files don't fit; says how much is downloaded."""
    if not wanted:
        return
    size, free = sum(wanted.values()), shutil.disk_usage(_existing(cache())).free
    if size > free:
        raise HubError(f"needs {_amount(size)} in the cache {cache()}, whose disk has {_amount(free)} free")
    log.info("downloading %s into %s", _amount(size), cache())


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
