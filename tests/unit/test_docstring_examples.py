"""The examples in docstrings run, and the names that a program writes with have one."""

import doctest
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from typing import Any

import pytest

import statelog
from statelog.producer import Coordinator, Writer
from tests.support.file_map import SOURCE
from tests.support.rigs.log import twin_rig

EXPLAINED = ("Coordinator", "PendingHandle", "Seams", "TaskWriter", "Writer", "WriterSettings")
"""Names that have an example. Each of them is public."""


def _modules() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in path.read_text("utf-8"):
            yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def _examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in _modules() for test in finder.find(import_module(name), name)]
    return [test for test in found if test.examples]


@contextmanager
def _world() -> Iterator[dict[str, Any]]:
    """What an example finds: the front door's names, a new log with a producer, and a writer and a coordinator at work,
    each on a log of its own."""
    rig = twin_rig("log")
    with ExitStack() as stack:
        log, other, third = (
            stack.enter_context(twin_rig(name, cluster=rig.cluster, disk=rig.disk).create())
            for name in ("log", "b", "c")
        )
        yield {
            **{name: getattr(statelog, name) for name in statelog.__all__},
            "log": log,
            "producer": stack.enter_context(closing(log.kafka.producer())),
            "writer": stack.enter_context(Writer(other, "writer")),
            "coordinator": stack.enter_context(Coordinator(third, "coordinator")),
        }


@pytest.mark.parametrize("example", _examples(), ids=lambda test: str(test.name))
def test_an_example_does_what_it_says(example: doctest.DocTest) -> None:
    """On a new log, with what its names say at hand."""
    said: list[str] = []
    with _world() as example.globs:
        result = doctest.DocTestRunner(verbose=False).run(example, out=said.append, clear_globs=False)
    assert result.failed == 0, "".join(said)
    assert result.attempted


def test_the_names_that_write_have_an_example() -> None:
    """In the docstring of the class, where `help` shows it."""
    without = [name for name in EXPLAINED if not any(test.name.endswith(f".{name}") for test in _examples())]
    assert without == []


@pytest.mark.parametrize("example", _examples(), ids=lambda test: str(test.name))
def test_an_example_is_code_on_its_page(example: doctest.DocTest) -> None:
    """It is indented; else Markdown takes its prompts for quotations."""
    text = inspect.cleandoc(example.docstring or "")
    assert [line for line in text.splitlines() if line.startswith(">>>")] == []
