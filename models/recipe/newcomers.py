"""Owns what newcomers say that is none of the eight tasks (`newcomers.json`), and the line that answers it:
what the model can do, with one example.

Some greetings, topics and kinds of request are held out of the training.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from . import everyday, everyday_words
from .corpus import Corpus
from .tasks import Exercise

ABILITIES = (
    "I can do eight tasks: translate to or from Velin, correct grammar, reword politely, change names to"
    " camelCase or snake_case, fix bugs, add comments."
)
GREETED = f'Hello! {ABILITIES} Try: "Correct the grammar: She have two cat."'
THANKED = f'You are welcome! {ABILITIES} Try: "Translate to Velin: The file is closed."'
ASKED = f'I am a small model. {ABILITIES} Try: "Convert to camelCase: read_all_lines"'
OTHER = f'I cannot do that. {ABILITIES} Try: "Reword politely: Close the damn file!"'
LINES = (GREETED, THANKED, ASKED, OTHER)

SAID: dict[str, Any] = json.loads(Path(__file__).with_name("newcomers.json").read_text("utf-8"))


def said(kind: str, is_held_out: bool) -> list[str]:
    """The templates of one kind that training uses, or those that it does not."""
    listed: list[str] = SAID[kind]["held_out" if is_held_out else "trained"]
    return listed


def newcomer(corpus: Corpus, rng: Random, is_held_out: bool = False) -> Exercise:
    """Something that is none of the tasks, and its answer."""
    kinds, shares = [kind for kind, _ in KINDS.values()], [share for _, share in KINDS.values()]
    return rng.choices(kinds, shares)[0](corpus, rng, is_held_out)


def _greeting(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    text = rng.choice(said("greetings", is_held_out))
    if rng.random() < 0.2 and " " not in text:
        text += " " + rng.choice(everyday_words.vocabulary(is_held_out).names)
    return _exercise(_typed(text, rng, "!"), GREETED)


def _thanks(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    return _exercise(_typed(rng.choice(said("thanks", is_held_out)), rng, "!"), THANKED)


def _about(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    return _exercise(_typed(rng.choice(said("about", is_held_out)), rng, "?"), ASKED)


def _question(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    text = _filled("questions", corpus, rng, is_held_out)
    if rng.random() < 0.15:
        text = rng.choice(["hello, ", "hi, ", "please tell me, ", "tell me, ", "do you know "]) + text
    return _exercise(_typed(text, rng, "?"), OTHER)


def _everyday_question(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    vocabulary = everyday_words.vocabulary(is_held_out)
    return _exercise(_typed(everyday.plain_sentence(vocabulary, rng), rng, ""), OTHER)


def _request(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    text = _filled("requests", corpus, rng, is_held_out)
    if rng.random() < 0.2:
        text = rng.choice(["please ", "can you ", "could you ", "could you please "]) + text
    elif rng.random() < 0.1:
        text = everyday.request(everyday_words.vocabulary(is_held_out), rng)
    return _exercise(_typed(text, rng, "."), OTHER)


def _unknown(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    """An instruction of another kind, with a text or a function."""
    instruction = rng.choice(said("instructions", is_held_out))
    if rng.random() < 0.3:
        instruction = rng.choice(["Please ", "Can you ", "", ""]) + instruction[0].lower() + instruction[1:]
    instruction += rng.choice(
        [":", ":", ":", "", "?" if instruction.startswith(("Is", "How", "What")) else ":"]
    )
    return _exercise(instruction + rng.choice(["\n", " "]) + _input(corpus, rng, is_held_out), OTHER)


def _input(corpus: Corpus, rng: Random, is_held_out: bool) -> str:
    draw = rng.random()
    if draw < 0.4:
        return _short_function(corpus, rng)
    if draw < 0.7:
        return corpus.passage(rng, rng.choice([8, 20, 40]))
    return everyday.plain_sentence(everyday_words.vocabulary(is_held_out), rng)


def _short_function(corpus: Corpus, rng: Random) -> str:
    drawn = [rng.choice(corpus.functions)[1] for _ in range(3)]
    return min(drawn, key=len)[:600]


def _arithmetic(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    first, second = (rng.randint(0, rng.choice([10, 100, 1000])) for _ in range(2))
    space = rng.choice(["", " "])
    term = f"{first}{space}{rng.choice('+-*/')}{space}{second}"
    before = ["", "", "what is ", "compute ", "calculate ", "how much is ", "what's ", "solve "]
    text = (
        rng.choice(before) + term
        if not is_held_out
        else rng.choice(["what is the result of ", "add up "]) + term
    )
    return _exercise(_typed(text, rng, rng.choice("?=")), OTHER)


def _text_alone(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    """A text, a name or a function without any instruction."""
    draw = rng.random()
    if draw < 0.4:
        text = corpus.passage(rng, rng.choice([5, 12, 25]))
    elif draw < 0.6:
        text = _short_function(corpus, rng)
    else:
        text = " ".join(rng.choices(_words(corpus, rng), k=rng.choice([1, 1, 2, 3, 5])))
    return _exercise(text, OTHER)


def _gibberish(corpus: Corpus, rng: Random, is_held_out: bool) -> Exercise:
    if rng.random() < 0.4 and not is_held_out:
        return _exercise(" ".join(rng.choices(said("gibberish", False), k=rng.choice([1, 1, 2, 3]))), OTHER)
    letters = [rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9))]
    return _exercise("".join(letters), OTHER)


def _words(corpus: Corpus, rng: Random) -> list[str]:
    return re.findall(r"[A-Za-z]{2,}", corpus.passage(rng, 40)) or ["word"]


def _filled(kind: str, corpus: Corpus, rng: Random, is_held_out: bool) -> str:
    """A template with a topic in each of its gaps: a listed one, a word of the text, or a thing."""
    text = rng.choice(said(kind, is_held_out))
    while "{}" in text:
        text = text.replace("{}", _topic(corpus, rng, is_held_out), 1)
    return text


def _topic(corpus: Corpus, rng: Random, is_held_out: bool) -> str:
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(said("topics", is_held_out))
    if draw < 0.75:
        return rng.choice(["", "the ", "a ", "my "]) + rng.choice(_words(corpus, rng))
    vocabulary = everyday_words.vocabulary(is_held_out)
    return rng.choice(["the ", "my ", ""]) + rng.choice(
        vocabulary.nouns + vocabulary.people + vocabulary.names
    )


def _typed(text: str, rng: Random, mark: str) -> str:
    """As people type it: with a capital and a mark or without; now and then in capitals."""
    draw = rng.random()
    if draw < 0.6:
        text = text[0].upper() + text[1:]
    elif draw < 0.64:
        text = text.upper()
    if text.endswith(("?", "!", ".")):
        return text
    draw = rng.random()
    return text + (
        mark if draw < 0.5 else "" if draw < 0.9 else rng.choice(["!", ".", "?", "...", " :)", "!!"])
    )


def _exercise(text: str, answer: str) -> Exercise:
    return Exercise("", "", text, answer)


# what is said, and how often
KINDS: dict[str, tuple[Callable[[Corpus, Random, bool], Exercise], float]] = {
    "greetings": (_greeting, 1.5),
    "thanks": (_thanks, 0.8),
    "what it is": (_about, 1.5),
    "questions": (_question, 2.0),
    "sentences": (_everyday_question, 1.0),
    "requests": (_request, 2.0),
    "other instructions": (_unknown, 2.5),
    "arithmetic": (_arithmetic, 0.6),
    "text alone": (_text_alone, 1.5),
    "random letters": (_gibberish, 0.5),
}
