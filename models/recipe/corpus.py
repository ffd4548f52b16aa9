"""Owns the text the bundled model learns from: sentences and functions of Python's own standard library."""

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

HELD_OUT_EVERY = 20
MAX_FUNCTION_CHARS = 900
MAX_FUNCTION_LINES = 60
MAX_TEST_FUNCTIONS_PER_FILE = 8

_SENTENCE = re.compile(r"[A-Z][^.!?]*(?:[.!?](?=\S)[^.!?]*)*[.!?](?=\s|$)")
_PROSE = re.compile(r"[A-Z][A-Za-z0-9_,'() /-]*[.!?]")
_RULE = re.compile(r"([^A-Za-z0-9])\1\1")  # the line under a heading
_COMMENT_BLOCK = re.compile(r"(?:^[ \t]*# .*\n)+", re.MULTILINE)


@dataclass
class Corpus:
    """One side of the split: sentences in file order, one list a file, and
    functions as (original, normalised) text.
    """

    prose: list[list[str]] = field(default_factory=list)
    functions: list[tuple[str, str]] = field(default_factory=list)

    def passage(self, rng: Random, max_words: int) -> str:
        """Consecutive sentences of one file, at least one and about max_words words at most."""
        sentences = rng.choice(self.prose)
        start = rng.randrange(len(sentences))
        chosen, words = [sentences[start]], len(sentences[start].split())
        for sentence in sentences[start + 1 :]:
            words += len(sentence.split())
            if words > max_words:
                break
            chosen.append(sentence)
        return " ".join(chosen)


def standard_library_files() -> list[Path]:
    """All sources of the running Python's standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)


def is_held_out(path: Path) -> bool:
    """Whether a source file belongs to the evaluation: decided by the hash of its path inside the library."""
    name = path.relative_to(sysconfig.get_paths()["stdlib"]).as_posix()
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT_EVERY == 0


def load_corpora(files: list[Path] | None = None) -> tuple[Corpus, Corpus]:
    """The training text and the held-out text of all files, without a sentence
    or a function that is in both or twice in one.
    """
    train, held_out = Corpus(), Corpus()
    seen: set[str] = set()
    files = files or standard_library_files()
    for wanted, corpus in ((False, train), (True, held_out)):
        for path in files:
            if is_held_out(path) == wanted:
                _add_file(corpus, path, seen)
    return train, held_out


def read_corpus(files: list[Path]) -> Corpus:
    """The text of these files, which need not be of the standard library."""
    corpus, seen = Corpus(), set[str]()
    for path in files:
        _add_file(corpus, path, seen)
    return corpus


def _add_file(corpus: Corpus, path: Path, seen: set[str]) -> None:
    text = path.read_text(encoding="utf-8", errors="ignore")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    sentences = list(dict.fromkeys(s for s in _sentences(text, tree) if s not in seen))
    if sentences:
        corpus.prose.append(sentences)
    functions = list({f[1]: f for f in _functions(text, tree) if f[1] not in seen}.values())
    seen.update(sentences, (normalised for _, normalised in functions))
    limit = MAX_TEST_FUNCTIONS_PER_FILE if "test" in path.as_posix() else len(functions)
    corpus.functions.extend(functions[:limit])


def _sentences(text: str, tree: ast.AST) -> Iterator[str]:
    for block in _prose_blocks(text, tree):
        for paragraph in re.split(r"\n\s*\n", block):
            for sentence in _SENTENCE.findall(re.sub(r"\s+", " ", paragraph)):
                if _is_prose(sentence):
                    yield sentence


def _is_prose(sentence: str) -> bool:
    return (
        bool(_PROSE.fullmatch(sentence)) and not _RULE.search(sentence) and 3 <= len(sentence.split()) <= 40
    )


def _prose_blocks(text: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            yield ast.get_docstring(node) or ""
    for block in _COMMENT_BLOCK.findall(text):
        yield re.sub(r"\n?[ \t]*# ?", " ", block)


def _functions(text: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES:
            original = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno])
            normalised = ast.unparse(_without_docstring(node))
            if normalised.isascii() and len(normalised) <= MAX_FUNCTION_CHARS and "\\" not in normalised:
                usable = original.isascii() and len(original) <= MAX_FUNCTION_CHARS and '"""' not in original
                yield (original if usable else normalised), normalised


def _without_docstring(node: ast.FunctionDef) -> ast.FunctionDef:
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    node.decorator_list = []
    return node
