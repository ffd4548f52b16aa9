"""Owns the four tasks on English prose: translation both ways, grammar correction and polite rewording."""

import re
from random import Random

from .corpus import Corpus
from .velin import from_velin, to_velin

MISSPELLINGS = {
    "the": "teh", "and": "adn", "file": "fiel", "function": "funtion", "return": "retrun", "value": "vlaue",
    "length": "lenght", "string": "strign", "which": "wich", "their": "thier", "because": "becuase",
    "argument": "arguement", "object": "objcet", "class": "calss", "this": "thsi", "that": "taht", "with": "wiht",
    "from": "fomr", "should": "shoud", "would": "woud", "list": "lsit", "name": "naem", "default": "defualt",
    "number": "nubmer", "line": "lien", "test": "tset", "method": "mehtod", "module": "modlue", "error": "eror",
    "raise": "rasie", "have": "hvae", "when": "wehn", "first": "frist", "there": "tehre", "they": "tehy",
    "separate": "seperate", "receive": "recieve", "current": "curent", "until": "untill", "used": "usde",
}  # fmt: skip
AGREEMENT = {"is": "are", "are": "is", "was": "were", "were": "was", "has": "have", "have": "has"}
ARTICLES = {"a": "an", "an": "a"}
REPEATABLE = {"the", "a", "of", "to", "is", "in", "and", "for", "on", "it", "be", "that"}
MODALS = {"must", "should", "can", "will", "may", "could", "would", "to", "cannot"}

IMPERATIVES = {
    "Add", "Append", "Apply", "Bind", "Build", "Call", "Change", "Check", "Clear", "Close", "Compare", "Compute",
    "Configure", "Connect", "Convert", "Copy", "Create", "Decode", "Define", "Delete", "Determine", "Display", "Do",
    "Dump", "Encode", "Ensure", "Execute", "Extract", "Find", "Flush", "Format", "Generate", "Get", "Give",
    "Handle", "Initialize", "Insert", "Install", "Invoke", "Iterate", "Join", "Keep", "Let", "List", "Load", "Look",
    "Make", "Match", "Move", "Note", "Open", "Override", "Parse", "Perform", "Print", "Process", "Put", "Raise",
    "Read", "Register", "Remove", "Replace", "Reset", "Return", "Run", "Save", "Scan", "Search", "Send", "Set",
    "Show", "Skip", "Split", "Start", "Stop", "Store", "Take", "Test", "Translate", "Try", "Update", "Use",
    "Verify", "Wait", "Write",
}  # fmt: skip
NAMES = {"I", "Python", "Windows", "Unix", "Linux", "Posix", "Tk", "Tkinter", "English", "Unicode"}
INSULTS = ["damn", "stupid", "dumb", "crappy", "lousy", "bloody", "idiotic", "goddamn"]
RUDE_STARTS = [
    "Hey idiot, ", "Listen, you moron, ", "Shut up and ", "For the last time, ", "Just ", "You fool, ",
    "Are you blind? ", "Hurry up, dummy, ", "How dumb are you? ", "Oh come on, ",
]  # fmt: skip
RUDE_ENDS = [
    ", you idiot!",
    ", dummy!",
    " already!",
    " right now!",
    ", you moron!",
    "!",
    ", damn it!",
    ", or get lost!",
]
INSULTABLE = re.compile(r"\b(the|this|that|your|my|its) (?=[a-z])")


def prose_input(corpus: Corpus, rng: Random, max_words: int) -> str:
    """A passage of whole sentences, or now and then a few words without a full stop."""
    passage = corpus.passage(rng, max_words)
    if rng.random() < 0.15:
        words = passage.split()
        start = rng.randrange(len(words))
        return " ".join(words[start : start + rng.randint(1, 8)]).rstrip(".,!?")
    return passage


def translate_to_velin(
    corpus: Corpus, lexicon: dict[str, str], rng: Random, max_words: int
) -> tuple[str, str] | None:
    """English to Velin."""
    english = prose_input(corpus, rng, max_words)
    return english, to_velin(english, lexicon)


def translate_from_velin(
    corpus: Corpus, lexicon: dict[str, str], rng: Random, max_words: int
) -> tuple[str, str] | None:
    """Velin to English; only text that comes back exactly."""
    english = prose_input(corpus, rng, max_words)
    velin = to_velin(english, lexicon)
    return (velin, english) if from_velin(velin, lexicon) == english else None


def correct_grammar(corpus: Corpus, rng: Random, max_words: int) -> tuple[str, str] | None:
    """A passage with about one mistake in eight words, to be written as it was."""
    passage = corpus.passage(rng, max_words)
    words = passage.split(" ")
    for _ in range(max(1, round(len(words) / 8 * rng.uniform(0.4, 1.4)))):
        _spoil_one_word(words, rng)
    wrong = " ".join(words)
    if rng.random() < 0.2:
        wrong = wrong.rstrip(".")
    if rng.random() < 0.3:
        wrong = lower_first(wrong)
    return (wrong, passage) if wrong != passage or rng.random() < 0.3 else None


def _spoil_one_word(words: list[str], rng: Random) -> None:
    """Puts one mistake at a random word that allows one; looks at ten places at most."""
    for _ in range(10):
        at = rng.randrange(len(words))
        wrong = _mistake(words[at], words[at - 1] if at else "", rng)
        if wrong is not None:
            words[at] = wrong
            return


def _mistake(word: str, before: str, rng: Random) -> str | None:
    if word == "be" and before in MODALS:
        return "is"
    if word in ARTICLES and rng.random() < 0.8:
        return ARTICLES[word]
    if word in AGREEMENT and rng.random() < 0.6:
        return AGREEMENT[word]
    if word in MISSPELLINGS and rng.random() < 0.6:
        return MISSPELLINGS[word]
    if word.endswith("n't"):
        return word.replace("'", "")
    return f"{word} {word}" if word in REPEATABLE else None


def reword_politely(corpus: Corpus, rng: Random, max_words: int) -> tuple[str, str] | None:
    """Rude sentences and the same ones as polite requests and notes."""
    sentences = re.split(r"(?<=[.!?]) ", corpus.passage(rng, max_words))
    if any(insult in sentence for sentence in sentences for insult in INSULTS):
        return None
    pairs = [_rude_and_polite(sentence, rng) for sentence in sentences]
    return " ".join(rude for rude, _ in pairs), " ".join(polite for _, polite in pairs)


def lower_first(sentence: str) -> str:
    """The sentence with a small first letter, unless it begins with a name or an acronym."""
    first = sentence.split(" ")[0]
    keeps_capital = first in NAMES or re.fullmatch(r"[A-Z][a-z']*,?", first) is None
    return sentence if keeps_capital else sentence[0].lower() + sentence[1:]


def _rude_and_polite(sentence: str, rng: Random) -> tuple[str, str]:
    body = sentence.rstrip(".!?")
    first = body.split(" ")[0]
    lowered = lower_first(body)
    polite = f"Could you please {lowered}?" if first in IMPERATIVES else f"Please note that {lowered}."
    rude = insulted(lowered, rng)
    start, end = rng.choice(RUDE_STARTS), rng.choice(RUDE_ENDS)
    if rng.random() < 0.2:
        return rude[0].upper() + rude[1:] + end, polite
    if start.endswith("? "):
        rude = rude[0].upper() + rude[1:]
    return start + rude + end, polite


def insulted(text: str, rng: Random) -> str:
    """The text with an insult before some of its nouns."""
    return INSULTABLE.sub(lambda m: _with_insult(m, rng), text)


def _with_insult(match: re.Match[str], rng: Random) -> str:
    return f"{match.group(1)} {rng.choice(INSULTS)} " if rng.random() < 0.4 else match.group()
