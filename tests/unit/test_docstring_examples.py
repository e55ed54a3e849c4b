"""The examples in docstrings run, and the names that a program calls have one."""

import doctest
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

import statelog
from statelog.producer import Coordinator, Writer
from tests.support.docstring_examples import examples, run_example
from tests.support.rigs.log import twin_rig

EXPLAINED = (
    "Coordinator", "PendingHandle", "Seams", "TaskWriter", "Writer", "WriterSettings",
    "Control", "Materializer", "MaterializerSettings", "Rates", "Tail", "install_signal_handlers", "run_round",
    "tail_now",
)  # fmt: skip
"""Names that have an example: those that a program calls. Each of them is public."""


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


@pytest.mark.parametrize("example", examples(spark=False), ids=lambda test: str(test.name))
def test_an_example_does_what_it_says(example: doctest.DocTest) -> None:
    """On a new log, with what its names say at hand."""
    with _world() as names:
        run_example(example, names)


def test_the_names_that_a_program_calls_have_an_example() -> None:
    """In the docstring of the class, where `help` shows it."""
    without = [name for name in EXPLAINED if not any(test.name.endswith(f".{name}") for test in examples(spark=False))]
    assert without == []


@pytest.mark.parametrize("example", examples(spark=False), ids=lambda test: str(test.name))
def test_an_example_is_code_on_its_page(example: doctest.DocTest) -> None:
    """It is indented; else Markdown takes its prompts for quotations."""
    text = inspect.cleandoc(example.docstring or "")
    assert [line for line in text.splitlines() if line.startswith(">>>")] == []
