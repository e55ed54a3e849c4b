"""`statelog serve` as a process on a real broker, seen in a real browser: by mouse, by keyboard, without a script.

It is tested in light and in dark, on a desk and on a telephone, and while the broker goes away and comes back. The log
has 1,024 key groups, and hostile keys.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

import statelog
from statelog import LogOptions, Where
from statelog.log import Log
from statelog.materializer import run_round
from tests.support.services.broker import OwnBroker
from tests.support.services.browser import WHERE_TO_HAVE_IT, chromium

pytestmark = pytest.mark.broker

HOSTILE = "\x1b[2J<img src=x onerror=\"document.title='hurt'\">\u202e</td></tr>{{ 7*7 }}"
_PATIENCE_MS = 60_000
_PHONE = ViewportSize(width=390, height=800)
_DESK = ViewportSize(width=1280, height=900)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """Yield Chromium, without a window."""
    program = chromium()
    if program is None:
        pytest.skip(f"the page is not tested in this run: {WHERE_TO_HAVE_IT}")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def where(own_broker: OwnBroker, log_name: str, tmp_path: Path) -> Where:
    """Return a place on a broker of the test's own, with a log as wide as they come, and some history."""
    settings = {"bootstrap.servers": own_broker.bootstrap, "request.timeout.ms": "5000"}
    place = Where(settings, str(tmp_path / "root"), allow_unsafe=("replication", "min-insync"), replication_factor=1)
    options = LogOptions(partitions=16, key_groups=1024, key_type="string")
    with statelog.open(log_name, place, create=options) as log:
        _commit(log, "first", {f"key {number}": b"one" for number in range(5000)} | {HOSTILE: HOSTILE.encode()})
        run_round(log)
        _commit(log, "second", {HOSTILE: b"newest"}, {f"topic {number}": "offset 1" for number in range(20)})
    return place


def _commit(log: Log, writer: str, changes: dict[str, bytes], metadata: dict[str, str] | None = None) -> None:
    with statelog.Writer(log, writer) as opened:
        for key, value in changes.items():
            opened.put(key, value)
        opened.commit(metadata)


@pytest.fixture
def url(own_broker: OwnBroker, where: Where) -> Generator[str]:
    """Yield the page, served by the command, which ends by SIGTERM with 0, also while a page of it is live."""
    flags = ["--bootstrap", own_broker.bootstrap, "--root", str(where.root), "--listen", "127.0.0.1:0"]
    flags += ["--kafka", "request.timeout.ms=5000", "--allow-unsafe", "replication,min-insync"]
    command = [sys.executable, "-m", "statelog", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"serving (http://127\.0\.0\.1:\d+)$", process.stdout.readline().strip())
            assert found, "it does not say where it serves"
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(30)
    assert code == 0


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    """Yield a page that fails the test for any complaint of its console."""
    context = browser.new_context(viewport=_DESK)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    context.close()
    assert [one for one in complaints if "ERR_" not in one] == []


def test_a_page_outlives_the_broker(url: str, where: Where, page: Page, own_broker: OwnBroker, log_name: str) -> None:
    """A page shows its last knowledge, and its time, without the broker; it is live again once the broker is back."""
    page.goto(f"{url}/logs/{log_name}")
    expect(page.locator("#status")).to_have_text("live", timeout=_PATIENCE_MS)
    expect(page.locator("#live .badge").first).to_have_text("ok", timeout=_PATIENCE_MS)
    assert page.locator("svg rect").count() > 16
    page.get_by_text("All facts").click()
    own_broker.kill()
    expect(page.locator("#live .badge").first).to_contain_text("not reached since", timeout=2 * _PATIENCE_MS)
    expect(page.get_by_role("heading", name="Recent errors")).to_be_visible()
    assert page.locator("svg rect").count() > 16
    assert page.locator("#facts").get_attribute("open") is not None, "open parts stay open"
    own_broker.restart()
    with statelog.open(log_name, where) as log:
        _commit(log, "late", {"key 1": b"two"})
    expect(page.locator("#live .badge").first).to_have_text("ok", timeout=2 * _PATIENCE_MS)
    expect(page.get_by_role("cell", name="late").first).to_be_visible(timeout=_PATIENCE_MS)


def test_a_key_that_is_meant_to_hurt_is_looked_up_by_keyboard(url: str, page: Page, log_name: str) -> None:
    """A hostile key is looked up by Tab and Enter alone, from the skip link on; it stays text everywhere."""
    page.goto(f"{url}/logs/{log_name}")
    page.keyboard.press("Tab")
    expect(page.get_by_text("To the content")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.keyboard.insert_text(HOSTILE)
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Its history")).to_be_visible(timeout=_PATIENCE_MS)
    expect(page.locator("pre.value")).to_have_text("newest")
    expect(page.locator("tbody tr")).to_have_count(2 if "2 changes" in page.inner_text("main") else 1)
    assert page.title() == f"a key of {log_name} - statelog"
    assert page.locator("img").count() == 0
    assert "\\u202e" in page.inner_text("main")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(url: str, browser: Browser, log_name: str, scheme: str) -> None:
    """Nothing but a table scrolls sideways on a desk and on a telephone, and text has a contrast of 4.5 to 1.

    Every element that needs a name has one.
    """
    for size in (_DESK, _PHONE):
        context = browser.new_context(viewport=size, color_scheme="dark" if scheme == "dark" else "light")
        page = context.new_page()
        for path in ("/", f"/logs/{log_name}", f"/logs/{log_name}/key?key=key+1&history=yes", "/logs/nothing"):
            page.goto(f"{url}{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
            assert page.evaluate(_UNNAMED) == [], path
            assert page.evaluate(_FAINT) == [], path
            if size is _PHONE and path.endswith(log_name):  # No row is taller for a long cell that lies out of view.
                assert page.locator("section[aria-labelledby=writers] tbody tr").count() == 2
                assert page.evaluate(_TALL, 60) == [], path
        context.close()


def test_it_is_all_there_without_scripts(url: str, browser: Browser, log_name: str) -> None:
    """The page without scripts is complete, as of its last load."""
    context = browser.new_context(java_script_enabled=False, viewport=_DESK)
    page = context.new_page()
    page.goto(url)
    page.get_by_role("link", name=log_name).click()
    expect(page.get_by_role("heading", name=log_name, exact=True)).to_be_visible()
    assert page.locator("svg rect").count() > 16
    page.get_by_label("Key", exact=True).fill("key 7")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("pre.value")).to_have_text("one")
    context.close()


_TALL = """(most) => [...document.querySelectorAll("tbody tr")].filter((row) => row.clientHeight > most).map(
  (row) => `${row.clientHeight}: ${row.textContent.slice(0, 60)}`
)"""
_UNNAMED = """() => {
  const named = (one) => one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.closest("label");
  const wanting = [...document.querySelectorAll("svg, input, select, [role=region]")].filter((one) => !named(one));
  return wanting.map((one) => one.outerHTML);
}"""
_FAINT = """() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((one) => {
      const share = one / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$|transparent/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || one.closest("svg") || one.matches("option, .skip")) continue;
    const [more, less] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a);
    const contrast = (more + 0.05) / (less + 0.05);
    if (contrast < 4.5) faint.push(`${one.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""
