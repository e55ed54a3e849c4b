"""The pictures of the documents are those that `docs/pictures.py` draws, and a page shows each of them."""

import re
import runpy
from html import unescape
from typing import Any

import pytest

from tests.support.documents import DOCS, documents

_DRAWN: dict[str, Any] = runpy.run_path(str(DOCS / "pictures.py"))
_PICTURES: dict[str, Any] = _DRAWN["PICTURES"]


@pytest.mark.parametrize("name", list(_PICTURES))
def test_a_picture_is_as_it_is_drawn(name: str) -> None:
    """Each picture's file is what `python docs/pictures.py` writes, and a page shows it with an alternative text."""
    draw, title, says = _PICTURES[name]
    assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(title, says)
    shown = re.compile(rf"!\[[^\]]+\]\((?:\.\./|docs/)?pictures/{name}\.svg\)")
    assert any(shown.search(page.read_text(encoding="utf-8")) for page in documents())


def test_no_picture_is_left_over() -> None:
    """Every file in the folder of pictures is drawn."""
    assert {path.stem for path in (DOCS / "pictures").iterdir()} == set(_PICTURES)


def test_the_plot_has_the_figures_of_its_page() -> None:
    """The plot has each figure of the page's table next to its baseline, and no other."""
    table = (DOCS / "guide" / "speed.md").read_text(encoding="utf-8")
    table = re.sub(r"^\| \|.*folded first.*\n", "", table, flags=re.MULTILINE)  # statelog's own fold, next to itself
    rows = re.findall(r"^\| (.*?) ?\| (?:([\d.]+) (?:M changes/s|(?:CPU )?ms))? ?\| ([\d.]+)", table, re.MULTILINE)
    told = [float(ours) for _, ours, _ in rows if ours] + [float(beside) for *_, beside in rows]
    svg = (DOCS / "pictures" / "figures.svg").read_text(encoding="utf-8")
    drawn = [float(number) for number in re.findall(r">([\d.]+)(?: ms)?</text>", svg)]
    assert sorted(drawn) == sorted(told)


def test_the_terminal_shows_its_commands_and_asks_no_other_host() -> None:
    """The picture of the command shows the commands that `docs/terminal.py` runs, without a name of that machine."""
    svg = (DOCS / "screens" / "terminal.svg").read_text(encoding="utf-8")
    shown = unescape(svg).replace("\xa0", " ")
    commands: tuple[str, ...] = runpy.run_path(str(DOCS / "terminal.py"))["COMMANDS"]
    assert [command for command in commands if f"$ {command}" not in shown] == []
    assert re.findall(r"url\(\"?https?:|@import|/tmp/|file://", svg) == []
