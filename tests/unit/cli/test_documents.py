"""The pages for operators describe the command as it is."""

import re
from pathlib import Path

import click
import pytest

from statelog.cli.program import program
from statelog.materializer import EventKind
from tests.support.documents import DOCS
from tests.support.rooms import SOURCE

_PAGES = [DOCS / "cli.md", DOCS / "guide" / "daemon.md", DOCS / "security.md", DOCS / "protocol-losses.md"]


def _options() -> set[str]:
    """Return every option of every command."""
    context = click.Context(
        program, **program.context_settings
    )  # The program retains its help option once it was asked for.
    found: set[str] = set()
    waiting: list[click.Command] = [program]
    while waiting:
        command = waiting.pop()
        found |= {
            name for parameter in command.get_params(context) for name in (*parameter.opts, *parameter.secondary_opts)
        }
        if isinstance(command, click.Group):
            waiting += [one for name in command.list_commands(context) if (one := command.get_command(context, name))]
    return found


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_options_that_a_page_names_are_there(page: Path) -> None:
    """Each `--option` in the text or in a shell line of a page exists."""
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text(encoding="utf-8")))
    assert named - _options() == set()


def test_events_that_the_daemon_guide_names_are_there() -> None:
    """Each event in the guide's table of what to watch is one that the daemon emits."""
    page = (DOCS / "guide" / "daemon.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## What to watch")
    named = set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE))
    assert named
    assert named <= {kind.value for kind in EventKind}


def test_loggers_that_the_daemon_guide_names_are_there() -> None:
    """The guide's table of loggers is complete and names no logger that the source does not use."""
    page = (DOCS / "guide" / "daemon.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(statelog\.\w+)`", page, re.MULTILINE))
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    assert named == {name for source in sources for name in re.findall(r'getLogger\("(statelog[\w.]*)"\)', source)}
