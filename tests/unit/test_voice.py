"""The source speaks plainly: verbs first, a subject in each clause, short sentences. Each counter finds its offence."""

from pathlib import Path

from tests.support.rooms import ROOT, SOURCE
from tests.support.voice import Voice, listen, long_subjects

_LEAST_VERBS = 0.95
_MOST_HEADLESS = 0.5
"""In a thousand words."""


def _of(text: str, tmp_path: Path) -> Voice:
    file = tmp_path / "one.py"
    file.write_text(text, encoding="utf-8")
    return listen([file], tmp_path)


def test_the_source_speaks_plainly() -> None:
    """Function docstrings begin with a verb, clauses have subjects, and docstrings no sentence of over 30 words."""
    found = listen(sorted(SOURCE.rglob("*.py")), ROOT)
    assert found.long == []
    assert found.verbs >= _LEAST_VERBS * found.functions
    assert len(found.headless) * 1000 <= _MOST_HEADLESS * found.words, found.headless


def test_a_noun_is_no_verb(tmp_path: Path) -> None:
    """The first word of a function's docstring is looked at; a property may begin with a noun."""
    functions = 'def f():\n    """Return it."""\ndef g():\n    """The result."""\n'
    text = functions + '@property\ndef h(self):\n    """The rest."""\n'
    assert _of(text, tmp_path)[:2] == (2, 1)


def test_a_clause_without_a_subject_is_found(tmp_path: Path) -> None:
    """Clauses that begin with a pronoun are found in comments and docstrings."""
    assert len(_of('"""Who reads waits. The fold begins anew."""\n# What is there stays.\n', tmp_path).headless) == 3
    assert _of('"""Readers wait. A person who knows the log decides."""\n', tmp_path).headless == []


def test_a_long_sentence_is_found(tmp_path: Path) -> None:
    """A sentence of 31 words is too long, and one of 30 is not; programs and tables are no sentences."""
    assert [len(_of(f'"""{"word " * count}."""\n', tmp_path).long) for count in (29, 30)] == [0, 1]
    assert _of('"""Begin.\n\n' + "    word " * 40 + '\n"""\n', tmp_path).long == []


def test_a_long_subject_is_found() -> None:
    """A commit's subject has at most 72 characters."""
    assert long_subjects(["x" * 72, "y" * 73]) == ["y" * 73]
