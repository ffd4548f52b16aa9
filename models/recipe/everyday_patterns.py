"""Owns the patterns of everyday sentences: who does what, in parts that are right and can be wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from . import everyday_words as words
from .everyday_words import Vocabulary

# as it should be, and how it may be wrong; "" for a word left out
Part = tuple[str, tuple[str, ...]]
FIRST, MANY, ONE = range(3)  # persons of a verb: I; you, we, they; she
BE = ("am", "are", "is")
VOWELS = "aeiou"


@dataclass(frozen=True)
class Subject:
    """Who does it, and the person of the verb."""

    parts: tuple[Part, ...]
    person: int


def fixed(text: str) -> Part:
    """A part that is never wrong."""
    return text, ()


def article(noun: str) -> str:
    """a or an, by the sound of the next word."""
    sounds_like_vowel = noun[0] in VOWELS and not noun.startswith(("uni", "use", "euro", "one "))
    return "an" if sounds_like_vowel or noun.startswith(("hour", "honest")) else "a"


def _subject(vocabulary: Vocabulary, rng: Random) -> Subject:
    kind = rng.random()
    if kind < 0.24:
        return Subject((fixed(rng.choice(["she", "he", "it"])),), ONE)
    if kind < 0.36:
        return Subject((("I", ("i",)),), FIRST)
    if kind < 0.52:
        return Subject((fixed(rng.choice(["they", "we", "you"])),), MANY)
    if kind < 0.62:
        return Subject((fixed(rng.choice(vocabulary.names)),), ONE)
    if kind < 0.68:
        first, second = rng.sample(vocabulary.names, 2)
        return Subject((fixed(f"{first} and {second}"),), MANY)
    return _noun_subject(vocabulary, rng)


def _noun_subject(vocabulary: Vocabulary, rng: Random) -> Subject:
    kind, noun = rng.random(), rng.choice(vocabulary.people + vocabulary.nouns)
    owner = rng.choice(["my", "her", "his", "our", "their", "the", "the"])
    if kind < 0.5:
        return Subject((fixed(owner), fixed(noun)), ONE)
    if kind < 0.65:
        return Subject((fixed("this"), fixed(noun)), ONE)
    if kind < 0.8:
        return Subject((fixed("these"), _plural(noun)), MANY)
    return Subject((fixed(owner), fixed(words.plural(noun))), MANY)


def _plural(noun: str) -> Part:
    """The plural, which learners write as the singular or make by rule."""
    many = words.plural(noun)
    by_rule = noun + "s"
    return many, (noun,) if by_rule == many else (noun, by_rule)


def _object(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    kind, noun = rng.random(), rng.choice(vocabulary.nouns)
    adjective = rng.choice(words.ADJECTIVES) if rng.random() < 0.3 else ""
    if kind < 0.34:
        return [_article(adjective or noun), *_if_any(adjective), fixed(noun)]
    if kind < 0.62:
        return [fixed(rng.choice(words.NUMBERS)), *_if_any(adjective), _plural(noun)]
    if kind < 0.72:
        return [("many", ("much",)), *_if_any(adjective), _plural(noun)]
    if kind < 0.8:
        return [("much", ("many",)), fixed(rng.choice(words.MASSES))]
    owner = rng.choice(["the", "the", "my", "her", "his", "our", "their"])
    return [fixed(owner), *_if_any(adjective), fixed(noun)]


def _if_any(adjective: str) -> list[Part]:
    return [fixed(adjective)] if adjective else []


def _article(following: str) -> Part:
    it = article(following)
    return it, ("an" if it == "a" else "a", "an" if it == "a" else "a", "")


def _ending(rng: Random, endings: Sequence[str], share: float) -> list[Part]:
    return [fixed(rng.choice(endings))] if rng.random() < share else []


def _place(vocabulary: Vocabulary, rng: Random) -> Part:
    if rng.random() < 0.2:
        return fixed(rng.choice(["at home", "at school", "at work", "here", "in bed", "outside"]))
    return fixed(f"{rng.choice(['in', 'near', 'at'])} the {rng.choice(vocabulary.places)}")


def _present(verb: str, person: int) -> Part:
    third = words.third(verb)
    return (third, (verb,)) if person == ONE else (verb, (third,))


def _be(person: int) -> Part:
    return BE[person], tuple(form for form in BE if form != BE[person])


def _was(person: int) -> Part:
    return ("were", ("was",)) if person == MANY else ("was", ("were",))


def _deed(vocabulary: Vocabulary, rng: Random) -> tuple[str, list[Part]]:
    """A verb, and what follows it."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(words.VERBS), _object(vocabulary, rng)
    if kind < 0.7:
        where = rng.choice(words.GOALS) if rng.random() < 0.5 else f"to the {rng.choice(vocabulary.places)}"
        return rng.choice(words.MOVES), [fixed(where), *_company(vocabulary, rng)]
    if kind < 0.85:
        verb, *rest = rng.choice(words.FIXED)
        return verb, [_preposition(rest), fixed(rest[-1])]
    return rng.choice(words.STATES), [_place(vocabulary, rng), *_company(vocabulary, rng)]


def _company(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    """With whom it is done, now and then."""
    owner, person = rng.choice(["my", "her", "his", "our", "their"]), rng.choice(vocabulary.people)
    return [fixed(f"with {owner} {person}")] if rng.random() < 0.25 else []


def _preposition(rest: list[str]) -> Part:
    return rest[0], tuple(rest[1:-1])


def _habit(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    often = _ending(rng, words.OFTEN, 0.15)
    return [*who.parts, *often, _present(verb, who.person), *rest, *_ending(rng, words.NOW_AND_THEN, 0.3)]


def _owning(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who = _subject(vocabulary, rng)
    return [*who.parts, _present(rng.choice(["have", "have", "like", "want", "need"]), who.person),
            *_object(vocabulary, rng)]  # fmt: skip


def _past(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    past = words.past(verb)
    done: Part = (
        past,
        tuple(form for form in (verb, words.third(verb), words.regular_past(verb)) if form != past),
    )
    when = fixed(rng.choice(words.AGO))
    if rng.random() < 0.4:
        return [when, *who.parts, done, *rest]
    return [*who.parts, done, *rest, when]


def _going_on(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    while verb in words.STATIVE:
        verb, rest = _deed(vocabulary, rng)
    be, ways = _be(who.person)
    return [
        *who.parts,
        (be, (*ways, "")),
        fixed(words.ing(verb)),
        *rest,
        *_ending(rng, ("now", "right now"), 0.4),
    ]


def _being(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who = _subject(vocabulary, rng)
    how = rng.choice([*words.ADJECTIVES, *words.FEELINGS])
    often = _ending(rng, ("very", "not", "always", "too"), 0.3)
    be, ways = _be(who.person)
    if rng.random() < 0.3:
        when = rng.choice(words.AGO)
        return [*who.parts, _was(who.person), *often, fixed(how), fixed(when)]
    return [*who.parts, (be, ways), *often, fixed(how)]


def _being_a(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, what = rng.choice(["she", "he", *vocabulary.names]), rng.choice(vocabulary.people)
    adjective = rng.choice(words.ADJECTIVES) if rng.random() < 0.4 else ""
    return [fixed(who), _be(ONE), _article(adjective or what), *_if_any(adjective), fixed(what)]


def _not(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    third = words.third(verb)
    if who.person == ONE:
        return [*who.parts, ("doesn't", ("don't", "dont", "doesnt", "not")), (verb, (third,)), *rest]
    return [*who.parts, ("don't", ("doesn't", "dont", "not")), (verb, (third,)), *rest]


def _may(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    modal = rng.choice(["can", "must", "will", "should", "can't"])
    return [*who.parts, fixed(modal), (verb, (words.third(verb), f"to {verb}")), *rest]


def _wish(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    return [*who.parts, _present(rng.choice(["want", "like", "need"]), who.person), ("to", ("",)),
            (verb, (words.third(verb),)), *rest]  # fmt: skip


def _there(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    noun, place = rng.choice(vocabulary.nouns + vocabulary.people), _place(vocabulary, rng)
    if rng.random() < 0.35:
        return [("there", ("their",)), ("is", ("are",)), _article(noun), fixed(noun), place]
    return [("there", ("their",)), ("are", ("is",)), fixed(rng.choice(words.NUMBERS)), _plural(noun), place]


def _compared(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, how = _subject(vocabulary, rng), rng.choice(words.COMPARED)
    more = words.comparative(how)
    return [*who.parts, _be(who.person), (more, (f"more {more}", f"more {how}")), ("than", ("then",)),
            *_noun_subject(vocabulary, rng).parts]  # fmt: skip


def _fitting(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (how, *rest) = _subject(vocabulary, rng), rng.choice(words.FITTING)
    return [*who.parts, _be(who.person), fixed(how), _preposition(rest), fixed(rest[-1])]


def _since(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, verb = _subject(vocabulary, rng), rng.choice(words.LASTING)
    return [*who.parts, _present("have", who.person), (words.past(verb), (verb,)), _place(vocabulary, rng),
            ("for", ("since",)), fixed(rng.choice(words.NUMBERS)),
            _plural(rng.choice(words.PERIODS))]  # fmt: skip


def _do_you(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, (verb, rest) = _subject(vocabulary, rng), _deed(vocabulary, rng)
    do: Part = ("does", ("do",)) if who.person == ONE else ("do", ("does",))
    return [do, *who.parts, (verb, (words.third(verb),)), *rest]


def _where(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who, verb = _subject(vocabulary, rng), rng.choice([*words.STATES, *words.MOVES])
    do: Part = ("does", ("do", "")) if who.person == ONE else ("do", ("does", ""))
    return [fixed(rng.choice(["where", "when", "why", "how"])), do, *who.parts, (verb, (words.third(verb),))]


def _are_you(vocabulary: Vocabulary, rng: Random) -> list[Part]:
    who = _subject(vocabulary, rng)
    asked = [fixed(rng.choice(["why", "where"]))] if rng.random() < 0.3 else []
    return [*asked, _be(who.person), *who.parts, fixed(rng.choice(words.FEELINGS))]


Pattern = Callable[[Vocabulary, Random], list[Part]]
PLAIN: list[Pattern] = [_habit, _owning, _past, _being, _not, _may]
PATTERNS: list[tuple[Pattern, str]] = [
    (_habit, "."), (_habit, "."), (_owning, "."), (_owning, "."), (_past, "."), (_past, "."), (_past, "."),
    (_past, "."), (_going_on, "."), (_being, "."), (_being_a, "."), (_not, "."), (_not, "."), (_may, "."),
    (_wish, "."), (_there, "."), (_compared, "."), (_fitting, "."), (_since, "."), (_do_you, "?"),
    (_where, "?"), (_are_you, "?"),
]  # fmt: skip
