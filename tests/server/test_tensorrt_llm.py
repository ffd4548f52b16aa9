"""The pipeline on a real Triton over the TensorRT-LLM engine and its stand-in:
the toy engine's questions, and some of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.test_cancelling import test_a_lone_client_that_leaves_gives_its_slot_back
from tests.server.test_recovery import (
    LONG,
    check_that_only_the_poisonous_request_fails,
    test_streams_go_on_with_the_same_text_when_the_instance_is_killed_or_stalls,
    test_two_hundred_requests_a_third_of_them_abandoned_leave_nothing_behind,
)
from tests.server.test_sampling import (
    test_a_stop_token_id_ends_the_answer,
    test_an_answer_in_one_piece_brings_all_its_log_probabilities,
    test_streams_bring_each_log_probability_once_although_the_instance_dies,
)
from tests.server.test_serving import (
    test_a_chat_is_rendered_with_the_models_own_template,
    test_a_deadline_ends_an_answer_with_what_there_is,
    test_a_stop_word_ends_the_answer_and_is_never_sent,
    test_generate_answers_in_one_piece,
    test_generate_stream_sends_the_same_text_in_pieces,
    test_grpc_streams_the_same_text,
    test_metrics_are_there_and_count,
    test_the_same_seed_gives_the_same_text_and_another_another,
)
from tests.support.server.expected import PROMPT, Expected
from tests.support.server.serving import Gapless, wait_for

ASKED_AGAIN = [  # of this module's server, because `gapless` is another one here
    test_a_chat_is_rendered_with_the_models_own_template,
    test_a_deadline_ends_an_answer_with_what_there_is,
    test_a_lone_client_that_leaves_gives_its_slot_back,
    test_a_stop_token_id_ends_the_answer,
    test_a_stop_word_ends_the_answer_and_is_never_sent,
    test_an_answer_in_one_piece_brings_all_its_log_probabilities,
    test_generate_answers_in_one_piece,
    test_generate_stream_sends_the_same_text_in_pieces,
    test_grpc_streams_the_same_text,
    test_metrics_are_there_and_count,
    test_streams_bring_each_log_probability_once_although_the_instance_dies,
    test_streams_go_on_with_the_same_text_when_the_instance_is_killed_or_stalls,
    test_the_same_seed_gives_the_same_text_and_another_another,
    test_two_hundred_requests_a_third_of_them_abandoned_leave_nothing_behind,
]

STANDIN = Path(__file__).resolve().parents[1] / "standin"
REFUSED = 510  # a prompt that ends with it gets a RequestError


@pytest.fixture(scope="module")
def gapless(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    """Gapless over the stand-in of TensorRT-LLM, 5 ms an iteration, 16 slots."""
    adapters = tmp_path_factory.mktemp("adapters")
    (adapters / "law").mkdir()
    (adapters / "law" / "adapter_config.json").write_text('{"r": 8}')
    with serve(toy_model, {"adapters.directory": adapters}, STANDIN_REFUSED_TOKEN=REFUSED) as served:
        yield served


def serve(model: Path, settings: dict[str, object], **manners: int) -> Gapless:
    environment = {"PYTHONPATH": str(STANDIN), "STANDIN_STEP_MS": "5"} | {
        name: str(value) for name, value in manners.items()
    }
    chosen = {
        "model.directory": model,
        "model.device": "cuda",
        "engine.kind": "tensorrt_llm",
        "engine.kv_blocks": 1024,
    }
    return Gapless(environment, **{**chosen, "streams.dead_after_s": 3, **settings})


def test_a_request_error_fails_its_own_request_alone(gapless: Gapless, expected: Expected) -> None:
    culprit = f"x{expected.decode([REFUSED])}"
    assert expected.ids(culprit)[-1] == REFUSED
    instance = gapless.instance_pid()
    client = gapless.grpc()
    answers = [client.ask(f"{n}", text_input=f"{PROMPT} {n}", **LONG) for n in range(4)]
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers))
    refused = gapless.generate_stream(text_input=culprit, max_tokens=20)
    client.finish()
    client.close()
    assert "this request has gone wrong" in refused.error
    assert [answer.text for answer in answers] == [expected.text(f"{PROMPT} {n}", **LONG) for n in range(4)]
    assert gapless.instance_pid() == instance
    wait_for(gapless.is_idle, 60)


def test_an_adapter_is_asked_for_by_its_name(gapless: Gapless, expected: Expected) -> None:
    plain = gapless.generate(text_input=PROMPT, max_tokens=20, min_tokens=20)["text_output"]
    adapted = gapless.generate(text_input=PROMPT, max_tokens=20, min_tokens=20, lora_name="law")[
        "text_output"
    ]
    assert plain == expected.text(PROMPT, max_tokens=20, min_tokens=20) != adapted
    refused = gapless.generate(text_input=PROMPT, lora_name="jokes")
    assert "lora_name = 'jokes': must be one of law, or absent" in refused["error"]


def test_log_probabilities_of_prompts_are_refused_by_name(gapless: Gapless) -> None:
    refused = gapless.generate(text_input=PROMPT, return_log_probs=True, return_prompt_log_probs=True)
    assert "return_prompt_log_probs = True: the engine of this server can't follow it" in refused["error"]


def test_what_the_default_sampler_takes_no_notice_of_is_refused_by_name(gapless: Gapless) -> None:
    refused = gapless.generate(text_input=PROMPT, repetition_penalty=1.5)
    assert "repetition_penalty = 1.5: the engine of this server can't follow it" in refused["error"]


def test_when_the_engine_dies_its_instance_ends_and_only_the_culprit_fails(
    toy_model: Path, expected: Expected
) -> None:
    with serve(toy_model, {}, STANDIN_FATAL_TOKEN=511) as served:
        check_that_only_the_poisonous_request_fails(served, expected, num_tokens=200)
        assert "illegal memory access" in served.log
        assert "instance 0 ended with 1; starting it again" in served.log
        assert "no heartbeat" not in served.log, "it ended by itself"
