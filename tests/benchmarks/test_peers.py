"""The parts of `benchmarks/peers` that all engines share."""

from __future__ import annotations

import inspect
import json
import random
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks import ROOT
from benchmarks.common.models import SHAPES, VOCABULARY, make_tokenizer, num_tokens, text_of
from benchmarks.common.scored_text import Scores, TextAgreement
from benchmarks.common.work import (
    BLOCK_TOKENS,
    WORKS,
    Job,
    Timing,
    Work,
    closed_loop,
    kv_blocks,
    load_work,
    same_tokens,
)
from benchmarks.peers import environments, setups
from benchmarks.peers import measurement as peers
from benchmarks.peers import process as engine_process
from benchmarks.peers.check import Agreement
from benchmarks.peers.environments import Environment, packages_of, vllm_variants
from benchmarks.peers.measurement import LeftOut, Measurement, Peers, rotated
from benchmarks.peers.process import EngineProcess, engine_class, read_work
from benchmarks.peers.report import (
    FIGURES,
    Case,
    Row,
    Spread,
    fields_of,
    line_of,
    ratios,
    row_of,
    summaries,
    table,
)
from benchmarks.peers.setups import SETUPS, Setup, default_engines, setups_of
from benchmarks.peers.workers import amd_pace, llama_cpp


class OneTokenAStep:
    """Answers all of its requests with one token a step, and remembers how many it had at once."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most = 0

    def submit(self, index: int, job: Job) -> None:
        self.left[index] = job.max_tokens
        self.most = max(self.most, len(self.left))

    def step(self) -> list[tuple[int, list[int]]]:
        came = [(index, [left]) for index, left in self.left.items()]
        self.left = {index: left - 1 for index, left in self.left.items() if left > 1}
        return came


def test_the_closed_loop_keeps_as_many_in_flight_as_it_may_and_counts_every_token():
    engine, work = OneTokenAStep(), load_work(quick=False)
    timings = closed_loop(work, engine.submit, engine.step)
    assert engine.most == work.in_flight == 16
    assert [len(timing.tokens) for timing in timings] == [job.max_tokens for job in work.jobs]
    assert all(
        timing.submitted <= timing.tokens[0] <= timing.ended == timing.tokens[-1] for timing in timings
    )
    assert [timing.ids for timing in timings] == [list(range(job.max_tokens, 0, -1)) for job in work.jobs]


def test_the_longer_work_is_the_same_at_each_call_and_its_lengths_reach_their_limits():
    work = load_work(quick=False, name="longer")
    assert work == load_work(quick=False, name="longer")
    prompts, answers = [len(job.prompt) for job in work.jobs], [job.max_tokens for job in work.jobs]
    assert (min(prompts), max(prompts), min(answers), max(answers)) == (32, 1500, 16, 600)
    assert sum(length < 32 * (1500 / 32) ** 0.5 for length in prompts) == len(prompts) / 2
    assert sum(length < 16 * (600 / 16) ** 0.5 for length in answers) == len(answers) / 2
    assert prompts != sorted(prompts)
    assert len({tuple(job.prompt[:8]) for job in work.jobs}) == len(work.jobs)
    assert all(0 <= token < VOCABULARY for job in work.jobs for token in job.prompt)


def test_a_round_of_the_longer_work_has_at_most_twice_the_tokens_of_the_usual_one():
    usual, longer = (fields_of(load_work(quick=False, name=name)) for name in ("W", "longer"))
    for kind in ("prompt_tokens", "answer_tokens"):
        assert usual[kind] < longer[kind] <= 2 * usual[kind]


@pytest.mark.parametrize("name", WORKS)
def test_the_context_holds_the_longest_prompt_with_the_longest_answer(name: str):
    about = fields_of(load_work(quick=False, name=name))
    assert about["longest_prompt"] + about["longest_answer"] < about["max_model_tokens"]


@pytest.mark.parametrize("name", WORKS)
def test_quick_takes_few_requests_with_short_answers_and_has_the_context_of_the_whole_work(name: str):
    work, quick = load_work(quick=False, name=name), load_work(quick=True, name=name)
    assert [job.prompt for job in quick.jobs] == [job.prompt for job in work.jobs[:16]]
    assert max(job.max_tokens for job in quick.jobs) == 12
    for one in (quick, work.shifted(1, VOCABULARY)):
        assert (one.name, one.max_model_tokens, one.in_flight) == (name, work.max_model_tokens, 16)


def test_a_work_is_the_same_on_the_engines_side():
    work = load_work(quick=True, name="longer")
    assert read_work(json.loads(json.dumps(asdict(work)))) == work


def test_a_line_says_which_work_it_was():
    work = Work([Job([1] * 1000, 20), Job([1] * 500, 30)], 16, name="longer")
    assert line_of(work) == (
        "work longer: 2 requests, 16 in flight; prompts of up to 1,000 tokens, 1,500 in all; answers of up to"
        " 30, 50 in all"
    )
    assert Measurement(Case("", "float32", work), 1, tries=False).about()["work"] == fields_of(work)


def test_a_round_has_the_lengths_of_the_others_and_no_prompt_of_theirs():
    work = load_work(quick=False)
    shifted = work.shifted(1, VOCABULARY)
    assert [(len(job.prompt), job.max_tokens) for job in shifted.jobs] == [
        (len(job.prompt), job.max_tokens) for job in work.jobs
    ]
    assert not any(one.prompt == other.prompt for one, other in zip(work.jobs, shifted.jobs, strict=True))
    assert all(token < VOCABULARY for job in shifted.jobs for token in job.prompt)


def test_every_sequence_of_ids_has_one_text(tmp_path: Path):
    make_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = random.Random(1).choices(range(VOCABULARY), k=500)
    assert tokenizer.encode(text_of(ids)).ids == ids
    assert tokenizer.decode(ids) == text_of(ids)
    assert num_tokens(text_of(ids)) == 500


def test_a_row_is_worked_out_by_hand():
    timings = [Timing(0.0, [1.0, 1.5, 3.0, 3.0], 3.0), Timing(1.0, [2.0], 5.0)]
    row = row_of("some", Case("S", "bfloat16", Work([], 2)), 2, 4, timings, 2.0)
    assert (row.round, row.tok_s, row.req_s, row.latency_mean_s, row.ttft_p50_ms) == (
        4,
        5 / 5,
        2 / 5,
        3.5,
        1000.0,
    )
    assert (row.itl_p50_ms, row.itl_mean_ms) == (500.0, pytest.approx(2000 / 3))  # 0.5, 1.5 and 0 s
    assert row.piece_p50_ms == 1000.0  # 0.5 and 1.5 s: the last two tokens came together


CASE = "S, bfloat16, weights same, 16 in flight"


def row(engine: str, tok_s: float, number: int = 1, weights: str = "same", in_flight: int = 16) -> Row:
    figures = [tok_s] + [1.0] * (len(FIGURES) - 1)
    return Row(engine, "S", "bfloat16", weights, in_flight, number, *figures)


def test_ratios_are_medians_of_rounds_of_ours_over_theirs_and_through_triton_over_alone():
    speeds = {"gapless": (10, 20, 30), "gapless_triton": (9, 18, 30), "vllm": (5, 20, 20)}
    found = ratios(
        [
            row(engine, value, number)
            for engine, values in speeds.items()
            for number, value in enumerate(values)
        ]
    )
    assert found == {
        f"{CASE}: gapless / vllm": Spread(1.5, 1.0, 2.0),
        f"{CASE}: gapless_triton / gapless": Spread(0.9, 0.9, 1.0),
        f"{CASE}: gapless_triton / vllm": Spread(1.5, 0.9, 1.8),
    }


def test_ratios_are_of_engines_with_weights_of_one_width_and_as_many_requests_at_once():
    rows = [
        row("gapless", 10.0),
        row("vllm", 5.0),
        row("gapless", 4.0, in_flight=1),
        row("gapless int8", 20.0, weights="int8"),
        row("gapless_triton int8", 18.0, weights="int8"),
        row("vllm W8A8", 8.0, weights="int8"),
    ]
    int8 = "S, bfloat16, weights int8, 16 in flight"
    assert {name: ratio.median for name, ratio in ratios(rows).items()} == {
        f"{CASE}: gapless / vllm": 2.0,
        f"{int8}: gapless int8 / vllm W8A8": 2.5,
        f"{int8}: gapless_triton int8 / gapless int8": 0.9,
        f"{int8}: gapless_triton int8 / vllm W8A8": 2.25,
    }


def test_the_table_has_the_agreement_on_a_text_next_to_the_engine_that_has_one():
    found = {("S", "vllm"): TextAgreement(0.951, 34.5)}
    head, _, vllm, ours = table([row("vllm", 5.0), row("gapless", 10.0)], found).splitlines()
    assert head.endswith("| likeliest | perplexity |")
    assert vllm.endswith("| 0.951 | 34.50 |")
    assert ours.endswith("|  |  |")
    assert "likeliest" not in table([row("vllm", 5.0)])


def test_fewer_at_once_get_fewer_requests():
    work = load_work(quick=False)
    for in_flight, count in ((1, 8), (4, 16), (16, 64)):
        some = work.at_once(in_flight)
        assert (some.in_flight, some.jobs) == (in_flight, work.jobs[:count])


def test_an_engine_has_a_row_for_each_of_its_formats_and_none_without_one():
    names = ["gapless", "llama_cpp", "transformers"]
    rows = setups_of(names, "int4")
    assert [each.name for each in rows] == [
        "gapless int4",
        "llama_cpp Q4_0",
        "llama_cpp Q4_1",
        "llama_cpp Q4_K_M",
    ]
    assert [each.options["weights"] for each in rows] == ["int4", "Q4_0", "Q4_1", "Q4_K_M"]
    assert [each.name for each in setups_of(names)] == names


def test_rounds_that_one_engine_did_not_finish_count_in_no_ratio():
    rows = [row("gapless", 10, 1), row("gapless", 40, 2), row("vllm", 5, 1)]
    assert ratios(rows) == {f"{CASE}: gapless / vllm": Spread(2.0, 2.0, 2.0)}


def test_the_table_and_the_summary_give_medians_and_between_which_the_rounds_lie():
    rows = [row("vllm", value, number) for number, value in enumerate((150.0, 140.0, 190.0))]
    assert "150 (140–190)" in table(rows)
    (summary,) = summaries(rows)
    assert (summary["engine"], summary["rounds"]) == ("vllm", 3)
    assert summary["tok_s"] == {"median": 150.0, "min": 140.0, "max": 190.0}


def test_every_engine_is_once_the_first():
    names = ["a", "b", "c"]
    assert [rotated(names, number) for number in range(3)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]
    assert rotated([], 4) == []


def test_the_default_rows_have_both_precisions_of_openvinos_kv_and_ours_with_and_without_layers():
    assert {
        "gapless",
        "gapless_triton",
        "openvino",
        "openvino_defaults",
        "vllm",
    } < set(default_engines("S"))
    assert "gapless_torch" in default_engines("S")
    assert "gapless_torch" not in default_engines("M")


def test_a_pool_of_a_gib_has_as_many_blocks_as_fit(tmp_path: Path):
    heads = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 8}
    (tmp_path / "config.json").write_text(json.dumps(heads))
    assert kv_blocks(tmp_path, "bfloat16") * 8 * 2 * 4 * 64 * 32 * 2 == 2**30
    assert kv_blocks(tmp_path, "float32") == kv_blocks(tmp_path, "bfloat16") // 2


@pytest.mark.parametrize("shape", ["S", "M"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_pool_holds_as_many_of_the_longest_requests_as_are_in_flight(
    shape: str, dtype: str, tmp_path: Path
):
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[shape]))
    for name in WORKS:
        work = load_work(quick=False, name=name)
        of_one = -(-work.max_model_tokens // BLOCK_TOKENS)
        assert kv_blocks(tmp_path, dtype) >= work.in_flight * of_one


def test_an_engine_is_started_with_the_context_and_the_requests_of_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What the process is told, seen by a script in the place of its Python; and what it makes of it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nshift 6\necho "{\\"versions\\": {\\"told\\": \\"$1 $2\\"}}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(setups, "ready", lambda _name: Environment(python))
    work = Work([], 3, max_model_tokens=2176)
    process = EngineProcess(SETUPS["vllm"], tmp_path, "bfloat16", work)
    process.close()
    assert process.versions == {"told": "3 2176"}
    started: list[object] = []
    monkeypatch.setattr(engine_process, "serve", lambda *words: started.extend(words))
    engine_process.main("serve", "vllm", "/model", "bfloat16", "3", "2176", "{}")
    assert started == ["vllm", Path("/model"), "bfloat16", 3, 2176, {}]


@pytest.mark.parametrize("worker", sorted({setup.worker for setup in SETUPS.values()}))
def test_every_worker_takes_requests_in_flight_and_the_context_in_this_order(worker: str):
    names = [name.lstrip("_") for name in inspect.signature(engine_class(worker)).parameters]
    assert names[:4] == ["directory", "dtype", "in_flight", "max_model_tokens"]


def test_an_engines_process_needs_none_of_the_projects_packages():
    lacking = (
        "import sys; sys.modules.update(dict.fromkeys(('tokenizers', 'torch', 'transformers', 'msgspec')))"
    )
    imports = "import benchmarks.peers.process, benchmarks.peers.workers.llama_cpp"
    subprocess.run([sys.executable, "-c", f"{lacking}; {imports}"], cwd=ROOT, check=True)


def test_what_scores_take_is_not_in_the_memory_that_answers_take(monkeypatch: pytest.MonkeyPatch):
    happened: list[str] = []

    class Engine:
        def score(self, _texts: list[list[int]]) -> list[Scores]:
            happened.append("scored")
            return [Scores([0.5], [1])]

    monkeypatch.setattr(engine_process, "with_descendants", lambda pid: [pid, pid + 1])
    monkeypatch.setattr(engine_process, "clear_peak", lambda _pid: happened.append("cleared"))
    told = engine_process.answer_of(Engine(), {"texts": [[1, 2]]})
    assert told["scores"] == [asdict(Scores([0.5], [1]))]
    assert happened == ["scored", "cleared", "cleared"]


def test_an_engine_that_has_ended_is_said_to_have_and_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "{\\"versions\\": {}}"\nexit 3\n')
    python.chmod(0o755)
    monkeypatch.setattr(setups, "ready", lambda _name: Environment(python))
    process = EngineProcess(SETUPS["vllm"], tmp_path, "bfloat16", Work([], 1))
    process._process.wait()
    with pytest.raises(RuntimeError, match="vllm: its process ended with 3"):
        process.run(Work([], 1))
    process.close()


def test_a_program_that_does_not_become_ready_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llama_cpp, "READY_S", 0)
    ended: list[bool] = []
    with pytest.raises(RuntimeError, match="some program was not ready"):
        llama_cpp.await_health(1, "/health", "some program", lambda: ended.append(True))
    assert ended == [True]


def test_a_pace_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(amd_pace, "END_S", 0.1)
    script = "trap '' TERM; echo ready; while true; do sleep 1; done"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        engine = object.__new__(amd_pace.Engine)
        engine._process = process
        engine.close()
    assert process.returncode == -signal.SIGKILL


def test_every_engine_is_started_with_large_pages_and_with_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What the process gets, seen by a script in the place of its Python."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "{\\"versions\\": {\\"tunables\\": \\"$GLIBC_TUNABLES\\", \\"own\\": \\"$OWN\\"}}"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(setups, "ready", lambda name: Environment(python, {"OWN": name}))
    for name in SETUPS:
        process = EngineProcess(SETUPS[name], tmp_path, "bfloat16", Work([], 1))
        process.close()
        assert process.versions == {"tunables": "glibc.malloc.hugetlb=1", "own": SETUPS[name].engine}


def test_vllm_is_tried_with_both_allocators_and_with_its_engine_in_either_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environments, "ready", lambda _name: Environment())
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    (tmp_path / "vllm" / "lib").mkdir(parents=True)
    (tmp_path / "vllm" / "lib" / "libiomp5.so").touch()
    monkeypatch.setattr(environments, "find_tcmalloc", lambda: Path("/lib/libtcmalloc_minimal.so.4"))
    found = vllm_variants("vllm")
    assert list(found) == [
        "glibc, in the client's process",
        "glibc, in processes of its own",
        "tcmalloc, in the client's process",
        "tcmalloc, in processes of its own",
    ]
    assert found["tcmalloc, in processes of its own"] == {
        "LD_PRELOAD": f"/lib/libtcmalloc_minimal.so.4:{tmp_path}/vllm/lib/libiomp5.so",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    monkeypatch.setattr(environments, "find_tcmalloc", lambda: None)
    assert list(vllm_variants("vllm")) == ["glibc, in the client's process", "glibc, in processes of its own"]


def test_a_list_of_packages_adds_to_another_one(tmp_path: Path):
    (tmp_path / "one.lock").write_text("torch==1\na==1\n")
    (tmp_path / "two.lock").write_text("-r one.lock\nb==1\n")
    assert packages_of(tmp_path / "one.lock") == "torch==1\na==1\n"
    assert packages_of(tmp_path / "two.lock") == "torch==1\na==1\nb==1\n"


def test_amds_engines_are_compared_where_they_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(setups, "is_amd", lambda: False)
    assert default_engines("SmolLM2") == ["gapless", "openvino", "vllm", "llama_cpp"]
    monkeypatch.setattr(setups, "is_amd", lambda: True)
    names = default_engines("SmolLM2")
    assert names[4:] == ["vllm_zentorch", "amd_pace"]
    assert [each.name for each in setups_of(names[4:], "int8")] == ["vllm_zentorch W8A8"]


def test_ids_of_pace_are_read_from_lines_that_come_in_any_pieces():
    streams, timing = amd_pace.Streams(1, 0), Timing(0.0, [])
    answer = b"HTTP/1.1 200 OK\r\n\r\n4\r\n17 5\n\r\n4\r\n101\n\r\n7\r\n[DONE]\n\r\n0\r\n\r\n"
    streams._read([(float(at), answer[at : at + 1]) for at in range(len(answer))], timing)
    assert timing.ids == [17, 5, 101]
    assert timing.tokens == [answer.index(b"\n", answer.index(b"17"))] * 2 + [answer.index(b"101") + 3]
    with pytest.raises(RuntimeError, match="error"):
        streams._read([(0.0, b"6\r\nERROR\n\r\n")], Timing(0.0, []))
    streams.close()


def agreement(engine: str, same: int, *, must_agree: bool = True) -> Agreement:
    return Agreement(engine, "float32", same, 16, same * 10, 160, must_agree)


def test_an_engine_with_other_float32_tokens_is_not_measured(monkeypatch: pytest.MonkeyPatch):
    class Same:
        def __init__(self, _directory: Path) -> None: ...

        def compare(self, setup: Setup, _dtype: str) -> Agreement:
            return {
                "gapless": agreement("gapless", 16),
                "vllm": agreement("vllm", 15),
                "openvino_defaults": agreement("openvino_defaults", 15, must_agree=False),
            }[setup.name]

    monkeypatch.setattr(peers, "SameTokens", Same)
    started: list[str] = []
    monkeypatch.setattr(Peers, "start", lambda _self, setups: started.extend(setup.name for setup in setups))
    monkeypatch.setattr(peers, "make_model", lambda *_: None)
    monkeypatch.setattr(peers, "make_tokenizer", lambda *_: None)
    measurement = Measurement(Case("", "float32", Work([], 1)), 1, tries=False)
    engines = ["gapless", "vllm", "openvino_defaults"]
    measurement.compare_tokens(engines)
    measurement.measure("S", engines)
    assert started == ["gapless", "openvino_defaults"]
    assert measurement.left_out.reasons == {"vllm": "its float32 tokens are not the reference's"}
    assert [row["same_answers"] for row in measurement.about()["same_tokens"]] == [16, 15, 15]


def test_tokens_are_the_same_up_to_the_first_that_differs():
    assert same_tokens([1, 2, 3], [1, 2, 4, 5]) == 2
    assert same_tokens([1, 2, 3], [1, 2, 3, 4]) == 3


def test_an_engine_whose_environment_cannot_be_made_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object) -> None:
        raise subprocess.CalledProcessError(1, ["pip", "install"])

    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "run", fails)
    left_out = LeftOut()
    made = Peers(Case("S", "bfloat16", Work([], 1)), tmp_path, left_out)
    made.start([SETUPS["openvino"], SETUPS["vllm"]])
    assert list(left_out.reasons) == ["S: openvino", "S: vllm"]
    assert made.run(1) == []
    assert not list(tmp_path.rglob("made"))


def test_there_is_a_rest_before_each_engines_turn_and_no_pass_has_the_prompts_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    happened: list[str] = []
    prompts: dict[str, list[list[int]]] = {"gapless": [], "vllm": []}

    class Process:
        def __init__(self, setup: Setup, *_: object) -> None:
            self._name = setup.name
            self.versions = {"python": "3"}

        def run(self, work: Work) -> tuple[list[Timing], float]:
            happened.append(self._name)
            prompts[self._name].append(work.jobs[0].prompt)
            return [Timing(0.0, [1.0, 2.0], 2.0)], 0.1

    monkeypatch.setattr(peers, "EngineProcess", Process)
    monkeypatch.setattr(peers, "prepare_model", lambda *_: None)
    monkeypatch.setattr(
        peers.time, "sleep", lambda seconds: happened.append("rest") if seconds >= 1 else None
    )
    made = Peers(Case("S", "bfloat16", Work([Job([1], 2)], 1), at_once=(1, 4)), tmp_path, LeftOut())
    made.start([SETUPS["gapless"], SETUPS["vllm"]])
    rows = made.run(1)
    turns = ["gapless", "gapless", "vllm", "vllm", "vllm", "vllm", "gapless", "gapless"]
    assert happened == [each for turn in turns for each in ("rest", turn)]
    assert [(row.engine, row.in_flight, row.round) for row in rows] == [
        ("gapless", 1, 1),
        ("gapless", 4, 1),
        ("vllm", 1, 1),
        ("vllm", 4, 1),
    ]
    assert prompts == {"gapless": [[1], [2], [3], [4]], "vllm": [[1], [2], [3], [4]]}


def test_an_engine_for_which_there_is_no_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "free_gib", lambda: 3.0)
    left_out = LeftOut()
    Peers(Case("M", "bfloat16", Work([], 1)), tmp_path, left_out).start([SETUPS["gapless"]])
    assert "only 3.0 GiB" in left_out.reasons["M: gapless"]
