"""`docker compose up` as the README has it, every process killed in turn,
and what `docker compose down` leaves: nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time

import pytest

from tests.docker.conftest import NOTES
from tests.support.composed import KEY, LONG, ROOT, Composed, GrpcOnlooker, HttpOnlooker, run
from tests.support.server.serving import wait_for

SHORT = {"text_input": "def write(", "max_tokens": 8, "min_tokens": 8}
HOW = {"is killed": signal.SIGKILL, "stands still": signal.SIGSTOP}
ROW = re.compile(
    r"^\| `(\w+)` (is killed|stands still) \| [^|]+ \| ([^|]+?) \| ([^|]+?) \| [^|]+ \| \d+ s \|$",
    re.MULTILINE,
)
FAILURES = ROW.findall((ROOT / "docs/operations.md").read_text())


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
    wait_for(lambda: served.inspect(".State.Health.Status") == "healthy", 60)


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


def test_the_failure_table_names_every_process(served: Composed) -> None:
    named = {process for process, how, *_ in FAILURES if how == "is killed"}
    assert named == {"instance", "tokenizer", "scheduler", "detokenizer", "tritonserver", "launcher", "init"}


@pytest.fixture(scope="module")
def undisturbed(served: Composed) -> str:
    onlooker = HttpOnlooker(served.http_port, LONG)
    onlooker.join()
    assert onlooker.saw == "the whole answer"
    return onlooker.answer.text


@pytest.mark.parametrize(
    ("process", "how", "sees", "meanwhile"), FAILURES, ids=lambda value: value.replace(" ", "-")
)
def test_what_dies_comes_back_without_a_hand(
    served: Composed, undisturbed: str, process: str, how: str, sees: str, meanwhile: str
) -> None:
    """Each row of the failure table: what clients with open streams see, and
    what one sees who comes right then.
    """
    if process == "init" and os.geteuid() != 0:
        pytest.skip("only root of the host can kill a container's first process")
    wait_for(served.answers, 120)  # a row does not suffer from the one before
    life = served.life(process)
    signal_it = served.ready_to_signal(process, life[1], HOW[how])
    onlookers = [HttpOnlooker(served.http_port, LONG), GrpcOnlooker(served.grpc_port, LONG)]
    for onlooker in onlookers:
        onlooker.wait_for_text()
    killed_s = time.monotonic()
    signal_it()
    newcomer = HttpOnlooker(served.http_port, SHORT)
    assert not any(onlooker.answer.reasons for onlooker in onlookers), (
        "the answers were too short to be interrupted"
    )
    wait_for(lambda: served.life(process) != life and served.pid(process), 90)
    wait_for(served.answers, 90)
    back_s = time.monotonic() - killed_s
    for onlooker in onlookers:
        onlooker.join()
        assert onlooker.saw in sees.split(" or ")
        assert (
            undisturbed == onlooker.answer.text
            if sees == "the whole answer"
            else undisturbed.startswith(onlooker.answer.text)
        )
    newcomer.join()
    assert newcomer.saw in meanwhile.split(" or ")
    NOTES.append(f"{process} {how}: answers again after {back_s:.1f} s")


def test_three_pauses_of_the_container_are_pauses_and_nothing_else(
    served: Composed, undisturbed: str
) -> None:
    """15 s each, which is longer than any process may be silent. A pause that begins inside a call of a
    Python model may end the call or tritonserver (docs/operations.md, "What remains of a pause"): then, and
    only then, they are tried again.
    """
    for _ in range(3):
        before = logs_of(served)
        try:
            three_pauses(served, undisturbed)
            return
        except AssertionError:
            said = logs_of(served).removeprefix(before)
            if "is not healthy" not in said and "Signal (11)" not in said:
                raise
            NOTES.append("a pause began inside a call of a Python model; tried again")
    raise AssertionError("three times a pause ended a call or tritonserver")


def logs_of(served: Composed) -> str:
    return run("bash", "-c", f"docker logs {served.container} 2>&1")


def three_pauses(served: Composed, undisturbed: str) -> None:
    wait_for(served.answers, 120)
    processes = ("instance", "tritonserver", "tokenizer", "scheduler", "detokenizer")
    lives = {process: served.life(process) for process in processes}
    onlookers = [HttpOnlooker(served.http_port, LONG), GrpcOnlooker(served.grpc_port, LONG)]
    for onlooker in onlookers:
        onlooker.wait_for_text()
    for _ in range(3):
        run("docker", "pause", served.container)
        time.sleep(15)
        run("docker", "unpause", served.container)
        time.sleep(0.5)
    for onlooker in onlookers:
        onlooker.join()
    assert [(onlooker.saw, onlooker.answer.text) for onlooker in onlookers] == 2 * [
        ("the whole answer", undisturbed)
    ]
    time.sleep(12)  # whatever was to be given up would have been by now
    assert {process: served.life(process) for process in processes} == lives


def test_a_model_that_can_not_be_loaded_again_ends_the_launcher_and_docker_starts_it_anew(
    served: Composed,
) -> None:
    """First the launcher tries five times, then the restart policy, until somebody has mended the file."""
    broken = served.model / "tokenizer.json"
    whole, restarts = broken.read_text(), int(served.inspect(".RestartCount"))
    broken.write_text("{")
    served.ready_to_signal("tokenizer", served.pid("tokenizer"), signal.SIGKILL)()
    wait_for(lambda: int(served.inspect(".RestartCount")) >= restarts + 2, 240)
    broken.write_text(whole)
    wait_for(served.answers, 120)
    logs = run("bash", "-c", f"docker logs {served.container} 2>&1")
    assert "tritonserver was started 5 times and never got ready" in logs
    assert re.search(r"/model/tokenizer\.json: .*EOF while parsing", logs)


def test_stop_lets_open_requests_end_and_takes_no_new_ones(served: Composed, undisturbed: str) -> None:
    onlookers = [HttpOnlooker(served.http_port, LONG), GrpcOnlooker(served.grpc_port, LONG)]
    for onlooker in onlookers:
        onlooker.wait_for_text()
    stopping = threading.Thread(target=served.compose, args=["stop"])
    stopping.start()
    wait_for(lambda: "draining" in run("bash", "-c", f"docker logs {served.container} 2>&1"), 60)
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
