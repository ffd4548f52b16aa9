"""`docker compose up` as the README has it, what is healed in a container and by Docker, and what
`docker compose down` leaves: nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time

import pytest

from tests.docker.conftest import DEAD_AFTER_S, NOTES
from tests.support.composed import KEY, LONG, ROOT, Composed, look_until, run
from tests.support.failure_table import OF_A_CONTAINER, OF_A_SERVER, Row
from tests.support.server.onlookers import GrpcOnlooker, HttpOnlooker

SHORT = {"text_input": "def write(", "max_tokens": 8, "min_tokens": 8}
# the other rows of the table are those of tests/server/test_front_lasting.py
HEALED_WITHIN = [row for row in OF_A_SERVER if str(row) in ("instance-is-killed", "tritonserver-is-killed")]


@pytest.mark.timeout(3600)
def test_the_readmes_curl_streams_text_from_a_container(served: Composed) -> None:
    (curl,) = re.findall(
        r"^curl -sN .*?(?<!\\)\n(?!  )", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    answer = run("bash", "-c", curl.replace(":8000/", f":{served.http_port}/"))
    chunks = [json.loads(line[len("data: ") :]) for line in answer.splitlines() if line.startswith("data: ")]
    assert len(chunks) >= 2, "it streams: the first token does not wait for the last one"
    # the small model, which says what it can do where it can't do what is asked
    assert "eight tasks" in "".join(chunk["text_output"] for chunk in chunks)
    assert chunks[-1]["finish_reason"] == "stop"


def test_docker_says_healthy_when_the_ensemble_is_ready(served: Composed) -> None:
    look_until(lambda: served.inspect(".State.Health.Status") == "healthy", 60)


def test_it_runs_without_rights_on_a_read_only_disk_and_is_published_on_this_host_only(
    served: Composed,
) -> None:
    assert served.inside("id -u; grep CapEff /proc/self/status; touch /gapless/x 2>&1; true").split("\n")[
        :3
    ] == [
        "10001",
        "CapEff:\t0000000000000000",
        "touch: cannot touch '/gapless/x': Read-only file system",
    ]
    published = run("docker", "port", served.container).split()
    addresses = {word for word in published if ":" in word}
    assert addresses == {
        f"127.0.0.1:{port}"
        for port in (served.http_port, served.grpc_port, served.metrics_port, served.front_port)
    }


def test_openais_interface_answers_who_has_the_key(served: Composed) -> None:
    body = {"messages": [{"role": "user", "content": "Convert to camelCase: read_all_lines"}]}
    for key, status in ((KEY, 200), ("wrong", 401)):
        connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=60)
        headers = {"authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert (answer.status, b"readAllLines" in answer.read()) == (status, status == 200)
        connection.close()


def test_the_image_brings_what_is_compiled(served: Composed) -> None:
    """There is no compiler in it, and nothing could be written."""
    paths = served.inside(".venv/bin/python -m python_backends.engine.cpu.library").split()
    assert [path.rsplit("-", 1)[0] for path in paths] == [
        f"/gapless/run/compiled/layers-{kind}" for kind in ("amx", "avx512_bf16", "avx512", "avx2")
    ]


def test_its_packages_can_be_listed(composed: Composed) -> None:
    """Those of the lock, in the versions of the lock."""
    run(
        "docker", "build", "-q", "-f", "build/image/sbom.Dockerfile", "-t", "gapless-sbom", ".", timeout_s=900
    )
    listed = json.loads(run("docker", "run", "--rm", "gapless-sbom"))
    assert listed["bomFormat"] == "CycloneDX"
    there = {(canonical(each["name"]), each["version"]) for each in listed["components"]}
    pinned = re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert {(canonical(name), version) for name, version in pinned} <= there


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("profile", ["gpu", "dashboard"])
def test_docker_compose_takes_the_profiles_that_can_not_run_here(composed: Composed, profile: str) -> None:
    assert "gapless" in composed.compose("--profile", profile, "config", "--services").split()


@pytest.fixture(scope="module")
def undisturbed(served: Composed) -> str:
    onlooker = HttpOnlooker(served.http_port, LONG)
    onlooker.join()
    assert onlooker.saw == "the whole answer"
    return onlooker.answer.text


@pytest.mark.parametrize("row", HEALED_WITHIN + OF_A_CONTAINER, ids=str)
def test_what_dies_comes_back_without_a_hand(served: Composed, undisturbed: str, row: Row) -> None:
    """What clients with open streams see, and what one sees who comes right then."""
    if row.process == "init" and os.geteuid() != 0:
        pytest.skip("only root of the host can kill a container's first process")
    look_until(served.answers, 120)  # a row does not suffer from the one before
    victim = served.process(row.process)
    assert victim
    kill = served.ready_to_kill(victim, row.process)
    onlookers = [HttpOnlooker(served.http_port, LONG), GrpcOnlooker(served.grpc_port, LONG)]
    for onlooker in onlookers:
        onlooker.wait_for_text()
    killed_s = time.monotonic()
    kill()
    newcomer = HttpOnlooker(served.http_port, SHORT)
    assert not any(onlooker.answer.reasons for onlooker in onlookers), (
        "the answers were too short to be interrupted"
    )
    look_until(lambda: served.process(row.process) not in (None, victim), 90)
    look_until(served.answers, 90)
    back_s = time.monotonic() - killed_s
    for onlooker in onlookers:
        onlooker.join()
        assert onlooker.saw in row.stream.split(" or ")
        assert (
            undisturbed == onlooker.answer.text
            if onlooker.saw == "the whole answer"
            else undisturbed.startswith(onlooker.answer.text)
        )
    newcomer.join()
    assert newcomer.saw in row.newcomer.split(" or ")
    NOTES.append(f"{row}: answers again after {back_s:.1f} s")


def test_three_pauses_of_the_container_are_pauses_and_nothing_else(
    served: Composed, undisturbed: str
) -> None:
    """Each longer than any process may be silent. A pause that begins inside a call of a
    Python model may end the call or tritonserver (docs/operations.md, "What remains of a pause"): then, and
    only then, they are tried again.
    """
    for _ in range(3):
        before = served.log()
        try:
            three_pauses(served, undisturbed)
            return
        except AssertionError:
            said = served.log().removeprefix(before)
            if "is not healthy" not in said and "Signal (11)" not in said:
                raise
            NOTES.append("a pause began inside a call of a Python model; tried again")
    raise AssertionError("three times a pause ended a call or tritonserver")


def three_pauses(served: Composed, undisturbed: str) -> None:
    look_until(served.answers, 120)
    processes = ("instance", "tritonserver", "tokenizer", "scheduler", "detokenizer")
    before = {process: served.process(process) for process in processes}
    assert all(before.values())
    onlookers = [HttpOnlooker(served.http_port, LONG), GrpcOnlooker(served.grpc_port, LONG)]
    for onlooker in onlookers:
        onlooker.wait_for_text()
    for number in range(3):
        run("docker", "pause", served.container)
        time.sleep(DEAD_AFTER_S + 1)
        has_ended = any(onlooker.answer.reasons for onlooker in onlookers)
        run("docker", "unpause", served.container)
        assert not has_ended, f"the answers were too short for {number + 1} pauses"
        time.sleep(0.3)
    for onlooker in onlookers:
        onlooker.join()
    assert [(onlooker.saw, onlooker.answer.text) for onlooker in onlookers] == 2 * [
        ("the whole answer", undisturbed)
    ]
    time.sleep(DEAD_AFTER_S + 2)  # whatever was to be given up would have been by now
    assert {process: served.process(process) for process in processes} == before


def test_a_model_that_can_not_be_loaded_again_ends_the_launcher_and_docker_starts_it_anew(
    served: Composed,
) -> None:
    """First the launcher tries five times, then the restart policy, until somebody has mended the file."""
    broken = served.model / "tokenizer.json"
    whole, restarts = broken.read_text(), int(served.inspect(".RestartCount"))
    broken.write_text("{")
    tokenizer = served.process("tokenizer")
    assert tokenizer
    served.ready_to_kill(tokenizer, "tokenizer")()
    look_until(lambda: int(served.inspect(".RestartCount")) >= restarts + 2, 240)
    broken.write_text(whole)
    look_until(served.answers, 120)
    logs = served.log()
    assert "tritonserver was started 5 times and never got ready" in logs
    assert re.search(r"/model/tokenizer\.json: .*EOF while parsing", logs)


def test_stop_lets_open_requests_end_and_takes_no_new_ones(served: Composed, undisturbed: str) -> None:
    onlookers = [HttpOnlooker(served.http_port, LONG), GrpcOnlooker(served.grpc_port, LONG)]
    for onlooker in onlookers:
        onlooker.wait_for_text()
    stopping = threading.Thread(target=served.compose, args=["stop"])
    stopping.start()
    look_until(lambda: "draining" in served.log(), 60)
    late = HttpOnlooker(served.http_port, {"text_input": "too late", "max_tokens": 4})
    late.join()
    for onlooker in onlookers:
        onlooker.join()
        assert (onlooker.saw, onlooker.answer.text) == ("the whole answer", undisturbed)
    stopping.join(120)
    assert late.saw != "the whole answer"
    assert served.inspect(".State.ExitCode") == "0"
    assert served.inspect(".State.Status") == "exited", "a container that was stopped is not started again"


def test_down_leaves_the_named_volumes_and_nothing_else(served: Composed) -> None:
    served.compose("down")
    ours = f"label=com.docker.compose.project={served.project}"
    assert run("docker", "ps", "--all", "--quiet", "--filter", ours) == ""
    assert run("docker", "network", "ls", "--quiet", "--filter", ours) == ""
    # docker-compose 1.29 makes those of all profiles
    named = {f"{served.project}_{volume}" for volume in ("data", "prometheus")}
    assert set(run("docker", "volume", "ls", "--quiet", "--filter", ours).split()) <= named
