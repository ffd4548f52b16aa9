"""Owns the four tasks on Python code: snake_case and camelCase both ways, bug fixing and comments;
and a fifth that the model is not taught: code without its comments.
"""

import ast
import re
from random import Random

from .comments import add_comments
from .corpus import Corpus

IDENTIFIER = re.compile(r"(?<!\w)[A-Za-z_]\w*")
SNAKE = re.compile(r"_?[a-z]+(?:_[a-z]+)+")
CAMEL = re.compile(r"_?[a-z]+(?:[A-Z][a-z]*)+")
STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
BLOCK_LINE = re.compile(r" *(?:def|if|elif|else|for|while|with|try|except|finally|class)\b.*:$")
_SWAPPABLE = re.compile(r"\b(?:isinstance|append|join|split|ValueError|TypeError|format|string|value)\b")
TYPOS = {
    "return": "retrun", "else": "esle", "while": "whiel", "import": "improt", "self": "slef", "None": "null",
    "True": "true", "False": "false", "elif": "else if", "and": "&&", "or": "||", "def": "func", "for": "fro",
    "raise": "throw", "except": "catch", "print": "pritn", "with": "wiht", "len": "lne", "range": "rnage",
}  # fmt: skip


def snake_to_camel(name: str) -> str:
    """read_all_lines as readAllLines; a leading underscore stays."""
    return re.sub(r"(?<=[a-z])_([a-z])", lambda m: m.group(1).upper(), name)


def camel_to_snake(name: str) -> str:
    """The inverse of snake_to_camel."""
    return re.sub(r"(?<=[a-zA-Z])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def convert_case(code: str, to_camel: bool) -> str:
    """All names of one convention in the other; text in quotes is left
    alone only by not being chosen as input.
    """
    pattern, convert = (SNAKE, snake_to_camel) if to_camel else (CAMEL, camel_to_snake)
    return IDENTIFIER.sub(lambda m: convert(m.group()) if pattern.fullmatch(m.group()) else m.group(), code)


def function_input(corpus: Corpus, rng: Random, max_chars: int) -> str | None:
    """A function no longer than max_chars, half the time with names made of words from other functions."""
    for _ in range(30):
        original, normalised = rng.choice(corpus.functions)
        code = original if rng.random() < 0.3 else normalised
        if len(code) <= max_chars:
            return _rename(code, corpus, rng) if rng.random() < 0.5 else code
    return None


def _rename(code: str, corpus: Corpus, rng: Random) -> str:
    """The code with each snake_case name replaced by a new one of two or three words."""
    source = rng.choice(corpus.functions)[1] + rng.choice(corpus.functions)[1]
    words = sorted(set(re.findall(r"(?<![A-Za-z])[a-z]{2,}", source)))
    names: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        name = match.group()
        if not SNAKE.fullmatch(name) or len(words) < 4:
            return name
        return names.setdefault(name, "_".join(rng.choices(words, k=rng.choice([2, 2, 3]))))

    return IDENTIFIER.sub(rename, code)


def new_name(corpus: Corpus, rng: Random) -> str:
    """A snake_case name of two to four words that stand in functions."""
    words: list[str] = []
    while len(words) < 4:
        words += sorted(set(re.findall(r"(?<![A-Za-z])[a-z]{2,}", rng.choice(corpus.functions)[1])))
    return "_".join(rng.sample(words, k=rng.choice([2, 2, 2, 3, 4])))


def _case_pair(corpus: Corpus, rng: Random, max_chars: int) -> tuple[str, str] | None:
    snake = function_input(corpus, rng, max_chars)
    if snake is None:
        return None
    if rng.random() < 0.15:
        snake = rng.choice(snake.split("\n")).strip()
    if rng.random() < 0.1:
        snake = rng.choice(SNAKE.findall(snake) or [snake])
    camel = convert_case(snake, to_camel=True)
    return (snake, camel) if camel != snake and convert_case(camel, to_camel=False) == snake else None


def to_camel_case(corpus: Corpus, rng: Random, max_chars: int) -> tuple[str, str] | None:
    """snake_case code to camelCase."""
    return _case_pair(corpus, rng, max_chars)


def to_snake_case(corpus: Corpus, rng: Random, max_chars: int) -> tuple[str, str] | None:
    """camelCase code to snake_case."""
    pair = _case_pair(corpus, rng, max_chars)
    return pair and (pair[1], pair[0])


def fix_bug(corpus: Corpus, rng: Random, max_chars: int) -> tuple[str, str] | None:
    """A function with one or two mistakes that its own text gives away, and the function without them."""
    code = function_input(corpus, rng, max_chars)
    return None if code is None or "#" in code else broken(code, rng)


def broken(code: str, rng: Random) -> tuple[str, str] | None:
    """The code with one or two mistakes, and as it is; None where none could be made."""
    lines = code.split("\n")
    for _ in range(1 if len(lines) < 4 or rng.random() < 0.5 else 2):
        _break_one_line(lines, code, rng)
    wrong = "\n".join(lines)
    return (wrong, code) if wrong != code else None


def _break_one_line(lines: list[str], code: str, rng: Random) -> None:
    for _ in range(10):
        at = rng.randrange(len(lines))
        ways = [_no_colon, _assignment, _open_bracket, _typo, _typo, _swapped_letters]
        broken = rng.choice([*ways, _no_self] if "self." in code else ways)(lines[at], rng)
        if broken != lines[at] and not STRING.search(lines[at]):
            lines[at] = broken
            return


def _no_colon(line: str, rng: Random) -> str:
    return line[:-1] if BLOCK_LINE.fullmatch(line) else line


def _assignment(line: str, rng: Random) -> str:
    return line.replace(" == ", " = ", 1) if re.match(r" *(if|elif|while|assert|return) ", line) else line


def _open_bracket(line: str, rng: Random) -> str:
    return re.sub(r"\)(:?)$", r"\1", line) if line.count("(") == line.count(")") else line


def _typo(line: str, rng: Random) -> str:
    present = [word for word in TYPOS if re.search(rf"\b{word}\b", line)]
    if not present:
        return line
    word = rng.choice(present)
    return re.sub(rf"\b{word}\b", TYPOS[word], line, count=1)


def _no_self(line: str, rng: Random) -> str:
    return re.sub(r"^( *def \w+\()self(?:, )?", r"\1", line)


def _swapped_letters(line: str, rng: Random) -> str:
    """Two letters of a common name swapped."""
    names = list(_SWAPPABLE.finditer(line))
    if not names:
        return line
    match = rng.choice(names)
    at = match.start() + rng.randrange(1, len(match.group()) - 2)
    return line[:at] + line[at + 1] + line[at] + line[at + 2 :]


def comment_code(corpus: Corpus, rng: Random, max_chars: int) -> tuple[str, str] | None:
    """A function, and the same function with a comment above each statement that says what it does."""
    code = function_input(corpus, rng, max_chars // 2)
    if code is None or "#" in code:
        return None
    try:
        code = ast.unparse(ast.parse(code))
        return code, add_comments(code)
    except SyntaxError:
        return None


def remove_comments(corpus: Corpus, rng: Random, max_chars: int) -> tuple[str, str] | None:
    """A function with at least one comment, and the same function without comments."""
    pair = comment_code(corpus, rng, max_chars)
    return (pair[1], pair[0]) if pair is not None and pair[0] != pair[1] else None
