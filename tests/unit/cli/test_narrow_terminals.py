"""Reports fit a terminal of 80 columns, and use the room of a wide one."""

from collections.abc import Callable

import pytest

from statelog.cli.output import CliOutput
from statelog.operate.report import Listing, Report

NAMES = ["runs/" + digits * 4 + ".parquet" for digits in ("0123456789abcdef", "0123456799abcdef")]
NARROW, WIDE = 80, 400

Shown = Callable[[Report, int], list[str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Return a function that renders a report on a terminal of so many columns."""

    def on_terminal(report: Report, columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        output = CliOutput(as_json=False)
        output.on_terminal = True
        output.report(report)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        return lines

    return on_terminal


def test_a_name_in_hex_is_cut_where_it_does_not_fit(shown: Shown) -> None:
    """A name in hex is cut to an unambiguous prefix where it does not fit, and is whole where it does."""
    report = Report("log", {"log": "log"}, (Listing("runs", ("path", "rows"), [(name, 1) for name in NAMES]),))
    cut = [f"{name[:14]}\N{HORIZONTAL ELLIPSIS}.parquet" for name in NAMES]
    for columns, names in ((NARROW, cut), (WIDE, NAMES)):
        assert [line.split()[1] for line in shown(report, columns) if ".parquet" in line] == names


def test_data_is_never_cut(shown: Shown) -> None:
    """A user's key is never cut, even if it looks like a name in hex."""
    rows = [(NAMES[0], "fedcba9876543210" * 3)]
    text = "".join(shown(Report("state", {}, (Listing("rows", ("path", "key"), rows),)), NARROW))
    assert (NAMES[0] in text, rows[0][1] in text) == (False, True)


def test_optional_columns_go_first_and_are_named(shown: Shown) -> None:
    """Optional columns are dropped first and named below the table. Headings and short cells are not broken."""
    columns = ("log", *(f"number_{number}_of_something" for number in range(8)))
    rows = [(f"log-{number}", *range(8)) for number in range(3)]
    report = Report("logs", {"root": "/logs"}, (Listing("logs", columns, rows, columns[5:]),))
    narrow = shown(report, NARROW)
    assert narrow[0] == "root: /logs"
    assert [line.split()[1:10:2] for line in narrow if "log-" in line] == [
        [f"log-{number}", *map(str, range(4))] for number in range(3)
    ]
    assert "number 4 of something" in " ".join(narrow[-2:])
    assert not any("wider" in line for line in shown(report, WIDE))
    without = Listing("logs", (*columns, "empty"), [(*row, None) for row in rows], ("empty",))
    assert not any("wider" in line for line in shown(Report("logs", {}, (without,)), WIDE))


def test_what_does_not_fit_is_a_record(shown: Shown) -> None:
    """A row that does not fit becomes lines of a name and a value."""
    columns = tuple(f"a_column_of_name_{number}" for number in range(9))
    rows = [tuple("cell " * 4 + str(number) for number in range(9))] * 2
    lines = shown(Report("log", {}, (Listing("bounds", columns, rows),)), NARROW)
    assert sum("a column of name 8" in line and "cell cell cell cell 8" in line for line in lines) == 2


def test_a_table_without_rows_is_left_out_unless_it_is_the_answer(shown: Shown) -> None:
    """A terminal leaves out empty tables and empty columns, except the table that is the answer.

    Programs get everything.
    """
    empty, full = Listing("losses", ("when", "who"), []), Listing("logs", ("log", "problem"), [("a", None)])
    text = "\n".join(shown(Report("log", {"log": "a", "url": "u"}, (empty, full)), NARROW))
    assert ("losses" in text, "problem" in text, "logs" in text) == (False, False, True)
    assert "losses" in "\n".join(shown(Report("log", {"log": "a"}, (empty,)), NARROW))
    assert Report("log", {}, (empty, full)).to_json() == {"losses": [], "logs": [{"log": "a", "problem": None}]}


def test_off_a_terminal_headings_are_in_the_same_words_as_values(capsys: pytest.CaptureFixture[str]) -> None:
    """A heading has the same words as a fact: an `age_s` of 229 is an age of 3 min 49 s."""
    listing = Listing("truncation_bounds", ("held_by", "age_s"), [("manifest 1", 229.0)])
    CliOutput(as_json=False).report(Report("log", {"lag_age_s": 229.0}, (listing,)))
    assert capsys.readouterr().out.splitlines() == [
        "lag age: 3 min 49 s",
        "",
        "truncation bounds:",
        "truncation held back by\tage",
        "manifest 1\t3 min 49 s",
    ]
