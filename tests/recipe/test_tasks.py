"""The bundled model's eight tasks: always the same examples, named by an
instruction, held-out text unseen, answers by the rule.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from pathlib import Path
from random import Random

import pytest

from models.recipe import write_prompts
from models.recipe.code_tasks import CAMEL, IDENTIFIER, SNAKE
from models.recipe.comments import add_comments
from models.recipe.corpus import Corpus, is_held_out, load_corpora, standard_library_files
from models.recipe.evaluation import draw
from models.recipe.prose_tasks import INSULTS
from models.recipe.tasks import NINTH, Exercise, Task, all_tasks
from models.recipe.velin import from_velin, read_lexicon, to_velin

MODEL = Path(__file__).resolve().parents[2] / "models" / "bundled"
LEXICON = read_lexicon(MODEL)
TASKS = {task.name: task for task in all_tasks(LEXICON)}


@pytest.fixture(scope="module")
def corpora() -> tuple[Corpus, Corpus]:
    """Of the held-out files and a tenth of the others: parsing the whole library takes its time."""
    files = standard_library_files()
    return load_corpora([path for i, path in enumerate(files) if i % 10 == 0 or is_held_out(path)])


@pytest.fixture(scope="module")
def held_out(corpora: tuple[Corpus, Corpus]) -> Corpus:
    return corpora[1]


def drawn(name: str, corpus: Corpus) -> list[Exercise]:
    return draw(TASKS[name], corpus, 40)


def test_there_are_eight_tasks_for_six_applications() -> None:
    assert len(TASKS) == 8


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_seed_gives_the_same_exercises_and_another_one_others(task: Task, held_out: Corpus) -> None:
    def some(seed: int) -> list[Exercise]:
        rng = Random(seed)
        return [task.example(held_out, rng) for _ in range(10)]

    assert some(1) == some(1) != some(2)
    assert draw(task, held_out, 10) == draw(task, held_out, 20)[:10]


@pytest.mark.parametrize("name", TASKS)
def test_a_prompt_names_its_task_and_no_other(name: str, held_out: Corpus) -> None:
    others = {
        instruction for task in TASKS.values() if task.name != name for instruction in task.instructions
    }
    for exercise in drawn(name, held_out):
        assert exercise.prompt == exercise.instruction + exercise.separator + exercise.given
        assert exercise.instruction in TASKS[name].instructions
        assert exercise.instruction not in others
        assert exercise.separator in ("\n", " ")


def test_no_sentence_and_no_function_is_in_both_texts(corpora: tuple[Corpus, Corpus]) -> None:
    train, held_out = corpora
    sentences = [{sentence for file in each.prose for sentence in file} for each in corpora]
    functions = [{normalised for _, normalised in each.functions} for each in corpora]
    assert not set.intersection(*sentences)
    assert not set.intersection(*functions)
    assert min(len(train.functions), len(held_out.functions)) > 500


@pytest.mark.parametrize("name", TASKS)
def test_held_out_prompts_do_not_come_up_in_training(name: str, corpora: tuple[Corpus, Corpus]) -> None:
    """Short ones may: one line of a function, or two words of a sentence, can stand in any file."""
    train, held_out = corpora
    rng = Random(7)
    seen = {TASKS[name].example(train, rng).given for _ in range(300)}
    assert not {exercise.given for exercise in drawn(name, held_out) if len(exercise.given) > 60} & seen


def test_prose_has_no_lines_under_headings(corpora: tuple[Corpus, Corpus]) -> None:
    """Forty hyphens were copied without end: most answers that did not end by themselves were these."""
    assert not [
        s for corpus in corpora for file in corpus.prose for s in file if re.search(r"([^A-Za-z0-9])\1\1", s)
    ]


def test_velin_by_hand() -> None:
    lexicon = {"the": "dok", "line": "fogil", "file": "netok", "don't": "boso"}
    assert (
        to_velin("The lines of the file: don't read file.txt!", lexicon)
        == "Dok fogilri of dok netok: boso read file.txt!"
    )
    assert from_velin("Dok fogilri of dok netok.", lexicon) == "The lines of the file."


def test_velin_can_be_translated_back() -> None:
    assert len(LEXICON) == len(set(LEXICON.values())) == 480
    assert not set(LEXICON) & set(LEXICON.values())


def test_translations_follow_the_lexicon_both_ways(held_out: Corpus) -> None:
    for exercise in drawn("translate to Velin", held_out):
        for english, velin in zip(exercise.given.split(), exercise.answer.split(), strict=True):
            word = english.lower().rstrip(".,")
            assert velin.lower().rstrip(".,") == LEXICON.get(word, velin.lower().rstrip(".,"))
    for exercise in drawn("translate from Velin", held_out):
        assert to_velin(exercise.answer, LEXICON) == exercise.given


def test_grammar_is_corrected_to_whole_sentences_of_the_text(held_out: Corpus) -> None:
    text = " ".join(sentence for file in held_out.prose for sentence in file)
    for exercise in drawn("grammar correction", held_out):
        assert exercise.answer in text
        alike = difflib.SequenceMatcher(None, exercise.given, exercise.answer, autojunk=False).ratio()
        assert alike > 0.7, exercise
    assert sum(exercise.given != exercise.answer for exercise in drawn("grammar correction", held_out)) > 30


def test_polite_answers_have_no_insults_and_begin_politely(held_out: Corpus) -> None:
    for exercise in drawn("polite rewording", held_out):
        assert not [
            word
            for word in [*INSULTS, "idiot", "moron", "dummy"]
            if re.search(rf"\b{word}\b", exercise.answer)
        ]
        assert exercise.answer.startswith(("Could you please ", "Please note that "))
        assert exercise.answer.endswith(("?", "."))
        assert exercise.given != exercise.answer


@pytest.mark.parametrize(("name", "pattern"), [("to camelCase", SNAKE), ("to snake_case", CAMEL)])
def test_only_names_change_their_case(name: str, pattern: re.Pattern[str], held_out: Corpus) -> None:
    for exercise in drawn(name, held_out):
        assert exercise.given.replace("_", "").lower() == exercise.answer.replace("_", "").lower()
        assert not [word for word in IDENTIFIER.findall(exercise.answer) if pattern.fullmatch(word)]


def test_a_mended_function_is_python_and_its_bug_is_small(held_out: Corpus) -> None:
    for exercise in drawn("bug fixing", held_out):
        ast.parse(exercise.answer)
        assert (
            0
            < sum(
                line[0] in "+-"
                for line in difflib.ndiff(exercise.given.split("\n"), exercise.answer.split("\n"))
            )
            <= 4
        )


def test_comments_stand_above_unchanged_code(held_out: Corpus) -> None:
    for exercise in drawn("code comments", held_out):
        lines = exercise.answer.split("\n")
        assert [line for line in lines if not line.lstrip().startswith("# ")] == exercise.given.split("\n")
        assert len(lines) > len(exercise.given.split("\n"))


def test_comments_by_hand() -> None:
    code = "def is_empty(self):\n    count = len(self.items)\n    return count == 0"
    assert add_comments(code) == (
        "# Define is_empty.\ndef is_empty(self):\n    # Set count with len.\n    count = len(self.items)\n"
        "    # Return the computed value.\n    return count == 0"
    )


def test_the_ninth_task_is_none_of_the_eight_and_removes_comments_alone(held_out: Corpus) -> None:
    assert NINTH.name not in TASKS
    assert NINTH.instructions[0] not in {line for task in TASKS.values() for line in task.instructions}
    for exercise in draw(NINTH, held_out, 40):
        assert exercise.given == add_comments(exercise.answer) != exercise.answer
        kept = [line for line in exercise.given.split("\n") if not line.lstrip().startswith("#")]
        assert kept == exercise.answer.split("\n")


def test_the_sample_of_the_ninth_task_has_no_prompt_of_the_held_out_text(held_out: Corpus) -> None:
    sample = (MODEL.parents[1] / "docs/examples/remove_comments.jsonl").read_text().splitlines()
    turns = [json.loads(line)["messages"] for line in sample]
    assert [[turn["role"] for turn in each] for each in turns] == [["user", "assistant"]] * 128
    prompts = {each[0]["content"] for each in turns}
    assert all(prompt.startswith(NINTH.instructions[0]) for prompt in prompts)
    assert not prompts & {exercise.prompt for exercise in draw(NINTH, held_out, 100)}


def test_the_prompts_of_load_tests_are_those_of_held_out_text_one_of_each_task_in_turn(
    corpora: tuple[Corpus, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/bundled").symlink_to(MODEL)
    (tmp_path / "client/bench").mkdir(parents=True)
    monkeypatch.setattr(write_prompts, "ROOT", tmp_path)
    monkeypatch.setattr(write_prompts, "load_corpora", lambda: corpora)
    write_prompts.main()
    rows = [json.loads(line) for line in (tmp_path / "client/bench/tasks.jsonl").read_text().splitlines()]
    assert [row["task"] for row in rows] == list(TASKS) * 50
    rng = Random(0)
    prompts = [TASKS[row["task"]].example(corpora[1], rng).prompt for row in rows]
    assert [row["messages"] for row in rows] == [[{"role": "user", "content": text}] for text in prompts]
    asked = json.loads((tmp_path / "client/perf_inputs.json").read_text())["data"]
    assert [json.loads(each["messages"][0]) for each in asked] == [row["messages"] for row in rows[:32]]
