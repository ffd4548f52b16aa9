"""Adapters of an instance without an engine: what a directory has, who gets a slot, and which adapter makes
place for another.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.engine.protocol import BadAdapterError, ReadAdapter
from python_backends.instance.adapter_files import AdapterFiles
from python_backends.instance.adapter_thread import AdapterThread, Listed, Loaded, NotLoaded
from python_backends.instance.adapters import InstanceAdapters
from python_backends.nouns.request import (
    BASE,
    AdapterVersion,
    LengthPrediction,
    ModelLimits,
    Request,
    Sampling,
    WaitReason,
)
from python_backends.nouns.step import Admit, Release, SlotOperation, StepOutput
from python_backends.scheduling.handover import RefusedMove
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import SchedulingSettings
from tests.support.server.serving import wait_for

BOUND_S = 10.0  # that a request may be passed over
A, B, C = (AdapterVersion(name, "1", digest * 16) for name, digest in (("a", "0a"), ("b", "0b"), ("c", "0c")))


def write(directory: Path, content: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(content)


def read(directory: Path, root: Path) -> ReadAdapter:
    """The content is the digest; "bad" is refused."""
    content = (directory / "adapter_config.json").read_text()
    if content == "bad":
        raise BadAdapterError("use_dora = True: not supported")
    if content == "too large":
        raise MemoryError
    return ReadAdapter(content, f"weights of {content}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "law" / "1", "0a0a0a0a0a")
    write(tmp_path / "law" / "10", "0b0b0b0b0b")
    write(tmp_path / "law" / "9", "0c0c0c0c0c")
    write(tmp_path / "law" / "next", "0d0d0d0d0d")
    write(tmp_path / "flat", "0e0e0e0e0e")
    write(tmp_path / "broken", "bad")
    write(tmp_path / "no name", "0f0f0f0f0f")
    return tmp_path


def test_a_directory_has_numbered_versions_or_is_an_adapter_itself(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = AdapterFiles(root, read)
    found = [(each.full_name, each.digest) for each in files.search()]
    assert found == [
        ("flat@0e0e0e0e", "0e0e0e0e0e"),
        ("law@1", "0a0a0a0a0a"),
        ("law@9", "0c0c0c0c0c"),
        ("law@10", "0b0b0b0b0b"),
    ]
    assert "adapter broken is not served: use_dora = True: not supported" in caplog.text
    assert "adapter 'no name' is not served: its name is not valid" in caplog.text
    caplog.clear()
    files.search()
    assert not caplog.text, "what was said once is not said again"


def test_what_changes_is_read_again(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = AdapterFiles(root, read)
    files.search()
    caplog.clear()
    write(root / "flat", "1e1e1e1e1e1e")
    write(root / "law" / "11", "bad")
    found = [each.full_name for each in files.search()]
    assert found == ["flat@1e1e1e1e", "law@1", "law@9", "law@10"]
    assert len(caplog.messages) == 2


def test_an_adapter_that_can_not_be_read_leaves_the_others_served(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a fault while it is read nor a directory into which this process may not look."""
    scandir = os.scandir

    def forbidden(path: Path) -> Any:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    write(root / "huge", "too large")
    (root / "secret").mkdir()
    files = AdapterFiles(root, read)
    assert len(files.search()) == len(files.search()) == 4
    assert caplog.text.count("adapter huge is not served") == 1
    assert caplog.text.count("adapter secret is not served: [Errno 13] Permission denied") == 1


def test_links_that_lead_nowhere_are_named_and_those_of_kubernetes_are_not(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "gone").symlink_to(root / "nothing")
    (root / "circle").symlink_to(root / "circle")
    (root / "law" / "11").symlink_to("nothing")
    (root / "cached").mkdir()
    (root / "cached" / "adapter_config.json").symlink_to("../blobs/nothing")
    (root / "empty" / "next").mkdir(parents=True)
    (root / "README").write_text("a file")
    write(root / "..2026_11_26" / "poems", "0f0f0f0f0f")
    (root / "..data").symlink_to("..2026_11_26")
    (root / "poems").symlink_to("..data/poems")
    files = AdapterFiles(root, read)
    found = [each.full_name for each in files.search()]
    assert found == [each.full_name for each in files.search()]
    assert found == ["flat@0e0e0e0e", "law@1", "law@9", "law@10", "poems@0f0f0f0f"]
    said = sorted(message.split(":")[0] for message in caplog.messages)
    names = ["broken", "cached", "circle", "empty", "gone", "law/11", "'no name'"]
    assert said == sorted(f"adapter {name} is not served" for name in names)
    assert "adapter gone is not served: it is a link that leads nowhere" in caplog.text
    assert "empty is not served: it has neither adapter_config.json nor a version" in caplog.text


def test_a_file_that_is_overwritten_with_its_size_and_time_kept_is_read_again(root: Path) -> None:
    files, path = AdapterFiles(root, read), root / "flat" / "adapter_config.json"
    files.search()
    times = path.stat()
    path.write_text("1e1e1e1e1e")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files.search()[0].full_name == "flat@1e1e1e1e"


def test_a_start_waits_for_the_newest_versions_and_the_others_follow(root: Path) -> None:
    """Each version takes a second."""
    now_s = 0.0

    def slowly(directory: Path, root: Path) -> ReadAdapter:
        nonlocal now_s
        now_s += 1
        return read(directory, root)

    for number in range(11, 14):
        write(root / "law" / str(number), f"{number}" * 5)
    files = AdapterFiles(root, slowly, lambda: now_s)
    names = [each.full_name for each in files.search(2.0, is_start=True)]
    assert (names, files.has_more) == (["flat@0e0e0e0e", "law@13"], True)
    names = [each.full_name for each in files.search(2.0)]
    assert (names, files.has_more) == (["flat@0e0e0e0e", "law@1", "law@9", "law@13"], True)
    files.search(2.0)
    assert len(files.search(2.0)) == 7
    assert not files.has_more


def test_a_root_that_is_not_there_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = AdapterFiles(tmp_path / "nothing", read)
    assert files.search() == files.search() == ()
    assert len(caplog.messages) == 1
    assert "nothing" in caplog.text


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        (AdapterVersion("law", "1", "0b"), "replaced by others"),
        (AdapterVersion("../law", "1", "0a"), "no valid name"),
        (AdapterVersion("broken", "1", "0a"), "use_dora"),
    ],
)
def test_only_the_content_that_was_asked_for_is_loaded(
    root: Path, adapter: AdapterVersion, says: str
) -> None:
    files = AdapterFiles(root, read)
    assert files.load(AdapterVersion("law", "9", "0c0c0c0c0c")).weights == "weights of 0c0c0c0c0c"
    assert files.load(AdapterVersion("flat", "0e0e0e0e", "0e0e0e0e0e")).digest == "0e0e0e0e0e"
    with pytest.raises(BadAdapterError, match=says):
        files.load(adapter)


def test_the_thread_says_what_is_new_and_what_was_loaded(root: Path) -> None:
    woken: list[None] = []
    thread = AdapterThread(AdapterFiles(root, read), lambda: woken.append(None), 0.05)
    try:
        law, bad = thread.listed[1], AdapterVersion("broken", "1", "0a")
        thread.load(law)
        thread.load(bad)
        wait_for(lambda: len(woken) == 2, 30)
        first, second = thread.take(), thread.take()
        assert isinstance(first, Loaded)
        assert (first.adapter, first.weights) == (law, "weights of 0a0a0a0a0a")
        assert second == NotLoaded(bad, "use_dora = True: not supported")
        write(root / "new", "ff00000000")
        wait_for(lambda: thread.has_news, 30)
        listed = thread.take()
        assert isinstance(listed, Listed)
        assert "new@ff000000" in [each.full_name for each in listed.adapters]
    finally:
        thread.close()


def test_a_new_adapter_is_found_at_once_when_the_thread_is_told_of_it(root: Path) -> None:
    thread = AdapterThread(AdapterFiles(root, read), lambda: None, 3600.0)
    try:
        write(root / "new", "ff00000000")
        thread.search()
        wait_for(lambda: thread.has_news, 30)
        listed = thread.take()
        assert isinstance(listed, Listed)
        assert "new@ff000000" in [each.full_name for each in listed.adapters]
    finally:
        thread.close()


class Adapters:
    """Engine and thread of a test: what is wanted is loaded when the test says so."""

    def __init__(self) -> None:
        self.listed: tuple[AdapterVersion, ...] = ()
        self.ordered: list[AdapterVersion] = []
        self.news: list[Any] = []
        self.installed: list[str] = []
        self.num_installed = 0  # so often

    @property
    def has_news(self) -> bool:
        return bool(self.news)

    def take(self) -> Any:
        return self.news.pop(0)

    def load(self, adapter: AdapterVersion) -> None:
        self.ordered.append(adapter)

    def load_all(self) -> None:
        self.news += [Loaded(adapter, None) for adapter in self.ordered]
        self.ordered.clear()

    def install_adapter(self, digest: str, weights: Any) -> None:
        self.installed.append(digest)
        self.num_installed += 1

    def drop_adapter(self, digest: str) -> None:
        self.installed.remove(digest)

    def read_adapter(self, directory: Path, root: Path) -> ReadAdapter:
        raise AssertionError("the thread reads")


class Served:
    """A slot scheduler whose steps are computed by hand: every token is 1."""

    def __init__(
        self, max_loaded: int, num_slots: int = 4, num_blocks: int = 64, policy: str = "ours"
    ) -> None:
        self.now_s = 0.0
        self.scheduler = SlotScheduler(
            ModelLimits(64, 100, num_slots, num_blocks, 4),
            settings=SchedulingSettings(policy),
            clock=lambda: self.now_s,
        )
        self.parts = Adapters()
        self.adapters = InstanceAdapters(
            self.scheduler,
            self.parts,
            self.parts,
            max_loaded,
            lambda listed: None,  # type: ignore[arg-type]
        )
        self.operations: list[SlotOperation] = []

    def submit(
        self, number: int, adapter: AdapterVersion, max_tokens: int = 20, length: int = 9, grammar: str = ""
    ) -> None:
        prompt = np.arange(length, dtype=np.int32)
        request = Request(number, prompt, Sampling(max_tokens, grammar=grammar), adapter=adapter)
        self.scheduler.submit(request, np.zeros(0, np.int32))

    def turn(self) -> list[Any]:
        failed = self.adapters.step()
        plan = self.scheduler.plan()
        if plan is not None:
            self.operations += plan.operations
            count = int(plan.samples.sum())
            running = np.zeros(count, np.uint8)
            self.scheduler.apply(plan, StepOutput(plan.number, np.ones(count, np.int32), running))
        self.scheduler.check_integrity()
        return failed

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.parts.load_all()
            self.turn()

    @property
    def admitted(self) -> list[str]:
        return [each.adapter.name for each in self.operations if isinstance(each, Admit)]


def test_a_sequence_gets_a_slot_only_when_its_adapter_is_loaded_and_others_pass() -> None:
    served = Served(max_loaded=2)
    served.submit(1, A)
    served.submit(2, BASE)
    for _ in range(3):
        served.turn()
    assert served.admitted == [""]
    assert served.parts.ordered == [A], "it is asked for once"
    assert served.scheduler.load().wait_reason is WaitReason.ADAPTER
    served.turns()
    assert served.admitted == ["", "a"]
    assert served.scheduler.load().wait_reason is None
    assert served.scheduler.load().num_adapters == 1


def test_the_adapter_that_was_used_longest_ago_makes_place_and_one_in_use_does_not() -> None:
    served = Served(max_loaded=2)
    served.submit(1, A)
    served.submit(2, B)
    served.turns(4)
    served.submit(3, C)
    served.turns(4)
    assert served.parts.installed == [A.digest, B.digest], "both are in use"
    assert "c" not in served.admitted
    served.scheduler.cancel(2)
    served.turns(4)
    assert served.parts.installed == [A.digest, C.digest]
    assert served.admitted == ["a", "b", "c"]


def test_an_adapter_stays_until_the_steps_launched_with_it_are_read() -> None:
    served = Served(max_loaded=1)
    served.submit(1, A)
    served.turns(3)
    plan = served.scheduler.plan()
    assert plan is not None
    served.scheduler.cancel(1)
    served.submit(2, B)
    assert served.scheduler.plan() is None
    served.turns(3)
    assert served.parts.installed == [A.digest]
    served.scheduler.apply(plan, StepOutput(plan.number, np.ones(1, np.int32), np.zeros(1, np.uint8)))
    served.turns(3)
    assert served.parts.installed == [B.digest]


def test_a_sequence_that_was_passed_over_for_too_long_lets_none_go_before_it() -> None:
    served = Served(max_loaded=1, num_slots=2)
    served.submit(1, A)
    served.turns(2)
    served.submit(2, B)
    served.turns(1)
    served.submit(3, A)
    served.turns(1)
    assert served.admitted == ["a", "a"], "another one passes"
    served.now_s = 100.0
    served.scheduler.cancel(1)
    served.submit(4, A)
    served.turns(3)
    assert served.scheduler.slots.num_free == 1
    assert served.admitted == ["a", "a"], "its adapter is loaded, and it waits"
    served.submit(5, BASE, max_tokens=2)
    served.turns(1)
    assert served.admitted == ["a", "a", ""], "it keeps no adapter in use"
    served.turns(2)
    served.scheduler.cancel(3)
    served.turns(4)
    assert served.admitted == ["a", "a", "", "b"]


@pytest.mark.parametrize("seconds", [1.0, 20.0])
@pytest.mark.parametrize("policy", ["fcfs", "ours"])
def test_many_that_wait_for_an_adapter_or_a_guide_hide_none_behind_them(policy: str, seconds: float) -> None:
    """Requests with another adapter keep the one that is loaded in use, so they wait behind one of the many
    that was passed over for too long.
    """

    def wait() -> None:
        served.now_s += seconds
        served.turns(1)

    served = Served(max_loaded=1, num_slots=4, policy=policy)
    served.scheduler.guides.wait_for(lambda sequence: False)
    served.submit(1, A, max_tokens=50)
    served.turns(4)
    for number in range(100, 300):
        served.submit(number, B)
    wait()
    served.submit(2, BASE)
    wait()
    for number in range(300, 500):
        served.submit(number, BASE, grammar="nobody prepares it")
    wait()
    served.submit(3, BASE)
    served.submit(4, A)
    wait()
    assert served.admitted == (["a", "", "", "a"] if seconds < BOUND_S else ["a", "", ""])


@pytest.mark.parametrize("max_loaded", [1, 2])
def test_no_adapter_is_dropped_that_an_earlier_request_waits_with(max_loaded: int) -> None:
    """None of them fits into memory beside the first request, and each is passed over."""
    served = Served(max_loaded, num_blocks=20)
    served.submit(1, BASE, max_tokens=55)
    served.scheduler.predict(1, LengthPrediction(54.0, np.full(6, 54, np.float32)))
    served.turns(2)
    for number, adapter in enumerate((A, B, C)[: max_loaded + 1], 2):
        served.submit(number, adapter, length=40)
    served.turns(10)
    assert served.admitted == [""]
    assert served.parts.num_installed == max_loaded
    served.turns(120)
    assert served.admitted == ["", "a", "b", "c"][: max_loaded + 2]


def test_what_cannot_be_loaded_ends_the_requests_that_wait_for_it() -> None:
    served = Served(max_loaded=1)
    for number, adapter in enumerate((A, A, B, BASE)):
        served.submit(number, adapter)
    served.turn()
    served.turn()
    served.parts.news = [NotLoaded(A, "it has gone")]
    failed = served.turn()
    assert [(each.request_id, each.error) for each in failed] == [
        (0, "lora_name = 'a@1': it has gone"),
        (1, "lora_name = 'a@1': it has gone"),
    ]
    served.parts.ordered.clear()
    served.turns(4)
    assert served.admitted == ["", "b"]


def test_a_request_moves_only_to_an_instance_that_has_loaded_its_adapter() -> None:
    served = Served(max_loaded=1)
    request = Request(1, np.arange(9, dtype=np.int32), Sampling(20), adapter=A)
    with pytest.raises(RefusedMove) as refused:
        served.scheduler.handover.reserve(served.scheduler.new_sequence(request, request.prompt[:0], 0))
    assert refused.value.why == "adapter"
    served.turns(3)
    assert served.parts.installed == [A.digest], "it is loaded meanwhile"
    served.scheduler.handover.reserve(served.scheduler.new_sequence(request, request.prompt[:0], 0))
    served.submit(2, B)
    served.turns(3)
    assert served.parts.installed == [A.digest], "the request that is about to come has it"


def test_blocks_of_other_adapters_are_not_found() -> None:
    served = Served(max_loaded=2)
    for number, adapter in enumerate((A, B, BASE, A)):
        served.submit(number, adapter, max_tokens=2)
        served.turns(5)
    hits = [started.num_prefix_hit_tokens for started in served.scheduler.take_started()]
    assert hits == [0, 0, 0, 8]
    assert sum(isinstance(each, Release) for each in served.operations) == 3
