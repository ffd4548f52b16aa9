"""The bundled model is trained in as many goes as it takes, and its card says what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.recipe import training as training_module
from models.recipe.card import BEGIN, END, publish, tables
from models.recipe.corpus import Corpus
from models.recipe.evaluation import Answer, Evaluation, Result, pearson, score
from models.recipe.examples import Batch, ExampleStream
from models.recipe.tasks import Exercise, all_tasks
from models.recipe.training import Budget, Training, export, mean_weights, schedule, stored_model
from models.recipe.velin import read_lexicon

MODEL = Path(__file__).resolve().parents[2] / "models" / "bundled"
TASKS = all_tasks(read_lexicon(MODEL))
SENTENCES = [
    "Return the number of lines in the file.",
    "This method is called when the connection is lost.",
    "The file is closed.",
]
FUNCTION = (
    "def read_all_lines(file_name):\n    with open(file_name) as text_file:\n        return"
    " text_file.readlines()"
)
SHORT = "def f(a_b):\n    return a_b"  # the first examples of a training are short
CORPUS = Corpus([SENTENCES], [(SHORT, SHORT), (FUNCTION, FUNCTION)])
STEPS = 5


class Interrupted(ExampleStream):
    """Is told to stop (Ctrl-C) while it makes its `last` batch."""

    last = 0

    def next_batch(self, progress: float) -> Batch:
        self.last -= 1
        if self.last == 0:
            raise KeyboardInterrupt
        return super().next_batch(progress)


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=4096, pad_token_id=1, tie_word_embeddings=True, **sizes))


def new_training(checkpoint: Path, last_batch: int = 0) -> Training:
    stream = Interrupted(CORPUS, TASKS, PreTrainedTokenizerFast.from_pretrained(MODEL), seed=1)
    stream.last = last_batch
    checkpoint.mkdir(exist_ok=True)
    return Training(tiny_model(), stream, Budget(STEPS, None), checkpoint, rate=1e-2)


def test_a_stopped_training_goes_on_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, optimisers, examples and position: the last step's weights are the same to the bit."""
    monkeypatch.setattr(training_module, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    straight = new_training(tmp_path / "straight")
    straight.run()
    for last_batch in (4, 3, 0):  # stops within its second step, then within the one after that, then never
        training = new_training(tmp_path / "stopped", last_batch)
        if last_batch:
            with pytest.raises(KeyboardInterrupt):
                training.run()
    assert training.position.step == 2
    training.run()
    assert (training.position.step, training.position.tokens) == (
        straight.position.step,
        straight.position.tokens,
    )
    wanted, got = straight.model.state_dict(), training.model.state_dict()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_a_finished_training_does_nothing_when_started_again(tmp_path: Path) -> None:
    new_training(tmp_path).run()
    again = new_training(tmp_path)
    before = {name: weight.clone() for name, weight in again.model.state_dict().items()}
    again.run()
    assert again.position.step == STEPS
    assert all(torch.equal(weight, again.model.state_dict()[name]) for name, weight in before.items())


def test_a_stored_model_that_is_trained_no_further_is_exported_as_it_was(tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)
    model = stored_model(MODEL)
    assert model.dtype == torch.float32
    export(model, tokenizer, read_lexicon(MODEL), tmp_path / "again")
    before, after = (load_file(folder / "model.safetensors") for folder in (MODEL, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    names = ("config.json", "tokenizer_config.json", "velin.json", "generation_config.json")
    assert [(MODEL / name).read_text() == (tmp_path / "again" / name).read_text() for name in names] == [
        True
    ] * 4


def test_the_mean_of_checkpoints_is_that_of_each_weight(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, steps in zip(folders, (1, STEPS), strict=True):
        training = new_training(folder)
        training._budget = Budget(steps, None)
        training.run()
    first, second = (torch.load(folder / "training.pt", weights_only=False)["model"] for folder in folders)
    mean = mean_weights(folders)
    assert mean.keys() == first.keys()
    assert all(torch.allclose(mean[name], (first[name] + second[name]) / 2) for name in mean)
    assert not all(torch.equal(mean[name], first[name]) for name in mean)


def test_a_budget_ends_by_steps_or_by_time() -> None:
    assert [Budget(10, None).progress(step, 1e9) for step in (0, 5, 20)] == [0.0, 0.5, 1.0]
    assert [Budget(None, 2.0).progress(10**9, seconds) for seconds in (0, 60, 300)] == [0.0, 0.5, 1.0]
    assert schedule(0, 0.0) < schedule(99, 0.5) == 1.0 > schedule(500, 0.9) > schedule(500, 1.0) > 0


def test_scores_by_hand() -> None:
    exercises = [
        Exercise("Say:", " ", given, answer) for given, answer in [("a", "a b"), ("b", "c d"), ("c", "e")]
    ]
    answers = [Answer("a b", True, 4, 1, 2), Answer("c x", True, 5, 2, 4), Answer("", False, 6, 3, 6)]
    wanted = Result(
        "say",
        3,
        exact=1 / 3,
        similarity=1.5 / 3,
        ended=2 / 3,
        pearson=1.0,
        prompt_tokens=5,
        input_tokens=2,
        answer_tokens=4,
    )
    assert score("say", exercises, answers) == wanted


def test_lengths_that_never_change_go_with_nothing() -> None:
    assert pearson([1, 2, 3], [5, 5, 5]) == pearson([1], [1]) == 0.0
    assert pearson([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)


def test_the_stored_model_answers_held_out_prompts(tmp_path: Path) -> None:
    """The whole way of one task, on a handful of prompts that it can't miss all."""
    task = next(task for task in TASKS if task.name == "to camelCase")
    result = Evaluation(MODEL, CORPUS).measure(task, prompts=4, chat=True)
    assert result.prompts == 4
    assert result.ended >= 0.75
    assert result.similarity > 0.7
    assert result.input_tokens < result.prompt_tokens < result.input_tokens + 16


def figures() -> dict[str, Any]:
    published: dict[str, Any] = json.loads((MODEL / "evaluation.json").read_text())
    return published


def test_the_card_shows_the_figures_that_were_measured() -> None:
    results = {name: [Result(**each) for each in rows] for name, rows in figures()["results"].items()}
    assert [result.task for result in results["chat"]] == [task.name for task in TASKS]
    assert (
        f"{BEGIN}\n\n{tables(results)}\n\nMeasured {figures()['date']}" in (MODEL / "README.md").read_text()
    )


def test_the_bundled_model_ends_its_answers_and_their_lengths_follow_the_inputs() -> None:
    chat = figures()["results"]["chat"]
    assert all(result["prompts"] >= 100 for result in chat)
    assert sum(result["ended"] for result in chat) / len(chat) >= 0.99
    assert sum(result["pearson"] > 0.8 for result in chat) >= 6
    assert (MODEL / "model.safetensors").stat().st_size < 16e6


def test_a_new_measurement_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    rng = Random(1)
    card = tmp_path / "README.md"
    card.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    for exact in (rng.random(), 0.25):
        publish(tmp_path, {"chat": [Result("say", 3, exact, 0.5, 1.0, 0.9, 5, 2, 4)]})
    text = card.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nbehind\n")
    assert "| say | 3 | 25.0 % | 50.0 % | 100.0 % | 0.900 | 2 | 4 |\n| all | 3 | 25.0 % |" in text
    assert "old" not in text
    assert text.count("| say |") == 1
    assert json.loads((tmp_path / "evaluation.json").read_text())["results"]["chat"][0]["exact"] == 0.25


def test_a_card_without_a_place_for_the_table_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine\n")
    with pytest.raises(ValueError, match="must hold the line"):
        publish(tmp_path, {"chat": [Result("say", 3, 0.1, 0.5, 1.0, 0.9, 5, 2, 4)]})
    assert (tmp_path / "README.md").read_text() == "mine\n"
