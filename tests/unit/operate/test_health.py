"""Health: reasons why a daemon is not live or not ready, and the answers of its server."""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry

import statelog
from statelog.errors import ConfigError
from statelog.materializer import MaterializerSettings
from statelog.materializer.fleet import MemberState
from statelog.materializer.statistics import MaterializerStatistics
from statelog.operate import export_metrics
from statelog.operate.health import Health, HealthServer, LogHealth, health_of, health_of_all, health_of_worker
from statelog.operate.listening import Listening, listening_at
from statelog.tables.group.schedule import PartitionStatistics
from statelog.testing import Twin
from statelog.testing.broker import free_port
from tests.support.rigs.daemon import DaemonBench
from tests.support.services.http import asked

_WELL = MaterializerStatistics()
_SETTINGS = MaterializerSettings()


@pytest.mark.parametrize(
    ("now", "not_live", "not_ready"),
    [
        (_WELL, "", ()),
        (replace(_WELL, late_s=899.0, silent_s=899.0, age_s=3599.0), "", ()),
        (replace(_WELL, late_s=900.0), "the loop hangs: it is 15 min 0 s late", ()),
        (replace(_WELL, silent_s=900.0), "the round hangs: its latest step began 15 min 0 s ago", ()),
        (
            replace(_WELL, failures_in_a_row=2, error="no answer [BrokerUnavailable]"),
            "",
            ("2 rounds in a row failed, the last one with: no answer [BrokerUnavailable]",),
        ),
        (replace(_WELL, hanging=1), "", ("1 abandoned round still hanging",)),
        (replace(_WELL, age_s=3600.0), "", ("the oldest commit in no snapshot is 1 h 0 min old",)),
    ],
)
def test_what_speaks_against_it(now: MaterializerStatistics, not_live: str, not_ready: tuple[str, ...]) -> None:
    """A hanging daemon is not live. A failing one is not ready and says why."""
    assert health_of("visits", now, _SETTINGS) == LogHealth(log="visits", not_live=not_live, not_ready=not_ready)


def test_one_log_of_many_that_hangs_is_not_ready() -> None:
    """The process is live while one log works and its loop runs. A hanging log makes it not ready."""
    hangs, well = LogHealth(log="a", not_live="it hangs"), LogHealth(log="b")
    assert Health(logs=[hangs, well]).why_not_live() == []
    assert Health(logs=[hangs, well]).why_not_ready() == ["a: it hangs"]
    assert Health(logs=[hangs]).why_not_live() == ["a: it hangs"]
    assert Health(logs=[well], not_live="the loop hangs").why_not_live() == ["the loop hangs"]
    assert Health(logs=[well], not_live="the loop hangs").why_not_ready() == ["the loop hangs"]


def test_logs_that_all_hang_are_told_also_where_none_can_be_looked_for() -> None:
    """A hanging store both hangs all logs and hides the root. Both are reported, so that the process is restarted."""
    state = MemberState(log="a", settings=_SETTINGS, opening_s=_SETTINGS.hang_s)
    found = health_of_all([state], late_s=0.0, hang_s=_SETTINGS.hang_s, problem="the store is away")
    assert found.why_not_live() == ["a: it has been opening for 15 min 0 s"]
    assert found.why_not_ready() == ["all logs: the store is away", *found.why_not_live()]


def test_a_store_that_hangs_makes_a_daemon_that_is_not_live(tmp_path: Path) -> None:
    """A store that hangs makes the daemon not live although its loop runs. It is live again once the store answers."""
    bench = DaemonBench(tmp_path, hang_s=30.0)
    bench.twin.write({b"a": b"1"})
    seen: list[tuple[float, str]] = []

    def look() -> None:
        seen.append((bench.now_s, health_of("twin", bench.daemon.statistics(), _settings(bench)).not_live[:15]))

    bench.hold()
    for time_s in (10, 29, 31, 90):
        bench.at(time_s, look)
    bench.at(95, bench.go_on, bench.release, look)
    bench.run(until_s=99)
    assert seen == [(10, ""), (29, ""), (31, "the round hangs"), (90, "the round hangs"), (95, "")]
    assert health_of("twin", bench.daemon.statistics(), _settings(bench)) == LogHealth(log="twin")


def test_a_loop_that_does_not_turn_is_not_live(tmp_path: Path) -> None:
    """A loop that misses its announced time is not live. Before the start and after the end none is announced."""
    bench = DaemonBench(tmp_path, hang_s=30.0)
    bench.now_s = 1000.0
    assert bench.daemon.statistics().late_s == 0
    bench.daemon.begin(5.0)
    wait_s = bench.daemon.turn()
    assert wait_s is not None
    assert wait_s <= 5.0
    bench.now_s += wait_s + 31
    assert health_of("twin", bench.daemon.statistics(), _settings(bench)).not_live.startswith("the loop hangs")
    bench.daemon.turn()
    assert bench.daemon.statistics().late_s == 0
    bench.daemon.end()
    bench.now_s += 1000
    assert bench.daemon.statistics().late_s == 0


def _settings(bench: DaemonBench) -> MaterializerSettings:
    return replace(_SETTINGS, hang_s=30.0)


# ---- a user's program


@pytest.mark.parametrize(
    ("silent_s", "tables", "health"),
    [
        (299.0, [True, True], LogHealth(log="words")),
        (0.0, [], LogHealth(log="words")),
        (300.0, [True], LogHealth(log="words", not_live="the loop hangs: it last polled 5 min 0 s ago")),
        (
            0.0,
            [False, True, False],
            LogHealth(log="words", not_ready=("no open table yet for 2 partitions: 0, 2",)),
        ),
    ],
)
def test_what_speaks_against_a_worker(silent_s: float, tables: list[bool], health: LogHealth) -> None:
    """A worker whose loop does not poll is not live. One without a table for each assigned partition is not ready."""
    found = [PartitionStatistics(number, commit_age_s=1.0 if one else None) for number, one in enumerate(tables)]
    assert health_of_worker("words", silent_s, found, 300.0) == health


def test_one_call_serves_a_worker_to_kubelet_and_prometheus() -> None:
    """A worker is ready once its table is open, and live unless its loop hangs. Its metrics are served as well."""
    twin, port, probes = Twin(), free_port(), free_port()
    twin.send("words", b"a", b"b")
    ends = ExitStack()
    ends.callback(export_metrics(CollectorRegistry(), listen=f"127.0.0.1:{port}", probes=f"0.0.0.0:{probes}"))

    def ask(page: str) -> tuple[int, str, int, str]:
        return *asked(port, page), *asked(probes, page)

    metrics, seen = "", list[tuple[int, str, int, str]]()
    with ends:
        assert ask("/readyz") == (503, "all logs: nothing is open yet\n", 503, "not ready\n")
        assert ask("/livez") == (200, "live\n", 200, "live\n")
        with twin.environment(), statelog.worker("counts", twin.where(), topic="words", create=True) as worker:
            twin.when_idle = worker.stop
            for message, table in worker:
                table[message.value() or b""] = b"1"
                worker.commit()
                seen += [ask("/readyz"), ask("/livez")]
                twin.clock.advance(301)
                seen.append(ask("/livez"))
                metrics = asked(port, "/metrics")[1]
            hangs = "counts: the loop hangs: it last polled 5 min 1 s ago\n"
            well = [(200, "ready\n", 200, "ready\n"), (200, "live\n", 200, "live\n")]
            assert seen == [*well, (503, hangs, 503, "not live\n")] * 2
            for name in ("worker_partitions", "worker_tables", "worker_lag_records", "worker_commit_age_seconds"):
                assert f'statelog_{name}{{log="counts"' in metrics
            assert asked(probes, "/metrics") == (404, "there are /livez, /readyz\n")
        assert ask("/readyz")[0] == 503
    assert asked(port, "/livez")[0] == 0


def test_a_table_is_something_that_is_open() -> None:
    """A program without a worker is ready while its tables, or other given objects, are open."""
    twin, port = Twin(), free_port()
    with ExitStack() as ends:
        ends.callback(export_metrics(CollectorRegistry(), listen=f"127.0.0.1:{port}"))
        with twin.environment(), statelog.table("visits", twin.where(), create=True):
            assert asked(port, "/readyz") == (200, "ready\n")
        assert asked(port, "/readyz")[0] == 503


@pytest.mark.parametrize("given", [{"listen": 9400}, {"probes": 9401}, {"hang_s": 0.0}, {"hang_s": "5min"}])
def test_what_says_nothing_is_refused(given: dict[str, Any]) -> None:
    """A port without a host is refused, and so is a limit that every delay exceeds."""
    with pytest.raises(ConfigError, match=r"an address to listen on is of type int|hang_s is"):
        export_metrics(CollectorRegistry(), **given)


def test_metrics_are_in_the_clear_only_where_the_network_is_said_to_be_guarded() -> None:
    """Metrics beyond this machine need a certificate and a token, unless the caller names what guards the network."""
    with pytest.raises(ConfigError, match="other machines can reach"):
        export_metrics(CollectorRegistry(), listen="0.0.0.0:0")
    export_metrics(CollectorRegistry(), listen="0.0.0.0:0", guarded_network=True)()


# ---- the server


@contextmanager
def _served(health: Health, listening: Listening | None = None) -> Generator[HealthServer]:
    place = listening or listening_at("127.0.0.1:0")
    with HealthServer(place, lambda: health, CollectorRegistry()) as server:
        yield server


def _ask(server: HealthServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_it_says_whether_and_why_not() -> None:
    """The server answers with a line for each reason, for all logs or for one."""
    health = Health(logs=[LogHealth(log="a", not_ready=("it fails", "it is old")), LogHealth(log="b")])
    with _served(health) as server:
        assert _ask(server, "/livez") == (200, "live\n")
        assert _ask(server, "/readyz") == (503, "a: it fails\na: it is old\n")
        assert _ask(server, "/readyz?log=b") == (200, "ready\n")
        assert _ask(server, "/readyz?log=typo") == (503, "typo: it is not open here\n")
        assert _ask(server, "/livez?log=typo") == (200, "live\n")
        assert _ask(server, "/readyz", "HEAD") == (503, "")
        assert _ask(server, "/metrics")[0] == 200
        assert _ask(server, "/")[0] == 404
        assert _ask(server, "/livez", "POST")[0] == 501
    with _served(Health(not_live="it hangs")) as server:
        assert _ask(server, "/livez") == (503, "it hangs\n")


def test_who_holds_connections_keeps_nobody_from_asking() -> None:
    """Silent connections are closed after some seconds, and other clients are answered meanwhile or soon after."""
    with _served(Health()) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        silent = [http.client.HTTPConnection(host, int(port), timeout=30) for _ in range(4)]
        for one in silent:
            one.connect()
        assert _ask(server, "/livez") == (200, "live\n")
        for one in silent:
            one.close()


def test_who_speaks_slowly_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow client is disconnected, however often it sends a byte. A few of them would otherwise block all others."""
    monkeypatch.setattr("statelog.operate.health._REQUEST_S", 0.5)
    with _served(Health()) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        with closing(socket.create_connection((host, int(port)), timeout=30)) as slow:
            began_s = time.monotonic()
            with pytest.raises(OSError):
                while time.monotonic() < began_s + 30:
                    slow.sendall(b"G")
                    time.sleep(0.1)
            assert time.monotonic() - began_s < 10


def test_a_token_and_tls_for_others(tmp_path: Path) -> None:
    """Beyond this machine, the server answers neither without TLS nor without the token."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    with pytest.raises(ConfigError, match="other machines can reach"):
        listening_at("0.0.0.0:0")
    place = listening_at("0.0.0.0:0", certificate=tmp_path / "cert.pem", key=tmp_path / "cert.pem", token_file=token)
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    with _served(Health(), place) as server:
        port = int(server.url.rpartition(":")[2])
        for headers, status in [({}, 401), ({"Authorization": f"Bearer {token.read_text().strip()}"}, 200)]:
            with closing(http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)) as connection:
                connection.request("GET", "/livez", headers=headers)
                assert connection.getresponse().status == status
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as plain, pytest.raises(OSError):
            plain.request("GET", "/livez")
            plain.getresponse()


def test_an_address_in_use_is_told() -> None:
    """An address in use is reported as such, with what to do."""
    with _served(Health()) as server:
        taken = listening_at(server.url.removeprefix("http://"))
        with pytest.raises(ConfigError, match="the address cannot be bound"):
            HealthServer(taken, Health, CollectorRegistry())
    assert not [one for one in threading.enumerate() if one.name == "statelog-health"]


def test_threads_that_cannot_begin_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for which no thread could start occupy no room. The server answers once threads are available."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with _served(Health()) as server:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(20):
                with pytest.raises(OSError):
                    _ask(server, "/livez")
        assert _ask(server, "/livez") == (200, "live\n")
