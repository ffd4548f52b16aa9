"""Five hundred random requests against a real server; `make fuzz` sends ten thousand."""

from __future__ import annotations

import random
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tests.support.server import memory, random_requests
from tests.support.server.fuzzing import NUM_CONTROLS, Fuzz
from tests.support.server.serving import ROOT, Gapless


def test_every_input_of_the_ensemble_is_drawn_with_wrong_values_and_most_with_right_ones() -> None:
    path: Path = ROOT / "model_repository/ensemble/config.pbtxt"
    inputs = {tensor.name for tensor in text_format.Parse(path.read_text(), ModelConfig()).input}
    assert set(random_requests.FIELDS) == inputs
    rng = random.Random(1)
    made = [service_pb2.ModelInferRequest.FromString(random_requests._valid(rng, "grpc")) for _ in range(500)]
    drawn = {tensor.name for request in made for tensor in request.inputs}
    assert {"stop_words", "stop_token_ids", "return_log_probs", "num_top_log_probs", "temperature"} < drawn


def test_nothing_that_clients_send_harms_the_server_or_a_neighbour(gapless: Gapless) -> None:
    report = Fuzz(gapless, seed=1, num_requests=500).run()
    print(memory.table(report.marks))
    print(report.outcomes)
    assert not report.problems, "\n".join(report.problems[:5])
    assert sum(report.outcomes.values()) == 500
    assert report.num_control_answers >= NUM_CONTROLS
    assert report.outcomes["stop"] + report.outcomes["length"] > 100, "many were right"
    assert report.outcomes["refused"] > 100, "and many wrong"
