"""deploy/kubernetes without a cluster: ports, paths, users and times are those of the settings, of the image
and of docker-compose.yml. Where there is `kubectl`, what it renders follows the schemas of Kubernetes
(`build/set-up kubernetes`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from front.app import OPEN
from python_backends.launcher.address import API_KEY, check_key
from python_backends.settings import Settings, SettingsError, load
from tests.support.dockerfile import environment_of_image

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("base", "cuda")
DOCKERFILE = (ROOT / "build/image/Dockerfile").read_text()
COMPOSE = yaml.safe_load(re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (ROOT / "docker-compose.yml").read_text()))
VERSIONS = ("1.28", "1.37")  # of the schemas; docs/operations.md names them

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def read(path: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / path).read_text())
    assert isinstance(found, dict)
    return found


POD = read("base/stateful-set.yaml")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def environment_of(overlay: str) -> dict[str, str]:
    """The settings of its ConfigMap."""
    names = ("base",) if overlay == "base" else ("base", overlay)
    generators = [read(f"{name}/kustomization.yaml")["configMapGenerator"] for name in names]
    return dict(line.split("=", 1) for (each,) in generators for line in each["literals"])


def settings_of(overlay: str) -> Settings:
    """With the environment of the image."""
    environment = environment_of_image(DOCKERFILE) | environment_of(overlay)
    return load(ROOT / "gapless.toml", environment=environment)


@each_overlay
def test_every_file_is_a_part_of_it(overlay: str) -> None:
    file = read(f"{overlay}/kustomization.yaml")
    named = {*file["resources"], *(patch["path"] for patch in file.get("patches", []))}
    there = {path.name for path in (FOLDER / overlay).iterdir()} - {"kustomization.yaml"}
    assert there == {name for name in named if not name.startswith("..")}
    assert all((FOLDER / overlay / name).exists() for name in named)


def test_a_patch_changes_what_is_there() -> None:
    patch = read("cuda/gpu.yaml")
    base = read("base/stateful-set.yaml")
    assert (patch["kind"], patch["metadata"]) == (base["kind"], base["metadata"])
    (changed,) = patch["spec"]["template"]["spec"]["containers"]
    assert changed["name"] == CONTAINER["name"]
    assert changed["resources"]["limits"]["nvidia.com/gpu"] == 1


@each_overlay
def test_the_image_is_one_that_the_compose_file_builds(overlay: str) -> None:
    named = {
        each["name"]: each["newName"] for each in read(f"{overlay}/kustomization.yaml").get("images", [])
    }
    assert set(named) <= {CONTAINER["image"]}
    image = named.get(CONTAINER["image"], CONTAINER["image"])
    (service,) = [service for service in COMPOSE["services"].values() if service["image"] == image]
    device = service["build"].get("args", {}).get("DEVICE", "cpu")
    assert settings_of(overlay).model.device == device


@each_overlay
def test_what_is_written_lies_in_the_volume(overlay: str) -> None:
    (claim,) = read("base/stateful-set.yaml")["spec"]["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/data"
    settings = settings_of(overlay)
    for directory in (settings.prediction, settings.front, settings.finetuning):
        assert Path(directory.directory).is_relative_to("/data")
    assert "HF_HOME=/data/" in DOCKERFILE


def test_memory_is_mounted_where_the_compose_file_has_it() -> None:
    ours = COMPOSE["services"]["gapless"]
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    volumes = {mounts[volume["name"]]: volume["emptyDir"] for volume in POD["volumes"]}
    assert set(volumes) == {"/dev/shm", *(each.partition(":")[0] for each in ours["tmpfs"])}
    assert all(volume["medium"] == "Memory" for volume in volumes.values())
    assert volumes["/dev/shm"]["sizeLimit"] == f"{ours['shm_size'].removesuffix('m')}Mi"


def test_it_has_the_images_user_and_no_privileges() -> None:
    ((uid, gid),) = re.findall(r"useradd --uid (\d+) --gid (\d+)", DOCKERFILE)
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(uid), int(gid), int(gid))
    assert context["runAsNonRoot"] is True
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["enableServiceLinks"] is False, "a Service's variables begin with GAPLESS_, too"


@each_overlay
def test_ports_are_those_of_the_settings_and_tritons_are_closed(overlay: str) -> None:
    settings = settings_of(overlay)
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"front": settings.front.port, "metrics": settings.server.metrics_port}
    assert {str(port) for port in ports.values()} <= set(
        re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.M)[0].split()
    )
    assert read("base/service.yaml")["spec"]["ports"] == [
        {"name": "front", "port": settings.front.port, "targetPort": "front"}
    ]
    policy = read("base/network-policy.yaml")["spec"]
    (labels,) = read("base/kustomization.yaml")["labels"]
    assert policy["podSelector"]["matchLabels"] == labels["pairs"], "it would close other pods' ports, too"
    (rule,) = policy["ingress"]
    assert {each["port"] for each in rule["ports"]} == set(ports)
    annotations = read("base/stateful-set.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(settings.server.metrics_port)


@each_overlay
def test_probes_ask_without_a_key_and_for_as_long_as_loading_may_take(overlay: str) -> None:
    assert "livenessProbe" not in CONTAINER
    startup, readiness = CONTAINER["startupProbe"], CONTAINER["readinessProbe"]
    for probe in (startup, readiness):
        assert probe["httpGet"]["path"] in OPEN
        assert probe["httpGet"]["port"] == "front"
    longest_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert longest_s > settings_of(overlay).server.ready_s + 2400, "a model may be downloaded before"


@each_overlay
def test_a_pod_has_longer_to_stop_than_open_requests_have(overlay: str) -> None:
    name, pause_s = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert name == "sleep"
    assert POD["terminationGracePeriodSeconds"] >= int(pause_s) + settings_of(overlay).server.drain_s + 15


def test_corrected_settings_replace_a_pod_that_never_got_ready_and_pods_are_moved_one_at_a_time() -> None:
    """With the default policy a rolling update waits for that pod."""
    assert read("base/stateful-set.yaml")["spec"]["podManagementPolicy"] == "Parallel"
    budget = read("base/disruption-budget.yaml")["spec"]
    (spread,) = POD["topologySpreadConstraints"]
    (labels,) = read("base/kustomization.yaml")["labels"]
    for each in (budget["selector"], spread["labelSelector"]):
        assert each["matchLabels"] == labels["pairs"], "it would be for other pods, too"
    assert budget["maxUnavailable"] == 1
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one node is enough"


@each_overlay
def test_it_starts_with_the_key_alone(overlay: str) -> None:
    """Without the Secret the pod is not started at all."""
    variables = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in CONTAINER["env"]}
    assert not variables[API_KEY].get("optional")
    check_key(settings_of(overlay), {API_KEY: "sk-mine"})
    with pytest.raises(SettingsError, match="there is no key"):
        check_key(settings_of(overlay), {})


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@each_overlay
def test_what_is_rendered_follows_the_schemas(overlay: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER / overlay], capture_output=True, text=True, check=True
    )
    parts = list(yaml.safe_load_all(done.stdout))
    (pods,) = [part["spec"]["template"] for part in parts if part["kind"] == "StatefulSet"]
    (settings,) = [part for part in parts if part["kind"] == "ConfigMap"]
    (policy,) = [part for part in parts if part["kind"] == "NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert settings["data"] == environment_of(overlay)
    assert pods["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"] == settings["metadata"]["name"]
    schemas = pytest.importorskip("kubernetes_validate", reason="build/set-up kubernetes brings the schemas")
    for version in VERSIONS:
        for part in parts:
            schemas.validate(part, version, strict=True)
