"""The two containers of the profile `cluster`: each is a host with one instance."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.composed import LONG, Composed, look_until, run
from tests.support.server.onlookers import GrpcOnlooker, HttpOnlooker


@pytest.fixture(scope="module")
def cluster(composed: Composed) -> Iterator[Composed]:
    """Both containers, each with an instance that is ready."""
    clustered = Composed(f"{composed.project}-cluster", composed.model, cluster=True)
    clustered.compose("build", clustered.service, timeout_s=3000)
    try:
        clustered.up()
        look_until(lambda: num_ready(clustered) == 2, 120)
        yield clustered
    finally:
        clustered.compose("down", "--volumes", "--remove-orphans")


def test_the_image_has_that_without_ray_and_one_layer_more(cluster: Composed) -> None:
    one, both = (
        json.loads(run("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", tag))
        for tag in ("gapless", "gapless-ray")
    )
    assert both[:-1] == one[:-1]
    assert both[-1] != one[-1]


def status(cluster: Composed) -> list[dict[str, object]]:
    """Of each instance, as `control status --json` says it."""
    said = json.loads(cluster.inside(".venv/bin/python -m commands.control status --json"))
    return list(said["instances"])


def num_ready(cluster: Composed) -> float:
    return cluster.metrics().get('gapless_instances{state="ready"}', 0)


def num_moved(cluster: Composed) -> float:
    return cluster.metrics().get("gapless_migration_downtime_seconds_count", 0)


def test_each_container_has_an_instance_and_streams_move_between_them(cluster: Composed) -> None:
    assert len({each["host"] for each in status(cluster)}) == 2
    before, streams = num_moved(cluster), open_streams(cluster)
    control = ".venv/bin/python -m commands.control"
    cluster.inside(f"{control} drain 0 && {control} restore 0")
    check_equal(streams)
    look_until(lambda: num_moved(cluster) > before, 60)


def test_streams_survive_the_death_of_a_container(cluster: Composed) -> None:
    streams = open_streams(cluster)
    other = cluster.compose("ps", "-q", "gapless-host").strip()
    run("docker", "kill", other)
    check_equal(streams)
    look_until(lambda: num_ready(cluster) == 2, 180)


def open_streams(cluster: Composed) -> list[HttpOnlooker]:
    streams = [onlooker(cluster, **LONG) for _ in range(4) for onlooker in (http, grpc)]
    for stream in streams:
        stream.wait_for_text()
    return streams


def http(cluster: Composed, **inputs: object) -> HttpOnlooker:
    return HttpOnlooker(cluster.http_port, inputs)


def grpc(cluster: Composed, **inputs: object) -> HttpOnlooker:
    return GrpcOnlooker(cluster.grpc_port, inputs)


def check_equal(streams: list[HttpOnlooker]) -> None:
    for stream in streams:
        stream.join()
        assert (stream.saw, stream.closed) == ("the whole answer", "")
    assert len({stream.answer.text for stream in streams}) == 1
