"""Owns short everyday sentences with the mistakes that learners of English make in them, and requests."""

from random import Random

from . import everyday_words as words
from .everyday_patterns import PATTERNS, PLAIN, Part, article, fixed
from .everyday_words import Vocabulary


def sentence(vocabulary: Vocabulary, rng: Random) -> tuple[list[Part], str]:
    """The parts of a random sentence, and the mark at its end."""
    pattern, mark = rng.choice(PATTERNS)
    parts = list(pattern(vocabulary, rng))
    if mark == "." and rng.random() < 0.12:
        more = list(rng.choice(PLAIN)(vocabulary, rng))
        parts += [fixed(rng.choice(["and", "but", "because", "so"])), *more]
    return parts, mark


def right(parts: list[Part], mark: str) -> str:
    """The sentence without mistakes."""
    return _first_large(" ".join(part for part, _ in parts if part)) + mark


def wrong(parts: list[Part], mark: str, rng: Random) -> str:
    """The sentence with one mistake or several."""
    places = [place for place, (_, ways) in enumerate(parts) if ways]
    count = rng.choice([1, 1, 2, 2, 3, len(places)])
    spoiled = set(rng.sample(places, min(count, len(places))))
    chosen = [rng.choice(ways) if place in spoiled else part for place, (part, ways) in enumerate(parts)]
    if rng.random() < 0.15:
        _misspell_one(chosen, rng)
    text = " ".join(part for part in chosen if part)
    text = _first_large(text) if rng.random() < 0.7 else text
    return text + ("" if rng.random() < 0.25 else mark)


def correct_grammar(vocabulary: Vocabulary, rng: Random) -> tuple[str, str]:
    """One sentence or now and then two, and the same without mistakes; a few have none."""
    drawn = [sentence(vocabulary, rng) for _ in range(1 if rng.random() < 0.85 else 2)]
    wanted = " ".join(right(*each) for each in drawn)
    if rng.random() < 0.08:
        return wanted, wanted
    return " ".join(wrong(*each, rng) for each in drawn), wanted


def plain_sentence(vocabulary: Vocabulary, rng: Random) -> str:
    """A right sentence."""
    return right(*sentence(vocabulary, rng))


def request(vocabulary: Vocabulary, rng: Random) -> str:
    """What one person tells another one to do, without a mark at the end."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(words.REQUESTS)
    if kind < 0.65:
        return f"{rng.choice(words.GIVING)} {_some_thing(vocabulary, rng)}"
    return f"{rng.choice(words.HANDLING)} {_some_thing(vocabulary, rng)}"


def _some_thing(vocabulary: Vocabulary, rng: Random) -> str:
    noun = rng.choice(vocabulary.nouns)
    before = rng.choice(
        ["the", "the", "my", "your", "this", article(noun), "the " + rng.choice(words.ADJECTIVES)]
    )
    return f"{before} {noun}"


def _first_large(text: str) -> str:
    return text[0].upper() + text[1:]


def _misspell_one(chosen: list[str], rng: Random) -> None:
    """Two letters inside a long word are swapped; only where the word can be told from its letters."""
    places = [place for place, part in enumerate(chosen) if part in words.MISSPELLINGS]
    if places:
        place = rng.choice(places)
        chosen[place] = rng.choice(words.MISSPELLINGS[chosen[place]])
