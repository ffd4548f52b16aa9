"""Models by their names: from a stand-in hub on loopback, from the cache without one, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from python_backends.checkpoint.hub_errors import HubError, why
from python_backends.checkpoint.hub_files import weights_of
from python_backends.checkpoint.model_names import HubName, name_of, read_name
from python_backends.checkpoint.weight_files import FORMATS
from python_backends.settings import ROOT
from tests.support.hub import COMMIT, StandInHub

NAME = "org/small"
TEXTS = {
    "config.json": b'{"hidden_size": 8}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
}
SHARDS = {f"model-0000{number}-of-00002.safetensors": b"%d" % number * 50_000 for number in (1, 2)}
INDEX = json.dumps({"weight_map": {"a": min(SHARDS), "b": max(SHARDS), "c": max(SHARDS)}}).encode()
OTHERS = {
    "README.md": b"# Small",
    "pytorch_model.bin": b"pickled",
    "consolidated.safetensors": b"the same again",
    "small.gguf": b"GGUF",
    "onnx/config.json": b"{}",
    "onnx/model.safetensors": b"other",
}
MODEL = {**TEXTS, "model.safetensors.index.json": INDEX, **SHARDS, **OTHERS}


@dataclass
class Asked:
    code: int
    out: str
    said: str

    @property
    def directory(self) -> Path:
        assert self.code == 0, self.said
        return Path(self.out.rstrip("\n"))

    @property
    def error(self) -> str:
        """The line that says why there is no model."""
        assert self.code == 1
        assert "Traceback" not in self.said
        return self.said.splitlines()[-1]


@dataclass
class User:
    """Who asks for models, with a cache of his own."""

    home: Path
    hub: StandInHub

    def environment(self, **changed: str) -> dict[str, str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("HF_")}
        here = {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "HF_HUB_DISABLE_XET": "1"}
        return {**inherited, **here, **changed}

    def ask(self, name: str = NAME, **changed: str) -> Asked:
        done = subprocess.run(
            [sys.executable, "-m", "commands.model", "--set", f"model.directory={name}"],
            cwd=ROOT,
            env=self.environment(**changed),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Asked(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with StandInHub({NAME: dict(MODEL)}) as hub:
        yield User(tmp_path / "home", hub)


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_model_is_downloaded_once_and_then_found_without_the_hub(user: User) -> None:
    first = user.ask()
    wanted = {**TEXTS, "model.safetensors.index.json": INDEX, **SHARDS}
    assert contents(first.directory) == wanted
    assert user.hub.fetched() == wanted.keys(), "nothing else is downloaded"
    assert "downloading 0.1 MB" in first.said
    assert first.directory.is_relative_to(user.home)
    num_requests = len(user.hub.requests)
    assert user.ask().directory == user.ask(HF_HUB_OFFLINE="1").directory == first.directory
    assert user.ask(HF_ENDPOINT="http://127.0.0.1:9").directory == first.directory
    assert len(user.hub.requests) == num_requests


def test_what_the_cache_lacks_is_downloaded_and_nothing_else(user: User) -> None:
    directory = user.ask().directory
    path = directory / max(SHARDS)
    path.resolve().unlink()
    path.unlink()
    offline = user.ask(HF_HUB_OFFLINE="1").error
    assert f"is not whole in the cache {user.home}/hub" in offline
    assert offline.endswith("can't be asked: HF_HUB_OFFLINE is set")
    user.hub.requests.clear()
    assert user.ask().directory == directory
    assert user.hub.fetched() == {max(SHARDS)}


def test_a_connection_that_breaks_goes_on_where_it_broke(user: User) -> None:
    """At a piece of 10 MiB, which is what the library writes at once."""
    user.hub.files["org/large"] = {**TEXTS, "model.safetensors": bytes(range(256)) * 50_000}
    user.hub.cut_at = 12_000_000
    directory = user.ask("org/large").directory
    assert contents(directory) == user.hub.files["org/large"]
    assert [each for each in user.hub.requests if each.endswith("bytes=10485760-")]


def test_a_cache_that_another_library_filled_is_enough_without_a_network(user: User) -> None:
    """It has no list of the model's files."""
    directory = user.ask().directory
    shutil.rmtree(directory.parents[1] / "trees")
    assert user.ask(HF_HUB_OFFLINE="1").directory == directory
    (directory / min(SHARDS)).unlink()
    assert (
        "names model-00001-of-00002.safetensors, which it doesn't have" in user.ask(HF_HUB_OFFLINE="1").error
    )


def test_a_revision_is_a_branch_a_tag_or_a_commit(user: User) -> None:
    assert user.ask(f"{NAME}@v1").directory == user.ask(f"{NAME}@{COMMIT}").directory
    assert user.ask(f"{NAME}@v2").error.endswith(f"has no revision v2 at {user.hub.url}")


def test_a_gguf_file_is_taken_where_there_is_nothing_else_or_by_its_name(user: User) -> None:
    user.hub.files["org/one"] = {"README.md": b"", "one.gguf": b"GGUF one"}
    assert user.ask("org/one").directory.read_bytes() == b"GGUF one"
    user.hub.files["org/two"] = {"b.gguf": b"GGUF b", "a.gguf": b"GGUF a"}
    assert (
        "has several GGUF files; add the name of one, as in ORG/NAME/a.gguf, b.gguf"
        in user.ask("org/two").error
    )
    assert user.ask("org/two/b.gguf").directory.read_bytes() == b"GGUF b"
    assert "has no file c.gguf; it has a.gguf, b.gguf" in user.ask("org/two/c.gguf").error
    assert user.ask(f"{NAME}/small.gguf").directory.name == "small.gguf"


def test_a_gated_model_names_the_variable_for_the_token(user: User) -> None:
    user.hub.token, user.hub.gated = "hf_right", True
    wanted = f"is gated: accept its terms at {user.hub.url}/{NAME}, and set HF_TOKEN"
    assert user.ask().error.endswith(f"{wanted} (none is set)")
    assert user.ask(HF_TOKEN="hf_wrong").error.endswith(f"{wanted} (the token that is set may not)")
    assert user.ask(HF_TOKEN="hf_right").directory.is_dir()


def test_a_model_that_is_not_there_and_one_that_is_private_look_the_same(user: User) -> None:
    user.hub.token = "hf_right"
    for name in (NAME, "org/none"):
        error = user.ask(name).error
        assert error.startswith(
            f"model.directory = '{name}': there is no such directory, and no such model at"
        )
        assert error.endswith("or it is private: set HF_TOKEN to a token that may read it (none is set)")
    assert user.ask(HF_TOKEN="hf_right").directory.is_dir()


def test_without_a_network_the_cache_that_was_searched_is_named(user: User) -> None:
    for changed in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        assert (
            f"is not whole in the cache {user.home}/hub, and http://127.0.0.1:" in user.ask(**changed).error
        )
    user.hub.status = 500
    assert "500" in user.ask().error


def test_a_model_that_does_not_fit_the_disk_is_refused_before_it_is_downloaded(user: User) -> None:
    user.hub.sizes[max(SHARDS)] = 1 << 60
    error = user.ask().error
    assert f"needs 1152921504.6 GB in the cache {user.home}/hub, whose disk has " in error
    assert not user.hub.fetched() & SHARDS.keys()


def test_a_cache_that_can_not_be_written_is_named(user: User, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = user.ask(HF_HOME=str(tmp_path / "file")).error
    assert f"can't be downloaded into the cache {tmp_path}/file/hub: NotADirectoryError" in error


def test_a_disk_that_fills_up_meanwhile_is_named() -> None:
    said = why(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), HubName(NAME))
    assert re.fullmatch(
        "there is no space left on the disk of the cache /.*; HF_HOME names another place", said
    )


def test_what_is_neither_a_path_nor_a_name_is_refused(user: User) -> None:
    for given in ("/nowhere/at/all", "org", "a/b/c", "org/na me", "x" * 300, "org/a--b"):
        error = user.ask(given).error
        assert error.startswith(f"model.directory = {given!r}: ")
        assert "it is not the name of a model (ORG/NAME)" in error or "is no name of a model" in error
    assert user.hub.requests == []


def test_a_path_is_taken_before_a_name(user: User) -> None:
    assert user.ask("models/bundled").directory == ROOT / "models/bundled"
    assert user.hub.requests == []


def test_a_signal_ends_the_start_during_a_download_and_leaves_no_part_of_a_file(
    user: User, tmp_path: Path
) -> None:
    user.hub.byte_s = 0.01
    process = subprocess.Popen(
        [sys.executable, "-m", "commands.serve", "--set", f"model.directory={NAME}"],
        cwd=ROOT,
        env=user.environment(RUNTIME_DIRECTORY=str(tmp_path)),
        stderr=subprocess.PIPE,
    )
    until_s = time.monotonic() + 60
    while not list(user.home.rglob("*.incomplete")) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert list(user.home.rglob("*.incomplete")), "it downloads"
    process.send_signal(signal.SIGTERM)
    assert (process.wait(30), b"Traceback" in process.communicate()[1]) == (0, False)
    assert not list(user.home.rglob("*.incomplete"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("org/name@refs/pr/1", HubName("org/name", revision="refs/pr/1")),
        ("org/na.me-2_b/file-Q4_K.gguf@v1", HubName("org/na.me-2_b", "file-Q4_K.gguf", "v1")),
        ("org/name/config.json", None),
        ("./org/name", None),
        ("/org/name", None),
        ("../name", None),
        ("org/.hidden", None),
        ("org/name@", None),
        ("örg/name", None),
    ],
)
def test_a_name_has_an_organisation_and_perhaps_a_file_and_a_revision(
    text: str, name: HubName | None
) -> None:
    assert read_name(text) == name


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin", "a.gguf"], ["model.safetensors"]),
        (["pytorch_model.bin", "tf_model.h5"], ["pytorch_model.bin"]),
        (["pytorch_model.bin.index.json", "x.bin", "y.bin"], ["x.bin", "y.bin"]),
        (["config.json", "a.gguf", "mmproj-a.gguf", "more/b.gguf"], ["a.gguf"]),
    ],
)
def test_weights_are_of_one_form(tmp_path: Path, names: list[str], weights: list[str]) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "x.bin", "b": "y.bin"}}')
    assert weights_of(names, tmp_path) == weights


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": [1]}}', "[" * 100_000]
)
def test_an_index_that_is_none_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(HubError, match=r"model\.safetensors\.index\.json can't be read"):
        weights_of(["model.safetensors.index.json"], tmp_path)


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="has no weights that are served: no " + ", ".join(FORMATS)):
        weights_of(["config.json", "tf_model.h5"], tmp_path)


GGUF_NAMES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct",
    "gemma-3-270m-q4_k_m.gguf": "gemma-3-270m",
    "Phi-3-mini-4k-instruct-BF16.gguf": "Phi-3-mini-4k-instruct",
    "Qwen2.5-0.5B-IQ2_XXS.gguf": "Qwen2.5-0.5B",
    "model.v2.gguf": "model.v2",
    "Q8_0.gguf": "Q8_0",
    ".gguf": ".gguf",
    "weights.bin": "weights.bin",
}


def test_a_model_is_called_by_its_name_on_the_hub_or_by_its_path(tmp_path: Path) -> None:
    directory = tmp_path / f"models--Qwen--Qwen2.5-0.5B/snapshots/{COMMIT}"
    directory.mkdir(parents=True)
    (tmp_path / "blob").touch()
    (tmp_path / "here").symlink_to(directory)
    (directory / "a.gguf").symlink_to(tmp_path / "blob")
    paths = (directory, tmp_path / "here", directory / "a.gguf", Path("/models/x"), Path("/"))
    assert [name_of(path) for path in paths] == ["Qwen2.5-0.5B", "Qwen2.5-0.5B", "a", "x", ""]
    for name, model in GGUF_NAMES.items():
        (tmp_path / name).touch()
        assert name_of(tmp_path / name) == model
