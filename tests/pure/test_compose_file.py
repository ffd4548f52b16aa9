"""docker-compose.yml without an engine: what it names is there, what it sets is a setting, and it is
published on this host only.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from python_backends.launcher.address import check_key
from python_backends.launcher.stubs import STUBS
from python_backends.launcher.triton_command import SHARED_BYTES
from python_backends.prediction.place import directory_of
from python_backends.settings import Settings, load
from tests.support.dockerfile import environment_of_image

ROOT = Path(__file__).resolve().parents[2]
FILE = yaml.safe_load(re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (ROOT / "docker-compose.yml").read_text()))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes, as in launcher/fleets/ray_fleet.py
OURS = [name for name, service in SERVICES.items() if "build" in service]

each_service = pytest.mark.parametrize("name", SERVICES)


def test_only_the_server_is_up_by_default() -> None:
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == ["gapless"]
    assert {profile for service in SERVICES.values() for profile in service.get("profiles", [])} == {
        "cluster",
        "dashboard",
        "gpu",
    }


def test_the_command_that_ends_all_names_every_profile() -> None:
    (line,) = re.findall(
        r"^docker compose (.*) down\b", (ROOT / "docs/operations.md").read_text(), re.MULTILINE
    )
    named = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert line == " ".join(f"--profile {each}" for each in sorted(named))


def test_each_command_of_the_docs_starts_one_server() -> None:
    """Two would write into one volume, and those for a GPU want the same one."""
    text = (ROOT / "docs/operations.md").read_text()
    commands = re.findall(r"^[^`\n]*docker compose (.*)\bup\b([ \w-]*)", text, re.MULTILINE)
    assert len(commands) > 4
    for options, words in commands:
        profiles = {*re.findall(r"--profile (\w+)", options)}
        started = words.split() or [
            name for name, service in SERVICES.items() if profiles.issuperset(service.get("profiles", []))
        ]
        images = {SERVICES[name]["image"] for name in started}
        assert len(images & {SERVICES[name]["image"] for name in OURS}) == 1, (options, words)


@each_service
def test_ports_are_published_on_this_host_only_and_no_two_are_the_same(name: str) -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
    assert len({port.split(":")[1] for port in ports}) == len(ports)


@each_service
def test_what_is_mounted_is_there(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        source = volume.split(":")[0]
        assert (ROOT / source).exists() if source.startswith(".") else source in FILE["volumes"]


def test_prometheus_asks_every_server() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    places = {job["job_name"]: job["dns_sd_configs"][0] for job in jobs}
    assert {name: place["port"] for name, place in places.items()} == {"gapless": 8002, "front": 9000}
    assert all(sorted(place["names"]) == sorted(OURS) for place in places.values())


@each_service
def test_images_are_built_from_here_or_pinned(name: str) -> None:
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    build = SERVICES[name].get("build")
    if build:
        assert (ROOT / build["dockerfile"]).is_file()
    elif SERVICES[name]["image"] not in built:
        assert re.search(r":v?\d+\.\d+\.\d+$", SERVICES[name]["image"])


@pytest.mark.parametrize("name", OURS)
def test_every_setting_of_a_command_is_one(name: str) -> None:
    words = shlex.split(SERVICES[name]["command"])
    overrides = dict(setting.partition("=")[::2] for setting in words[1::2])
    assert set(words[::2]) == {"--set"}
    load(ROOT / "gapless.toml", overrides)


def test_the_first_host_of_ray_has_the_places_of_the_image() -> None:
    script = (ROOT / "build/image/ray-host").read_text()
    assert re.findall(r"--set \"?([\w.]+)=", script) == ["cluster.engine", "cluster.address"]


@pytest.mark.parametrize("name", OURS)
def test_what_is_learned_goes_to_the_volume_for_what_outlives_a_container(name: str) -> None:
    assert "data:/data" in SERVICES[name]["volumes"]
    written = (ROOT / SERVICES[name]["build"]["dockerfile"]).read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", written, re.MULTILINE)
    assert "--set" not in json.loads(entry), "it would beat the environment of a container"
    settings = load(ROOT / "gapless.toml", environment=environment_of_image(written))
    assert settings.server.address == "0.0.0.0"
    assert directory_of(settings).parent == Path("/data")
    assert settings.finetuning_directory == Path("/data/finetuning")
    assert settings.front.port == 0 or settings.front.directory == "/data/front"
    assert "install -d -o gapless -g gapless /data" in written, "who runs there may write to it"


@pytest.mark.parametrize("name", OURS)
def test_a_container_has_longer_to_stop_than_open_requests_have(name: str) -> None:
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= Settings().server.drain_s + 10


@pytest.mark.parametrize(
    "path", sorted((ROOT / "build/image").glob("*Dockerfile")), ids=lambda path: path.name
)
def test_what_a_dockerfile_copies_is_in_its_context(path: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(\S+) ", path.read_text(), re.MULTILINE)
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(f"{source}/".startswith(f"{each}/") for each in allowed), source


def test_a_host_of_ray_has_shared_memory_for_rays_object_store_and_for_triton() -> None:
    """Both commands that start Ray name the size of its store, and Ray says nothing to its makers."""
    script = (ROOT / "build/image/ray-host").read_text()
    (store,) = re.findall(r"--object-store-memory=(\d+)", script)
    assert int(store) == OBJECT_STORE_BYTES
    starts = re.findall(r"^ *(?:exec )?ray start .*$", script, re.MULTILINE)
    assert len(starts) == 2
    assert all('"${flags[@]}"' in line for line in starts)
    assert "RAY_USAGE_STATS_ENABLED=0" in script
    hosts = [service for service in SERVICES.values() if "ray-host" in str(service.get("entrypoint"))]
    assert len(hosts) == 2
    for service in hosts:
        size = int(service["shm_size"].removesuffix("m")) << 20
        assert size >= OBJECT_STORE_BYTES + 2 * (len(STUBS) + 1) * SHARED_BYTES, (
            "stubs take more when they need it"
        )


def test_all_hosts_of_ray_have_the_same_version_of_it() -> None:
    """They are one image, whose packages are those of the lock."""
    assert {SERVICES[name]["image"] for name in ("gapless-cluster", "gapless-host")} == {"gapless-ray"}
    assert SERVICES["gapless-cluster"]["build"]["args"] == {"EXTRAS": "ray"}
    lines = (ROOT / "requirements-ray.lock").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    assert "ray" in [line.partition("==")[0] for line in packages]
    assert all(re.match(r"[\w.-]+==[\w.]+ ", line) for line in packages)


@pytest.mark.parametrize("name", OURS)
def test_a_mirror_of_the_hub_and_proxies_are_passed_on_where_they_are_set(name: str) -> None:
    """huggingface_hub takes an empty HF_ENDPOINT for the hub's address."""
    passed_on = {variable for variable, value in SERVICES[name]["environment"].items() if value is None}
    assert passed_on == {"HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}


@pytest.mark.parametrize("name", OURS)
def test_it_starts_without_a_key(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert environment["GAPLESS_API_KEY"] == ""
    check_key(load(ROOT / "gapless.toml", {"server.address": "0.0.0.0"}, environment), environment)
