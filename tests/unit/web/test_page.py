"""The page, over real HTTP, of logs on the twins: its contents, its refusals, and that it changes nothing."""

import http.client
import re
import ssl
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
import trustme

import statelog
from statelog import Where
from statelog.errors import ConfigError
from statelog.log import Log
from statelog.materializer import MaterializerSettings, run_round
from statelog.operate.listening import Listening, listening_at
from statelog.testing import Fault, Twin
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore, no_store_faults
from statelog.web.app import page_app, serve
from statelog.web.views import PageViews

HOSTILE = b"\x1b[2J\x00\xff<script>alert('k')</script>\xe2\x80\xae\" onload=\"x"
_HERE = Listening(host="127.0.0.1", port=0)


class Answer(NamedTuple):
    """An answer of a server."""

    status: int
    headers: dict[str, str]
    text: str


def ask(url: str, **headers: str) -> Answer:
    """Make one request."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, dict(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers), error.read().decode())


@contextmanager
def served(where: Where, listening: Listening = _HERE) -> Generator[str]:
    """Serve the page of these logs, and yield its URL."""
    urls: list[str] = []
    is_up, is_over = threading.Event(), threading.Event()

    def ready(url: str) -> None:
        urls.append(url)
        is_up.set()

    with PageViews(where, lambda _: MaterializerSettings(restore_budget_s=60.0)) as views:
        app = page_app(views, listening)
        server = threading.Thread(target=serve, args=(app, listening, is_over.wait), kwargs={"ready": ready})
        server.start()
        try:
            assert is_up.wait(30)
            yield urls[0]
        finally:
            is_over.set()
            server.join(30)


@pytest.fixture
def twin() -> Generator[Twin]:
    """Return two logs: `visits` with a snapshot and a tail, and `odd` with a key that looks like markup."""
    twin = Twin()
    with twin.environment():
        for name, key in (("visits", b"ann"), ("odd", HOSTILE)):
            with statelog.open(name, twin.where(), create=True) as log, statelog.Writer(log, "web") as writer:
                for number in range(3):
                    writer.put(key, b"value %d of " % number + key)
                    writer.commit()
                    if number == 0:
                        run_round(log)
        yield twin


def test_all_logs_are_listed_with_how_they_are(twin: Twin) -> None:
    """All logs are listed with their condition. A directory that is no log is not."""
    twin.disk.write("somebody/else.txt", b"text", absent=True)
    with served(twin.where()) as url:
        answer = ask(url)
    assert re.findall(r'<a href="/logs/([a-z]+)">', answer.text) == ["odd", "visits"]
    assert answer.text.count('good">ok<') == 2
    assert "somebody" not in answer.text


def test_a_log_that_nobody_rolls_up_is_not_green(twin: Twin) -> None:
    """A log without a round is yellow, and red beyond the alarm age, with a hint. An empty one has no colour."""
    for name in ("empty", "alone"):
        statelog.open(name, twin.where(), create=True).close()
    with statelog.open("alone", twin.where()) as log, statelog.Writer(log, "web") as writer:
        writer.put(b"ann", b"one")
        writer.commit()
    with served(twin.where()) as url:
        text = ask(url).text
        assert re.findall(r'class="badge (\w*)">([^<]*)<', text) == [
            ("warn", "no round was seen"), ("", "empty"), ("good", "ok"), ("good", "ok"),
        ]  # fmt: skip
        assert "1 change," in text
        assert "1 changes" not in text
        assert "Start a materializer" in ask(f"{url}/logs/alone").text
    twin.clock.advance(3600)
    with served(twin.where()) as url:
        assert 'bad">in no snapshot for 1 h 0 min<' in ask(f"{url}/logs/alone").text


def test_the_latest_commits_are_shown_right_after_a_round(twin: Twin) -> None:
    """The latest commits are shown right after a round, below the newest snapshot, while the ledger has them."""
    with statelog.open("visits", twin.where()) as log:
        run_round(log)
    with served(twin.where()) as url:
        text = unescape(ask(f"{url}/logs/visits").text)
    assert "0 changes" in text
    assert re.findall(r'UTC</td><td class="text">web</td><td class="number">([0-9])</td>', text) == ["3", "2"]


def test_damage_below_the_newest_snapshot_takes_no_page_away(twin: Twin) -> None:
    """Damage below the newest snapshot, which `describe` does not read, does not prevent the page."""
    with statelog.open("visits", twin.where()) as log:
        run_round(log)
        position = log.manifests.read(1).position
    twin.cluster.spoil("visits.ledger", 0, position, position + 1)
    with served(twin.where()) as url:
        text = ask(f"{url}/logs/visits").text
    assert 'good">ok<' in text
    assert "The ledger holds none any more" in text


def test_one_log_shows_what_describe_says(twin: Twin) -> None:
    """A log's page has the names of `describe`, and its latest commits."""
    with served(twin.where()) as url:
        text = unescape(ask(f"{url}/logs/visits").text)
    assert "2 changes" in text
    assert "1 run on 1 level with 1 row" in text
    assert re.search(r"<dt>newest manifest</dt><dd>1</dd>", text)
    assert re.findall(r'UTC</td><td class="text">web</td><td class="number">([0-9])</td>', text) == ["3", "2"]
    assert re.search(r'<meter min="0" max="60.0" [^>]*>< 1 s</meter>', text)
    assert re.search(r"<dt>verdict</dt><dd>ok</dd>", text)


def test_a_key_is_looked_up_with_its_history(twin: Twin) -> None:
    """A key is shown with its history, and a missing or impossible one with the reason."""
    with served(twin.where()) as url:
        found = ask(f"{url}/logs/visits/key?key=ann&history=yes")
        absent = ask(f"{url}/logs/visits/key?key=bob")
        broken = ask(f"{url}/logs/visits/key?key=%2A&bytes=base64")
        odd = ask(f"{url}/logs/visits/key?key=ann&bytes=morse")
        group = ask(f"{url}/logs/visits/key?key=ann&group=3")
    assert "value 2 of ann" in found.text
    assert [found.text.count(f"value {number} of ann") for number in range(3)] == [1, 1, 2]
    assert absent.status == 200
    assert "is not there" in absent.text
    assert [one.status for one in (broken, odd, group)] == [400, 400, 400]
    assert "not base64" in broken.text


def test_a_key_is_found_in_whatever_key_group_its_callers_gave_it(twin: Twin) -> None:
    """A key is searched in all key groups, with the group of each, or in the given one."""
    options = statelog.LogOptions(partitions=2, key_groups=2, hash_rule="caller")
    with (
        twin.environment(),
        statelog.open("lines", twin.where(), create=options) as log,
        statelog.Writer(log, "lines") as writer,
    ):
        for group in range(2):
            writer.append(group, b"ann", b"value of %d" % group)
        writer.commit()
    with served(twin.where()) as url:
        every = ask(f"{url}/logs/lines/key?key=ann&history=yes").text
        one = ask(f"{url}/logs/lines/key?key=ann&group=1").text
    assert re.findall(r"<pre class=\"value\">(.*?)</pre>.*?in key group (.)<", every) == [
        ("value of 0", "0"),
        ("value of 1", "1"),
    ]
    assert every.count("value of 1") == 2
    assert ("value of 0" in one, "value of 1" in one) == (False, True)


def test_what_a_log_holds_is_text_on_the_page(twin: Twin) -> None:
    """A key makes no markup, moves no terminal and does not turn the direction of the following text."""
    with served(twin.where()) as url:
        query = urlencode({"key": b64encode(HOSTILE), "bytes": "base64", "history": "yes"})
        answer = ask(f"{url}/logs/odd/key?{query}")
        missing = ask(f"{url}/logs/%3Cb%3E%E2%80%AE")
    assert "value 2 of" in answer.text
    assert "&lt;script&gt;" in answer.text
    assert missing.status == 404
    for text in (answer.text, missing.text):
        assert "<script>alert" not in text
        assert "<b>" not in text
        assert not {"\x1b", "\x00", "\u202e"} & set(text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_nothing_is_written_whatever_is_asked(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request writes a file, a record, a lease or the store's time file, and only questions are answered."""
    twin.clock.advance(10)

    def refuse(*_: object) -> float:
        raise AssertionError("a page only reads")

    monkeypatch.setattr(MemoryStore, "now_s", refuse)

    def held() -> list[object]:
        kafka = twin.where().kafka
        assert isinstance(kafka, MemoryKafka)
        topics = [kafka.offsets(topic, [0]) for topic in ("visits", "visits.ledger", "odd.ledger")]
        return [sorted(twin.disk.files("")), topics]

    before = held()
    with served(twin.where()) as url:
        for path in ("", "logs/visits", "logs/odd", "logs/visits/key?key=ann&history=yes", "static/style.css"):
            answer = ask(f"{url}/{path}")
            assert (answer.status, "went wrong" in answer.text) == (200, False)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(f"{url}/logs/visits", b"data", timeout=30)
    assert held() == before


def test_a_page_is_live(twin: Twin) -> None:
    """A commit appears on an open page by itself."""
    with (
        served(twin.where()) as url,
        closing(urllib.request.urlopen(f"{url}/logs/visits/events", timeout=30)) as events,
        statelog.open("visits", twin.where()) as log,
    ):
        assert events.headers["content-type"].startswith("text/event-stream")
        assert _next_event(events).count(">web</td>") == 3
        with statelog.Writer(log, "another") as writer:
            writer.put(b"ann", b"new")
            writer.commit()
        for _ in range(10):  # An update that was under way comes first.
            twin.clock.advance(60)
            if ">another</td>" in _next_event(events):
                return
    pytest.fail("the commit was not shown")


def _next_event(events: Iterable[bytes]) -> str:
    """Return the lines of the next event."""
    lines: list[str] = []
    for line in events:
        if line.startswith(b"data: "):
            lines.append(line[6:].decode())
        elif lines:
            break
    return "".join(lines)


def test_a_live_page_ends_with_the_server(twin: Twin, caplog: pytest.LogCaptureFixture) -> None:
    """A live page ends in order, soon after the server, and nothing is logged."""
    with served(twin.where()) as url:
        events = urllib.request.urlopen(f"{url}/logs/visits/events", timeout=30)
        assert _next_event(events)
    with closing(events):
        events.read()  # To its end, which comes.
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


def test_a_log_that_hangs_or_is_damaged_leaves_the_others_alone(twin: Twin) -> None:
    """A hanging or damaged log does not slow the pages of others, and the list names it."""
    gate = threading.Event()

    def hang(_method: str, path: str) -> Fault | None:
        if path.startswith("manifests/") and threading.current_thread().name.startswith("statelog-page"):
            assert gate.wait(60)
        return None

    where = twin.where()

    def store(log: str) -> MemoryStore:
        return MemoryStore(twin.disk, log, faults=hang if log == "odd" else no_store_faults)

    hanging = Where(where.kafka, store, allow_unsafe=where.allow_unsafe)
    twin.disk.remove("visits/descriptor.avro")
    twin.disk.write("visits/descriptor.avro", b"damage", absent=True)
    try:
        with served(hanging) as url:
            assert "being read" in ask(f"{url}/logs/odd").text
            text = ask(f"{url}/logs/visits").text
            assert "CorruptDescriptor" in text
            assert "cannot be read" in text
            listed = ask(url)
        assert listed.status == 200
        assert "being read" in listed.text
    finally:
        gate.set()


def test_the_token_is_asked_for(twin: Twin, tmp_path: Path) -> None:
    """Every address needs the token, files and events included."""
    token = tmp_path / "token"
    token.write_text("a token of some length", "utf-8")
    with served(twin.where(), listening_at("127.0.0.1:0", token_file=token)) as url:
        for path in ("", "/logs/visits", "/logs/visits/events", "/static/style.css", "/nothing"):
            refused = ask(f"{url}{path}")
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Basic")
            assert "visits" not in refused.text
        assert ask(url, authorization="Bearer a token of some length").status == 200
        basic = b64encode(b":a token of some length").decode()
        assert ask(f"{url}/logs/visits", authorization=f"Basic {basic}").status == 200


def test_pages_come_over_tls(twin: Twin, tmp_path: Path) -> None:
    """Pages come over TLS with the given certificate, and not in clear."""
    authority = trustme.CA()
    issued, certificate, key = authority.issue_cert("localhost"), tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for part in issued.cert_chain_pems:
        part.write_to_path(certificate, append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)  # pyright: ignore[reportUnknownMemberType]  # its type names pyOpenSSL, which is not here
    with served(twin.where(), listening_at("localhost:0", certificate=certificate, key=key)) as url:
        assert url.startswith("https://localhost:")
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            assert b"/logs/visits" in answer.read()
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            urllib.request.urlopen(url.replace("https", "http"), timeout=30)


def test_a_name_of_somebody_elses_is_not_answered(twin: Twin) -> None:
    """A request under a foreign host name is refused, even if it reaches this machine."""
    with served(twin.where()) as url:
        assert ask(url, host="attacker.test").status == 400
        assert ask(url, host="localhost:1234").status == 200


def test_an_address_that_is_taken_is_refused(twin: Twin) -> None:
    """An address in use is refused at once, by name, with what to do."""
    with served(twin.where()) as url, PageViews(twin.where(), lambda _: MaterializerSettings()) as views:
        taken = listening_at(url.removeprefix("http://"))
        with pytest.raises(ConfigError, match="the address cannot be bound") as refused:
            serve(page_app(views, taken), taken, lambda: None, ready=print)
    assert "another port" in str(refused.value.hint)


def test_a_log_that_was_made_anew_is_shown_from_its_beginning(twin: Twin) -> None:
    """The page of a re-created log drops the old one's data at the check that notices it, also at the same position."""
    with PageViews(twin.where(), lambda _: MaterializerSettings()) as views:
        seen = views.log("visits", 30.0)
        assert seen.value
        assert {one.writer for one in seen.value.commits} == {"web"}
        Log.delete("visits", twin.where())
        with statelog.open("visits", twin.where(), create=True) as log, statelog.Writer(log, "anew") as writer:
            for number in range(9):
                writer.put(b"ann", b"%d" % number)
                writer.commit()
        for _ in range(2):
            twin.clock.advance(60)
            seen = views.log("visits", 30.0)
        assert seen.value
        assert [one.position for one in seen.value.commits if one.writer == "anew"] == list(range(11, 2, -1))
        assert len(seen.value.commits) == 9
        assert [(one.kind, one.times) for one in seen.failures] == [("IdentityChanged", 1)]
