"""Hints on the command line name its options, and no Python parameters."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from statelog.cli.output import as_typed
from statelog.cli.program import program
from statelog.errors import UnsafeTopic
from statelog.kafka.port import TopicSpec
from statelog.schemas.topic_policy import TopicRole, check_topic

SOURCE = Path(__file__).parents[3] / "src" / "statelog"
ROOMS = (
    "schemas",
    "kafka",
    "store",
    "history",
    "log",
    "reading",
    "producer",
    "materializer",
    "recovery",
    "operate",
    "cli",
)
_PARAMETER = re.compile(r"\b[a-z_]+=")
OF_PROGRAMS = {"checkpoint_id=", "kafka=", "grant=", "directory_mode=", "preserve_index=", "start="}
"""Parameters in hints that a command never meets, or names of a store's own options."""


def hints() -> Iterator[str]:
    """Return every text below the command line that is a hint, or part of one."""
    for room in ROOMS:
        for path in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                match node:
                    case ast.keyword(arg="hint", value=value):
                        pass
                    case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
                        if "hint" not in ast.unparse(target).lower():
                            continue
                    case _:
                        continue
                found = (one.value for one in ast.walk(value) if isinstance(one, ast.Constant))
                yield from (text for text in found if isinstance(text, str))


def options() -> set[str]:
    """Return every option of every command."""
    with program.make_context("statelog", ["version"]) as context:
        commands = [program.get_command(context, name) for name in program.list_commands(context)]
    commands += [one for command in commands if isinstance(command, click.Group) for one in command.commands.values()]
    return {option for command in commands if command for one in command.params for option in one.opts}


def test_no_hint_names_a_parameter() -> None:
    """Every hint of the library can be typed on the command line."""
    typed = [as_typed(hint + "x" if hint.endswith("=") else hint) for hint in hints()]
    assert len(typed) > 100
    assert {name for hint in typed for name in _PARAMETER.findall(hint)} <= OF_PROGRAMS
    named = {name for hint in typed for name in re.findall(r"(?<![\w-])--[a-z-]+", hint)}
    assert named - options() == set()


@pytest.mark.parametrize(
    ("hint", "typed"),
    [
        (
            'Pass replication_factor=1 and allow_unsafe=["replication", "min-insync"] on a single broker',
            "Pass --replication-factor 1 and --allow-unsafe replication,min-insync on a single broker",
        ),
        ("Pass create=True, or make it with `statelog init`", "Make it with `statelog init`"),
        ("Pass create=True", "Make it with `statelog init`"),
        ('Pass truncation="retention", and wait', "Pass --truncation retention, and wait"),
        ("See `statelog truncate`", "See `statelog truncate`"),
        ("Set alarm_age_s to several intervals", "Set --alarm-age to several intervals"),
        ("Restore the topic", "Restore the topic"),
        ("", ""),
    ],
)
def test_hints(hint: str, typed: str) -> None:
    """Hints write values as options take them."""
    assert as_typed(hint) == typed


def test_what_is_unsafe_is_waived_by_an_option() -> None:
    """A hint gives all names of waivers at once, as the option takes them."""
    with pytest.raises(UnsafeTopic) as caught:
        check_topic(TopicSpec(name="t", partitions=1, replication_factor=1), TopicRole.DATA, frozenset())
    assert "; on a test cluster, waive by name: --allow-unsafe " in as_typed(caught.value.hint)
    assert "," in as_typed(caught.value.hint)
