"""The documentation as a site in a browser: nothing is cut off, search finds pages, pictures follow the scheme."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import ROOT
from tests.support.services.browser import WHERE_TO_HAVE_IT, chromium, look

_WIDTHS = [1280, 390]
_LOOK = """<!doctype html><title>look</title><script>
const pages = PAGES, widths = WIDTHS;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function open(page, width) {
  const frame = document.createElement("iframe");
  // Beside the window, so that it is laid out and not drawn.
  frame.style = `border: 0; width: ${width}px; height: 900px; position: absolute; left: 3000px`;
  frame.src = page;
  const loaded = new Promise((done) => (frame.onload = done));
  document.body.append(frame);
  await loaded;
  return frame;
}
async function resize(frame, width) {
  const resized = new Promise((done) => frame.contentWindow.addEventListener("resize", done, { once: true }));
  frame.style.width = `${width}px`;
  await resized;
}
const isWide = (element) => element.scrollWidth > element.clientWidth + 1;
function look(page, width) {
  const found = [];
  const root = page.documentElement;
  if (page.defaultView.innerWidth !== width) found.push(`window: ${page.defaultView.innerWidth}`);
  if (isWide(root)) found.push(`page: ${root.scrollWidth}`);
  for (const code of page.querySelectorAll("article pre, article pre > code"))
    if (isWide(code)) found.push(`code: ${code.textContent.slice(0, 60)}`);
  for (const svg of page.querySelectorAll("article svg.sl")) {
    const { width, height } = svg.viewBox.baseVal;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBBox();
      if (box.x < -1 || box.x + box.width > width + 1 || box.y + box.height > height)
        found.push(`picture: ${text.textContent}`);
    }
  }
  return found;
}
async function search(page) {
  const input = page.querySelector(".md-search__input");
  page.querySelector("#__search").click();
  input.focus();
  input.value = "truncation";
  const titles = () => [...page.querySelectorAll(".md-search-result__item h1, .md-search-result__item h2")];
  for (let tries = 0; tries < 300 && !titles().length; tries++) {
    input.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await wait(100);
  }
  return titles().map((title) => title.textContent.trim());
}
function scheme(page, name) {
  page.body.setAttribute("data-md-color-scheme", name);
  const box = page.querySelector("article svg.sl .box");
  return page.defaultView.getComputedStyle(box).fill;
}
onload = async () => {
  const seen = Object.fromEntries(widths.map((width) => [width, { found: {} }]));
  for (const page of pages) {
    const frame = await open(page, widths[0]);
    for (const width of widths) {
      if (width !== widths[0]) await resize(frame, width);
      const wide = look(frame.contentDocument, width);
      if (wide.length) seen[width].found[page] = wide;
    }
    frame.remove();
  }
  for (const width of widths) {
    const frame = await open("index.html", width);
    const home = frame.contentDocument;
    seen[width].schemes = [scheme(home, "default"), scheme(home, "slate")];
    seen[width].titles = await search(home);
    frame.remove();
  }
  await fetch("/found", { method: "POST", body: JSON.stringify(seen) });
};
</script><body></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site as `make docs` builds it."""
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("the site cannot be built here: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def seen(site: Path) -> dict[str, Any]:
    """Return a browser's view of all pages, by the width of the window. Each page is loaded once."""
    browser = chromium()
    if browser is None:
        pytest.skip(WHERE_TO_HAVE_IT)
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    assert len(pages) > 60
    page = _LOOK.replace("PAGES", repr(pages)).replace("WIDTHS", repr(_WIDTHS))
    found: dict[str, Any] = look(browser, site, page, width=max(_WIDTHS))
    return found


@pytest.mark.parametrize("width", _WIDTHS)
def test_nothing_is_cut_off(seen: dict[str, Any], width: int) -> None:
    """On every page, on a laptop and on a phone, nothing is cut off.

    No page scrolls sideways, and no line of code and no word of a picture is wider than its place. Search finds pages,
    and pictures look different in the dark.
    """
    here = seen[str(width)]
    assert here["found"] == {}
    assert len(set(here["schemes"])) == 2
    assert here["titles"]
