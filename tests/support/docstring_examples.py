"""Examples in docstrings: found in the modules of the package, and run with what they name at hand."""

import doctest
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from tests.support.rooms import SOURCE

__all__ = ["examples", "run_example"]

_SPARK = SOURCE / "spark"


def examples(*, spark: bool) -> list[doctest.DocTest]:
    """The examples of the room that needs Spark, or those of all others."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in _modules(spark) for test in finder.find(import_module(name), name)]
    return [test for test in found if test.examples]


def run_example(example: doctest.DocTest, names: Mapping[str, Any]) -> None:
    """Run it on these names. AssertionError shows what it said instead."""
    said: list[str] = []
    example.globs = dict(names)
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append, clear_globs=False)
    assert result.failed == 0, "".join(said)
    assert result.attempted


def _modules(spark: bool) -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(_SPARK) == spark and ">>> " in path.read_text("utf-8"):
            yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
