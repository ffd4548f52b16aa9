"""What newcomers type: the eight tasks in many wordings and with everyday inputs, and everything else. What
the evaluation uses is in no training.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from transformers import PreTrainedTokenizerFast

from models.recipe import everyday, everyday_words
from models.recipe.corpus import Corpus, is_held_out, load_corpora, standard_library_files
from models.recipe.evaluation import Evaluation, draw_newcomers
from models.recipe.everyday_patterns import article
from models.recipe.examples import ExampleStream
from models.recipe.newcomers import KINDS, LINES, said
from models.recipe.short_tasks import short_tasks
from models.recipe.tasks import NINTH, Exercise, Task, all_tasks
from models.recipe.velin import read_lexicon
from models.recipe.wordings import WORDINGS, quoted, reworded, usual

MODEL = Path(__file__).resolve().parents[2] / "models" / "bundled"
LEXICON = read_lexicon(MODEL)
TASKS = {task.name: task for task in all_tasks(LEXICON)}
TRAINED, HELD_OUT = everyday_words.vocabulary(False), everyday_words.vocabulary(True)


@pytest.fixture(scope="module")
def corpora() -> tuple[Corpus, Corpus]:
    files = standard_library_files()
    return load_corpora([path for at, path in enumerate(files) if at % 20 == 0 or is_held_out(path)])


@pytest.fixture(scope="module")
def corpus(corpora: tuple[Corpus, Corpus]) -> Corpus:
    return corpora[0]


def test_each_task_has_wordings_and_no_wording_of_the_evaluation_is_trained() -> None:
    assert WORDINGS.keys() == TASKS.keys()
    trained = {_bare(each) for task in WORDINGS.values() for each in task.trained}
    trained |= {_bare(each) for task in TASKS.values() for each in task.instructions}
    for wordings in WORDINGS.values():
        assert len(wordings.trained) >= 15
        assert len(wordings.held_out) >= 4
        assert not {_bare(each) for each in wordings.held_out} & trained


def _bare(wording: str) -> str:
    return wording.lower().rstrip(":?.")


@pytest.mark.parametrize("name", TASKS)
def test_another_wording_changes_neither_the_input_nor_the_answer(name: str, corpus: Corpus) -> None:
    rng, prompts = Random(3), set()
    for _ in range(60):
        exercise = TASKS[name].example(corpus, rng, reach=0.3)
        other = reworded(name, exercise, rng)
        assert other.answer == exercise.answer
        assert exercise.given in other.prompt
        prompts.add(other.prompt.replace(exercise.given, ""))
    assert len(prompts) > 20


def test_a_usual_line_may_lose_its_colon_and_its_capital() -> None:
    exercise = Exercise("Fix the bug:", " ", "x =", "x = 1")
    lines = {usual(exercise, Random(seed)).prompt for seed in range(200)}
    assert {"Fix the bug: x =", "fix the bug: x =", "Fix the bug x =", "Could you fix the bug: x ="} <= lines


def test_a_quoted_input_is_answered_without_quotes() -> None:
    exercise = Exercise("To Velin:", " ", "The file.", "Dok netok.")
    assert {quoted(exercise, Random(seed)).prompt for seed in range(20)} == {
        'To Velin: "The file."', "To Velin: 'The file.'"
    }  # fmt: skip
    long = Exercise("To Velin:", "\n", "word " * 20, "answer")
    assert quoted(long, Random(1)) == long


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ([everyday_words.plural(word) for word in ("cat", "box", "city", "boy", "child", "knife")],
         ["cats", "boxes", "cities", "boys", "children", "knives"]),
        ([everyday_words.third(word) for word in ("have", "go", "watch", "carry", "play", "like")],
         ["has", "goes", "watches", "carries", "plays", "likes"]),
        ([everyday_words.past(word) for word in ("go", "like", "carry", "play", "watch")],
         ["went", "liked", "carried", "played", "watched"]),
        ([everyday_words.ing(word) for word in ("run", "make", "see", "wait")],
         ["running", "making", "seeing", "waiting"]),
        ([everyday_words.comparative(word) for word in ("tall", "big", "nice", "happy")],
         ["taller", "bigger", "nicer", "happier"]),
        ([article(word) for word in ("cat", "apple", "hour", "university", "umbrella")],
         ["a", "an", "an", "a", "an"]),
    ],
)  # fmt: skip
def test_forms_by_hand(made: list[str], wanted: list[str]) -> None:
    assert made == wanted


def test_everyday_mistakes_are_several_in_short_sentences_and_have_one_correction() -> None:
    rng, wanted = Random(5), dict[str, str]()
    changed = []
    for _ in range(3000):
        spoiled, sentence = everyday.correct_grammar(TRAINED, rng)
        assert wanted.setdefault(spoiled, sentence) == sentence
        assert sentence[0].isupper()
        assert sentence[-1] in ".?"
        changed.append(len(set(spoiled.split()) - set(sentence.split())))
    assert max(len(sentence.split()) for sentence in wanted.values()) < 45
    assert sum(changes >= 2 for changes in changed) > 1000
    assert sum(spoiled == sentence for spoiled, sentence in wanted.items()) < 600


def test_the_words_of_the_evaluation_are_in_no_training_sentence() -> None:
    rng, held_out = Random(6), {*HELD_OUT.nouns, *HELD_OUT.people, *HELD_OUT.places, *HELD_OUT.names}
    assert len(held_out) > 25
    assert not held_out & {*TRAINED.nouns, *TRAINED.people, *TRAINED.places, *TRAINED.names}
    said = {word for _ in range(3000) for word in re.findall(r"\w+", everyday.plain_sentence(TRAINED, rng))}
    assert not said & held_out


@pytest.mark.parametrize("task", short_tasks(LEXICON), ids=TASKS)
def test_short_tasks_are_the_eight_with_short_inputs(task: Task, corpus: Corpus) -> None:
    rng = Random(2)
    drawn = [task.example(corpus, rng) for _ in range(100)]
    assert max(len(exercise.given) for exercise in drawn) < 250
    assert len({exercise.prompt for exercise in drawn}) > 80
    assert {exercise.instruction for exercise in drawn} <= set(TASKS[task.name].instructions)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_none_of_the_tasks_is_answered_by_a_line_with_one_example_of_a_task(
    kind: str, corpora: tuple[Corpus, Corpus]
) -> None:
    trained = {KINDS[kind][0](corpora[0], rng, False).prompt for rng in map(Random, range(400))}
    drawn = draw_newcomers(kind, corpora[1], 20)
    assert {exercise.answer for exercise in drawn} <= set(LINES)
    assert not {exercise.prompt for exercise in drawn if len(exercise.prompt) > 12} & trained


def test_the_lines_are_short_and_their_examples_are_tasks() -> None:
    for line in LINES:
        assert len(line) < 250
        (example,) = re.findall(r'"(.*)"', line)
        instruction = example.split(":")[0] + ":"
        assert instruction in {task.instructions[0] for task in TASKS.values()}


def test_the_ninth_task_is_not_among_the_instructions_that_training_declines() -> None:
    assert not [line for line in said("instructions", False) if "comments" in line.lower()]
    assert NINTH.instructions[0].rstrip(":") in said("instructions", True)


def test_a_stream_with_short_tasks_has_other_examples_and_depends_on_its_seed_alone(corpus: Corpus) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)

    def text(seed: int, least_progress: float) -> str:
        stream = ExampleStream(
            corpus, list(TASKS.values()), tokenizer, seed, short_tasks(LEXICON), least_progress
        )
        return "".join(tokenizer.decode(row) for _ in range(30) for row in stream.next_batch(0.0).ids)

    first = text(1, 0.3)
    assert first == text(1, 0.3) != text(2, 0.3)
    assert all(line in first for line in LINES)
    assert first.count("Repeat:") < text(1, 0.0).count("Repeat:")


def test_a_newcomer_is_answered_as_the_card_shows() -> None:
    """Greedy, in the chat format. The last column was written by hand; its counts are checked."""
    card = (MODEL / "README.md").read_text()
    found = re.findall(r"^\| `(.+)` \| `(.+)` \| (right|partly|wrong)\b", card, re.MULTILINE)
    rows = [(prompt.replace("↵", "\n"), answer.replace("↵", "\n"), read) for prompt, answer, read in found]
    counts = Counter(read for _, _, read in rows)
    assert f"{counts['right']} right, {counts['partly']} partly, {counts['wrong']} wrong" in card
    assert len(rows) == 32
    answers = Evaluation(MODEL, Corpus()).answers([Exercise("", "", row[0], "") for row in rows], chat=True)
    assert [answer.text for answer in answers] == [answer for _, answer, _ in rows]
    assert all(answer in LINES for _, answer, _ in rows[:8])
