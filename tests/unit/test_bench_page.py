"""The page of figures that `make bench` writes."""

import re
from pathlib import Path

import pytest

from bench.figures import Figure, rate, timed
from bench.page import write_page
from bench.quote import quoted, rewritten
from bench.quotes import QUOTES
from bench.run import BENCHMARKS
from tests.support.documents import DOCS, ROOT


def test_a_page_has_every_figure_beside_its_baseline(tmp_path: Path) -> None:
    """The page has every figure next to its baseline, its cost, the machine, and a plot with a bar for each ratio."""
    took = [timed(lambda: sum(range(200_000))) for _ in range(3)]
    figures = {
        "append": [rate("bulk append", 1_000_000, took, "plain", [(1_000_000, 2.0 * one) for one in took])],
        "latency": [Figure(name="commit", unit="ms", value=2.0, lowest=1.0, highest=5780.0)],
    }
    write_page(tmp_path / "figures.md", figures, "1 change")
    page = (tmp_path / "figures.md").read_text("utf-8")
    append, commit = re.findall(r"^\| (?:bulk append|commit) .*$", page, re.MULTILINE)
    assert append.endswith("| 2x |")
    assert re.search(r"\| [\d.e-]+ s \| [\d.]+ GiB \| plain \|", append)
    assert commit == "| commit | 2 (1 to 5780) ms |  |  |  |  |  |  |"
    assert "1 change" in page
    assert re.search(r"commit [0-9a-f]{7}|no commit", page)
    plot = (tmp_path / "figures.svg").read_text("utf-8")
    assert "bulk append / plain" in plot
    assert ">2x<" in plot


def test_the_same_figures_make_the_same_plot(tmp_path: Path) -> None:
    """Equal figures make the same plot, without a date, so that a page that is written again shows what changed."""
    figure = Figure(name="a", unit="s", value=1.0, lowest=1.0, highest=1.0, baseline_name="b", baseline=0.5)
    for name in ("one", "two"):
        write_page(tmp_path / f"{name}.md", {"a": [figure]}, "")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_benchmark_that_was_left_out_keeps_its_rows(tmp_path: Path) -> None:
    """A benchmark that was left out keeps its rows with the run that they are from, also when left out again."""
    figure = Figure(name="a commit", unit="s", value=1.0, lowest=1.0, highest=1.0, baseline_name="b", baseline=0.5)
    other = Figure(name="other", unit="s", value=1.0, lowest=1.0, highest=1.0)
    page = tmp_path / "figures.md"
    write_page(page, {"far": [figure], "near": [other]}, "7 changes")
    for changes in (8, 9):
        write_page(page, {"far": [], "near": [other]}, f"{changes} changes")
        text = page.read_text("utf-8")
        assert text.count("| a commit | 1 (1 to 1) s |") == 1
        assert re.search(r"^Left out of this run. An earlier one had: 7 changes; ", text, re.MULTILINE)
        assert f"`make bench`: {changes} changes; " in text
        assert text.count("\n    python -m bench far\n") == 1
    write_page(page, {"none": []}, "")
    assert "Left out of this run." in page.read_text("utf-8")


@pytest.mark.parametrize("document", list(QUOTES))
def test_a_document_quotes_the_page(document: str) -> None:
    """The tables of figures in documents, and their machine, are what `python -m bench.quote` makes of the page."""
    text, page = (ROOT / document).read_text("utf-8"), (DOCS / "figures.md").read_text("utf-8")
    assert rewritten(document, text, page) == text
    for quote in QUOTES[document]:
        without = text.replace(quoted(quote, page), quote.head)
        assert without != text
        assert rewritten(document, without, page) == text


def test_the_page_is_of_a_run_of_all() -> None:
    """The page has every benchmark."""
    page = (DOCS / "figures.md").read_text("utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(BENCHMARKS)
