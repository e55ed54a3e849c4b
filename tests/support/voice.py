"""How the source speaks: counts over docstrings and comments, and the subjects of new commits.

A docstring of a function begins with a verb; a sentence has a subject and one thought. The counts are a floor under the
prose and no proof of it: CONTRIBUTING.md has the rules.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Voice", "listen", "long_subjects"]

LONGEST_SUBJECT = 72
LONGEST_SENTENCE = 30
_NO_VERB = frozenset(
    re.findall(
        r"\w+",
        "the a an this these those that what whether how why where when which who whose as of in on at for from to by "
        "with without all any each one two some most no not none only both its it if there half text true false",
    )
)
_NOUN_ENDS = ("ion", "ness", "ity", "ment", "ance", "ence", "ings", "ies")
_HEADLESS = re.compile(
    r"(?:^|[.:;,(]\s+|\b(?:and|or|but|for|of|to|than|by|as|if|that|whether|before)\s+)[Ww]ho\s+(?!knows|else\b)\w+"
    r"|(?:^|[.:;]\s+)(?:What|Those|That of|That which)\s+(?!if\b)\w+|,\s+(?:so|nor) (?:is|are|does|do)\b|\banew\b",
    re.MULTILINE,
)
_LAYOUT = re.compile(r"^.*(?:\S {2,}\S|\||[─│├└]).*$|^ {4,}.*$", re.MULTILINE)
"""Tables, trees and programs, which are no sentences."""
_MARKS = tuple(f"#{mark}" for mark in ("!", " type", " noqa", " fmt", " pyright"))
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n- ")


class Voice(NamedTuple):
    """Counts, and the places that a person should look at."""

    functions: int
    verbs: int
    words: int
    headless: list[str]
    long: list[str]


class _Text(NamedTuple):
    line: int
    text: str
    is_docstring: bool
    is_of_function: bool


def listen(paths: Iterable[Path], root: Path) -> Voice:
    """Count over the docstrings and comments of these files."""
    functions = verbs = words = 0
    headless, long = list[str](), list[str]()
    for path in paths:
        for one in _texts(path.read_text("utf-8")):
            functions += one.is_of_function
            verbs += one.is_of_function and _begins_with_verb(one.text)
            words += len(one.text.split())
            for sentence in _SENTENCE.split(_LAYOUT.sub("", one.text)):
                place = f"{path.relative_to(root)}:{one.line}: {' '.join(sentence.split())[:120]}"
                headless += [place] * len(_HEADLESS.findall(sentence))
                if one.is_docstring and len(sentence.split()) > LONGEST_SENTENCE:
                    long.append(place)
    return Voice(functions, verbs, words, headless, long)


def long_subjects(subjects: Iterable[str]) -> list[str]:
    """Return the commit subjects that are too long."""
    return [one for one in subjects if len(one) > LONGEST_SUBJECT]


def _texts(source: str) -> Iterator[_Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node)
            if text:
                yield _Text(getattr(node, "lineno", 1), text, True, is_function)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(_MARKS):
            yield _Text(token.start[0], token.string.lstrip("# "), False, False)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one).endswith(("property", ".setter")) for one in node.decorator_list)


def _begins_with_verb(text: str) -> bool:
    word = text.split()[0]
    low = word.strip("`.,:;()").lower()
    return not (low in _NO_VERB or word[0] in "`\"'[" or low.endswith(_NOUN_ENDS) or not low.isalpha())


if __name__ == "__main__":
    _since = sys.argv[1:] or ["-20"]
    _log = subprocess.run(["git", "log", "--format=%s", *_since], capture_output=True, text=True, check=False)
    _found = long_subjects(_log.stdout.splitlines())
    sys.exit("\n".join(["commit subjects of more than 72 characters:", *_found]) if _found else 0)
