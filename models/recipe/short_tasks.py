"""Owns the eight tasks on short inputs, as people type them into a chat: sentences of everyday words,
names, and one statement or a few of a function.
"""

import ast
import builtins
import keyword
import re
from random import Random

from . import code_tasks, everyday, everyday_words
from .comments import add_comments
from .corpus import Corpus
from .prose_tasks import RUDE_ENDS, RUDE_STARTS, insulted
from .tasks import CHARS, WORDS, Generator, Task, all_tasks
from .velin import from_velin, to_velin

WEIGHTS = {"grammar correction": 5.0, "polite rewording": 2.5, "bug fixing": 1.5, "code comments": 1.0}
MOST_CHARS = 160
_COMMON = ["print", "range", "len", "self", "list", "dict", "input", "open", "sum", "sorted", "str", "int"]
_SWAPPED = [word for word in [*keyword.kwlist, *_COMMON] if len(word) > 2]
_KEYWORD = re.compile(r"(?<![\w.'\"])(?:" + "|".join(_SWAPPED) + r")(?![\w'\"])")
_BUILT_IN = {"self", "cls", *dir(builtins)}
Pair = tuple[str, str] | None


def short_tasks(lexicon: dict[str, str], is_held_out: bool = False) -> list[Task]:
    """The eight tasks with short inputs; `is_held_out`: with the words that training does not use."""
    words = everyday_words.vocabulary(is_held_out)

    def velin(corpus: Corpus, rng: Random, size: int) -> Pair:
        english = everyday.plain_sentence(words, rng)
        return english, to_velin(english, lexicon)

    def english(corpus: Corpus, rng: Random, size: int) -> Pair:
        text, translated = velin(corpus, rng, size) or ("", "")
        return (translated, text) if from_velin(translated, lexicon) == text else None

    def grammar(corpus: Corpus, rng: Random, size: int) -> Pair:
        return everyday.correct_grammar(words, rng)

    def polite(corpus: Corpus, rng: Random, size: int) -> Pair:
        return _polite(words, rng)

    generators: dict[str, Generator] = {
        "translate to Velin": velin, "translate from Velin": english, "grammar correction": grammar,
        "polite rewording": polite, "to camelCase": _to_camel_case, "to snake_case": _to_snake_case,
        "bug fixing": _fix_bug, "code comments": _comment,
    }  # fmt: skip
    return [_short(task, generators[task.name]) for task in all_tasks(lexicon)]


def _short(task: Task, generator: Generator) -> Task:
    sizes = CHARS if task.sizes == CHARS else WORDS
    return Task(task.name, task.instructions, generator, sizes, WEIGHTS.get(task.name, 0.8))


def _polite(words: everyday_words.Vocabulary, rng: Random) -> Pair:
    """What a person is told to do, or a statement; half of them are rude, the others short."""
    if rng.random() < 0.75:
        body = everyday.request(words, rng)
        polite = f"Could you please {body}?"
    else:
        sentence = everyday.plain_sentence(words, rng)
        if sentence.endswith("?"):
            return None
        body = _lowered(sentence, words)
        polite = f"Please note that {body[:-1]}."
        body = body[:-1]
    return _rude(body, rng), polite


def _lowered(sentence: str, words: everyday_words.Vocabulary) -> str:
    """With a small first letter, unless it begins with a name or with I."""
    first = sentence.split()[0]
    return sentence if first == "I" or first in words.names else sentence[0].lower() + sentence[1:]


def _rude(body: str, rng: Random) -> str:
    start = rng.choice(RUDE_STARTS) if rng.random() < 0.4 else ""
    end = rng.choice([*RUDE_ENDS, " now!", " now.", "", ".", ".", "!", "!"])
    said = insulted(body, rng) if rng.random() < 0.5 else body
    if not start or start.endswith("? "):
        said = said[0].upper() + said[1:] if rng.random() < 0.85 else said
    return start + said + end


def statements(corpus: Corpus, rng: Random) -> str | None:
    """One statement of a random function, or a few that follow one another; half of them with other names."""
    tree = ast.parse(rng.choice(corpus.functions)[1])
    if rng.random() < 0.5:
        _rename(tree, rng)
    function = tree.body[0]
    body = function.body if isinstance(function, ast.FunctionDef) else [function]
    start = rng.randrange(len(body))
    text = "\n".join(ast.unparse(each) for each in body[start : start + rng.choice([1, 1, 2, 3])])
    if len(body) == 1 and "\n" not in text and rng.random() < 0.5:
        text = _whole(function, rng)
    return text if len(text) <= MOST_CHARS and "#" not in text and text != "pass" else None


def _whole(function: ast.stmt, rng: Random) -> str:
    """A function of two lines, or in one."""
    text = ast.unparse(function)
    return text.replace(":\n   ", ":") if rng.random() < 0.6 else text


def _rename(tree: ast.AST, rng: Random) -> None:
    """Gives functions, parameters and variables everyday names."""
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        return name if name in _BUILT_IN else names.setdefault(name, everyday_name(rng))

    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = renamed(node.id)
        elif isinstance(node, ast.arg):
            node.arg = renamed(node.arg)
        elif isinstance(node, ast.FunctionDef):
            node.name = renamed(node.name)


def everyday_name(rng: Random) -> str:
    """A snake_case name of one word to three; no word of Python."""
    nouns = everyday_words.vocabulary(False).nouns
    words = [rng.choice(everyday_words.IN_NAMES if rng.random() < 0.6 else nouns) for _ in range(3)]
    name = "_".join(words[: rng.choice([1, 1, 2, 2, 3])])
    return f"my_{name}" if keyword.iskeyword(name) else name


def _fix_bug(corpus: Corpus, rng: Random, size: int) -> Pair:
    code = statements(corpus, rng)
    if not code:
        return None
    words = list(_KEYWORD.finditer(code))
    wrong = code
    if words and rng.random() < 0.5:
        match = rng.choice(words)
        at = match.start() + rng.randrange(len(match.group()) - 1)
        wrong = code[:at] + code[at + 1] + code[at] + code[at + 2 :]
    if wrong == code or rng.random() < 0.4:
        wrong, _ = code_tasks.broken(wrong, rng) or (wrong, code)
    return (wrong, code) if wrong != code else None


def _comment(corpus: Corpus, rng: Random, size: int) -> Pair:
    code = statements(corpus, rng)
    code = ast.unparse(ast.parse(code)) if code else None
    commented = add_comments(code) if code else ""
    return (code, commented) if code and commented != code else None


def _to_camel_case(corpus: Corpus, rng: Random, size: int) -> Pair:
    """One name or a few of them, of words that stand in functions."""
    names = [_several_words(corpus, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    text = " = ".join(names) if len(names) == 2 and rng.random() < 0.5 else " ".join(names)
    return text, code_tasks.convert_case(text, to_camel=True)


def _several_words(corpus: Corpus, rng: Random) -> str:
    """A name of at least two words."""
    while rng.random() < 0.5:
        name = everyday_name(rng)
        if "_" in name:
            return name
    return code_tasks.new_name(corpus, rng)


def _to_snake_case(corpus: Corpus, rng: Random, size: int) -> Pair:
    snake, camel = _to_camel_case(corpus, rng, size) or ("", "")
    return camel, snake
