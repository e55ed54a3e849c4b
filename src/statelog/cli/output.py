"""The output of commands: a report as tables on a terminal, as plain lines elsewhere, or as JSON; and the exit codes.

Results go to standard output; errors, warnings and progress go to standard error. Control characters in texts of logs
and inputs are escaped, so that no log can control a terminal.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import click

from statelog.cli.streams import tell
from statelog.errors import (
    AlreadyExists,
    ConfigError,
    Damaged,
    Fenced,
    Misuse,
    NotFound,
    OutcomeUnknown,
    PersistFailed,
    StatelogError,
    Unavailable,
    Unsafe,
)
from statelog.formatting import as_json, clean
from statelog.operate.report import Listing, Report, shown, words

_OPTIONS = {
    "replication_factor": "--replication-factor",
    "allow_unsafe": "--allow-unsafe",
    "key_groups": "--key-groups",
    "hash_rule": "--hash",
    "prefix_bytes": "--prefix-bytes",
    "ttl_s": "--ttl-s",
    "alarm_age_s": "--alarm-age",
    "truncation": "--truncation",  # With a value alone: it is a word, too.
    "retention_days": "--retention-days",
}
_NAMED = re.compile(rf'\b(?!truncation(?!=))({"|".join(_OPTIONS)})\b(?:=(\[[^]]*\]|"[\w,.-]+"|[\w,.-]+))?')
_HEX, _EASY, _DATA = re.compile(r"[0-9a-f]{32,}"), 16, ("key", "value")
"""Names that are cut; the characters that a cell keeps in one line; the columns with user data."""
_MADE_BY_OPENING = re.compile(r"Pass create=True(?:, or (\w))?")

# Scripts may rely on these; docs/cli.md has the same table.
OK = 0
OTHER = 1
MISUSE = 2
"""An argument, a setting or an input is wrong, or a topic or store is unsafe."""
NOT_FOUND = 3
"""Something is not found, or exists already."""
UNAVAILABLE = 4
"""A temporary failure outside; the same command may succeed later, and loses nothing."""
FENCED = 5
"""Another writer took over."""
DAMAGED = 6
"""DATA LOSS or damage: stored data is missing or changed; a person has to act."""
ABSENT = 7
"""A key of `get` does not exist."""
INTERRUPTED = 130
"""The command was interrupted by Ctrl-C."""
_CODES: tuple[tuple[tuple[type[StatelogError], ...], int], ...] = (
    ((Misuse, Unsafe), MISUSE),
    ((NotFound, AlreadyExists), NOT_FOUND),
    ((Unavailable, PersistFailed, OutcomeUnknown), UNAVAILABLE),
    ((Fenced,), FENCED),
    ((Damaged,), DAMAGED),
)


def exit_code(error: StatelogError) -> int:
    """Return the exit code of an error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), OTHER)


class CliOutput:
    """Prints reports, lines and warnings in the form that the caller wants."""

    def __init__(self, *, as_json: bool, to_stderr: bool = False) -> None:
        self.as_json = as_json
        self.on_terminal = not as_json and sys.stdout.isatty()
        self._to_stderr = to_stderr

    def report(self, report: Report) -> None:
        """Print a result."""
        if self.as_json:
            self.line(as_json(report.to_json()))
        elif self.on_terminal:
            _show_rich(report, to_stderr=self._to_stderr)
        else:
            self.line("\n".join(_plain_lines(report)))

    def event(self, text: str, fields: Mapping[str, object]) -> None:
        """Print one event of a daemon: `text` for people, `fields` for programs."""
        self.line(as_json(fields) if self.as_json else clean(text))

    def line(self, text: str) -> None:
        """Print a line unchanged."""
        if self._to_stderr:
            tell(text)
        else:
            click.echo(text)

    def notice(self, text: str) -> None:
        """Print a note for people on standard error; nothing for programs."""
        if not self.as_json:
            tell(clean(text))

    def warning(self, text: str) -> None:
        """Print a warning for a person to check."""
        tell(as_json({"warning": text}) if self.as_json else f"warning: {clean(text)}")

    def error(self, error: StatelogError) -> None:
        """Print an error with its facts and its hint."""
        name, hint = type(error).__name__, as_typed(error.hint)
        if self.as_json:
            tell(as_json({"error": name, "message": error.message, "facts": dict(error.facts), "hint": hint}))
            return
        facts = [f"  {fact}: {clean(str(value))}" for fact, value in error.facts.items()]
        tell("\n".join([f"error: {clean(error.message)} [{name}]", *facts, *[f"hint: {clean(hint)}"] * bool(hint)]))


def _plain_lines(report: Report) -> list[str]:
    lines = [f"{words(name)}: {_in_line(name, value)}" for name, value in report.facts.items()]
    for one in report.printed:
        lines += ["", f"{words(one.name)}:", "\t".join(map(words, one.columns))]
        lines += ["\t".join(map(_in_line, one.columns, row)) for row in one.rows]
    return lines


def _in_line(name: str, value: object) -> str:
    """Format a value without line ends and tabs."""
    return shown(name, value).replace("\n", "\\n").replace("\t", "\\t")


_Cells = Mapping[str, Sequence[str]]


def _show_rich(report: Report, *, to_stderr: bool) -> None:
    # Loaded only for a terminal: the import is slower than most short commands.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=to_stderr, highlight=False, markup=False)

    def show_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
        table = Table(title=Text(title), show_header=False, title_justify="left")
        table.add_column(style="bold", overflow="fold")
        table.add_column(overflow="fold")
        for name, value in pairs:
            table.add_row(words(name), Text(value))
        console.print(table)

    facts = [(name, shown(name, value)) for name, value in report.facts.items()]
    if len(facts) == 1 and report.printed:
        console.print(f"{words(facts[0][0])}: {facts[0][1]}")
    elif facts:
        show_pairs(clean(report.title), facts)
    for one in report.printed:
        cells, widths, left_out = _fitting(one, console.width)
        rows, table = list(zip(*cells.values(), strict=True)), Table(title=words(one.name), title_justify="left")
        if not widths:  # A record for each row.
            for row in rows:
                show_pairs(words(one.name), zip(cells, row, strict=True))
            continue
        for name, width in zip(cells, widths, strict=True):
            is_text = any(isinstance(row[one.columns.index(name)], str | dict) for row in one.rows)
            table.add_column(words(name), justify="left" if is_text else "right", overflow="fold", width=width)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        if left_out:
            console.print(f"a wider terminal also shows {', '.join(left_out)}")


def _fitting(one: Listing, width: int) -> tuple[_Cells, list[int], list[str]]:
    """Return the cells that fit, the widths of their columns, and the columns that do not fit.

    Hexadecimal names are cut first, then optional columns are left out. If nothing fits, there are no widths. A column
    without values is dropped.
    """
    cells: _Cells = {
        name: [shown(name, value) for value in column]
        for name, *column in zip(one.columns, *one.rows, strict=True)
        if not column or any(value is not None for value in column)
    }
    own = {name: column for name, column in cells.items() if name not in _DATA}
    names = {found for column in own.values() for cell in column for found in _HEX.findall(cell)}
    length = next(n for n in range(8, sys.maxsize) if len({name[:n] for name in names}) == len(names))
    cut = partial(_HEX.sub, lambda found: f"{found[0][:length]}\N{HORIZONTAL ELLIPSIS}")
    short = {**cells, **{name: [cut(cell) for cell in column] for name, column in own.items()}}
    few = {name: column for name, column in short.items() if name not in one.optional}
    for some in (cells, short, few):
        if widths := _widths(some, width):
            return some, widths, [words(name) for name in cells if name not in some]
    return short, [], []


def _widths(cells: _Cells, width: int) -> list[int]:
    """Return the widths of columns, each at least as wide as its longest word; none if they do not fit."""
    widths, wanted = list[int](), list[int]()
    for name, column in cells.items():
        longest = max(map(len, column), default=0)
        breakable = (len(word) for text in (words(name), *column) for word in text.split())
        widths.append(max(min(longest, _EASY), *breakable))
        wanted.append(max(longest, len(words(name))))
    left = width - sum(widths) - 3 * len(widths) - 1
    for number, most in enumerate(wanted):
        more = max(0, min(most - widths[number], left))
        widths[number] += more
        left -= more
    return widths if left >= 0 else []


def as_typed(hint: str) -> str:
    """Replace the parameters in a hint by options, and `create=True` by `statelog init`."""
    return _NAMED.sub(_option, _MADE_BY_OPENING.sub(_made, hint))


def _option(found: re.Match[str]) -> str:
    value = re.sub(r"[\[\]\"' ]", "", found[2] or "")
    return f"{_OPTIONS[found[1]]} {value}".rstrip()


def _made(found: re.Match[str]) -> str:
    return found[1].upper() if found[1] else "Make it with `statelog init`"


def confirm(name: str, what: str, asked: str = "its name") -> None:
    """Show the consequence, and ask to type `name`, which `asked` describes. Raises ConfigError for another text."""
    try:
        typed = click.prompt(f"{what} Type {asked} to continue", err=True)
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt) or isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise ConfigError("no answer; nothing was done", hint="Pass --yes in scripts") from None
    if typed != name:
        raise ConfigError(f"{asked.removeprefix('its ')} does not match; nothing was done", expected=name)
