"""Logins by tokens, on a broker that takes one issuer's and grants nothing by itself: by every client of ours.

They come by a function and by settings alone; tokens expire during work, and some clients are refused.
"""

import logging
import os
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest

import statelog
from statelog.errors import BrokerUnavailable, ConfigError, StatelogError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.native import make_client
from statelog.kafka.port import TopicSpec
from statelog.log import Log, LogOptions, Where
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer import Writer
from statelog.recovery import recover
from tests.support.canary import CANARY, canary_in, files_with_canary
from tests.support.rigs.log import UNSAFE, where_at
from tests.support.services.secure_broker import SecureBroker, group, publishing, rolling_up, topic, writing
from tests.support.services.tokens import Issuer, TokenServer, token_server

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

_LOG, _COUNTS, _INPUT, _USER = "by-tokens", "by-tokens-counts", "by-tokens-input", "robot"
_LASTING = "by-tokens-lasting"
_SECRET = f"{CANARY}client"
_OIDC = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": _USER}
_WITHOUT_PATIENCE_S = 60.0
"""A refused client learns so long before the request time-out, here of minutes, is over."""
_SHORT_S = 20.0
"""A token's lifetime. With a shorter one the client presents an old token again, too soon for a broker's check."""


class Place(NamedTuple):
    """The place of the log, and its issuer of tokens."""

    broker: SecureBroker
    server: TokenServer
    root: Path

    def where(self, token: Callable[[], tuple[str, float]] | str | None = None, **settings: str) -> Where:
        """Return its place for a login by a function, or by these settings, `_` for `.`."""
        given = self.broker.token_client(**{"socket_timeout_ms": "280000", **settings})
        return where_at(given, self.root, kafka_token=token)

    def token(self) -> tuple[str, float]:
        """Return a token for an hour."""
        return self.broker.issuer.token(_USER, 3600)

    def oidc(self, **settings: str) -> Where:
        """Return its place for a login by a client id and a secret."""
        named = {f"sasl_oauthbearer_{name}": value for name, value in settings.items()}
        url, method = f"{self.server.url}/token", {name.replace(".", "_"): value for name, value in _OIDC.items()}
        return self.where(None, sasl_oauthbearer_token_endpoint_url=url, **method, **named)


@pytest.fixture(scope="module")
def place(secure_node: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield logs of one principal that logs in by tokens alone; it has all rights on them that any role needs."""
    broker = secure_node.serve({"other": f"{CANARY}other"})
    rights = [*writing(_LOG), *rolling_up(_LOG), *publishing(_LOG), *writing(_COUNTS), *group(_COUNTS, "READ")]
    rights += writing(_LASTING)
    topics = (*(f"{log}{end}" for log in (_LOG, _LASTING, _COUNTS) for end in ("", ".ledger")), _INPUT)
    made = [right for name in topics for right in topic(name, "CREATE")]
    broker.grant(_USER, [*rights, *made, *topic(_INPUT, "READ", "DESCRIBE_CONFIGS")])
    with token_server(broker.issuer, {_USER: _SECRET}) as server:
        found = Place(broker, server, tmp_path_factory.mktemp("tokens"))
        for log in (_LOG, _LASTING):
            Log.create(log, found.where(found.token), LogOptions(partitions=1, key_type="string")).close()
        yield found


@pytest.fixture(scope="module")
def lasting(place: Place) -> Iterator[Future[tuple[int, int]]]:
    """Commit and follow for longer than a token lasts, concurrently with the next tests: it is slow and idle.

    The future gives how often a token was fetched, at first and in the end.
    """
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_last, place)


def _last(place: Place) -> tuple[int, int]:
    given: list[float] = []

    def short() -> tuple[str, float]:
        given.append(time.monotonic())
        return place.broker.issuer.token(_USER, _SHORT_S)

    where, began_s = place.where(short), time.monotonic()
    with (
        statelog.open(_LASTING, where) as log,
        Writer(log, "writer") as writer,
        recover(log).follow() as stream,
    ):
        at_first, checkpoint, portions = len(given), 0, iter(stream)
        while time.monotonic() - began_s < 2.2 * _SHORT_S:
            checkpoint += 1
            writer.put("k", b"%d" % checkpoint)
            writer.commit(checkpoint_id=checkpoint)
            while next(portions).cursor.position < writer.position:
                pass
            time.sleep(0.2)
    return at_first, len(given)


def _append(where: Where, key: str) -> None:
    with statelog.open(_LOG, where) as log, Writer(log, "writer") as writer:
        last = writer.last_commit.checkpoint.id if writer.last_commit else 0
        writer.put(key, b"1")
        writer.commit(checkpoint_id=last + 1)


def _state(where: Where) -> Mapping[object, object]:
    with statelog.open(_LOG, where) as log:
        return recover(log).to_dict()


@pytest.mark.usefixtures("lasting")
def test_every_client_gets_tokens(place: Place, tmp_path: Path) -> None:
    """Admin, producer, reader and group member each get tokens: for a round, a recovery, a worker."""
    where = place.where(place.token)
    _append(where, "k")
    with statelog.open(_LOG, where) as log:
        assert isinstance(run_round(log, MaterializerSettings(scratch=tmp_path)), CompletedRound)
    assert _state(where)["k"] == b"1"
    with closing(ConfluentKafka(where.client_config())) as kafka:
        kafka.create_topic(TopicSpec(name=_INPUT, partitions=1, replication_factor=1))
    _feed(place, 3)
    with statelog.worker(_COUNTS, where, topic=_INPUT, create=True) as worker:
        for number, (_, table) in enumerate(worker, 1):
            table[b"%d" % number] = b"1"
            if number == 3:
                worker.stop()
            worker.commit_every(0.0)
    with statelog.open(_COUNTS, where) as log:
        assert {key: value for (_, key), value in recover(log).to_dict().items()} == dict.fromkeys(
            (b"1", b"2", b"3"), b"1"
        )


def _feed(place: Place, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": place.broker.plain})
    for _ in range(count):
        producer.produce(_INPUT, b"x", partition=0)
    assert producer.flush(60) == 0


def test_a_client_asks_again_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A client asks again ten seconds after any failure, and reports each time the error."""
    given: list[float] = []

    def failing() -> tuple[str, float]:
        given.append(time.monotonic())
        if len(given) == 2:
            raise OSError("the issuer is away")
        return f"{CANARY}x", time.time() + 3.0

    config, errors = client_config({"bootstrap.servers": "127.0.0.1:1"}, failing), deque[confluent_kafka.KafkaError]()
    with caplog.at_level(logging.WARNING, "statelog.kafka"):
        client = make_client(confluent_kafka.Producer, "a producer", dict(config.settings), config, errors)
        while len(given) < 4:
            client.poll(0.1)
        client.close()
    assert [one for one in caplog.messages if "the token function failed: OSError: the issuer is away" in one]
    assert CANARY not in caplog.text
    assert given[2] - given[1] > 5.0


@pytest.mark.parametrize("is_jwt", [True, False])
def test_a_token_that_the_broker_does_not_take_is_a_config_error_at_once(place: Place, is_jwt: bool) -> None:
    """A token of an unknown issuer, or a malformed one, is a ConfigError at once, without a time-out."""
    stranger = Issuer()

    def other() -> tuple[str, float]:
        return stranger.token(_USER, 3600.0) if is_jwt else (f"{CANARY}.x.y", time.time() + 60)

    _refused(place.where(other), "Authentication failed|authentication error|invalid")


def _refused(where: Where, told: str, error: type[StatelogError] = ConfigError) -> None:
    began_s = time.monotonic()
    with pytest.raises(error, match=told) as caught:
        statelog.open(_LOG, where)
    assert time.monotonic() - began_s < _WITHOUT_PATIENCE_S
    assert CANARY not in "".join(traceback.format_exception(caught.value))


# ---- by settings alone


def test_oidc_by_settings_alone(place: Place) -> None:
    """A client id and its secret are enough for a token of an endpoint."""
    where = place.oidc(client_secret=_SECRET, scope="kafka")
    _append(where, "oidc")
    assert _state(where)["oidc"] == b"1"
    assert ("/token", "kafka") in {(path, form.get("scope", "")) for path, form in place.server.asked}


def test_an_issuer_that_refuses_is_a_config_error_at_once(place: Place) -> None:
    """A wrong secret is a ConfigError at once, with the endpoint's own words, and not the secret."""
    _refused(place.oidc(client_secret=f"{CANARY}wrong"), "invalid_client|who is it")


def test_an_issuer_that_is_away_is_unavailable(place: Place) -> None:
    """An unavailable issuer is Unavailable: the same call may succeed later, and a daemon bears it."""
    where = place.where(None, **{name.replace(".", "_"): value for name, value in _OIDC.items()},
        sasl_oauthbearer_client_secret=_SECRET, sasl_oauthbearer_token_endpoint_url="http://127.0.0.1:1/token",
        socket_timeout_ms="5000")  # fmt: skip
    _refused(where, "127.0.0.1 port 1|connect", BrokerUnavailable)


def test_azures_metadata_service_by_settings_alone(place: Place) -> None:
    """A managed identity of Azure gets a token by settings alone, from a service at the test's own address."""
    azure = {"metadata_authentication_type": "azure_imds", "config": f"query=api-version=1&client_id={_USER}"}
    named = {f"sasl_oauthbearer_{name}": value for name, value in azure.items()}
    url = {"sasl_oauthbearer_method": "oidc", "sasl_oauthbearer_token_endpoint_url": f"{place.server.url}/imds"}
    where = place.where(None, **url, **named)
    _append(where, "azure")
    assert _state(where)["azure"] == b"1"
    assert ("/imds", {"api-version": "1", "client_id": _USER}) in place.server.asked


def test_awss_token_service_by_settings_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of AWS STS, as Confluent Cloud takes it, comes by settings alone, from a service at a test address."""
    pytest.importorskip("boto3", reason="tokens of AWS STS are not tested in this run: boto3 is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"{CANARY}aws")
    aws = {"method": "oidc", "metadata_authentication_type": "aws_iam"}
    aws["config"] = f"region=eu-central-1,audience=kafka,sts_endpoint={place.server.url}"
    where = place.where(None, **{f"sasl_oauthbearer_{name}": value for name, value in aws.items()})
    _append(where, "aws")
    assert _state(where)["aws"] == b"1"
    assert "GetWebIdentityToken" in {form.get("Action") for _, form in place.server.asked}


# ---- by commands


def test_commands_take_a_functions_name(place: Place, tmp_path: Path) -> None:
    """Commands take a function's name from a file, the environment, and an option, for all commands of a log."""
    module = place.server.module(tmp_path, _USER)
    file, rows = tmp_path / "named.toml", tmp_path / "rows.jsonl"
    settings = {**place.broker.token_client(), "token": f"{module}:{_USER}"}
    lines = "\n".join(f'"{name}" = "{value}"' for name, value in settings.items())
    file.write_text(f"[kafka]\n{lines}\n", encoding="utf-8")
    rows.write_text('{"key": "by-command", "value": "1"}\n', encoding="utf-8")
    assert "by-command" not in _run(place, tmp_path, {}, "append", _LOG, rows, "--config", file)
    asked = len(place.server.asked)
    variables = {f"STATELOG_KAFKA__{name.upper().replace('.', '_')}": value for name, value in settings.items()}
    _run(place, tmp_path, variables, "materialize", _LOG, "--once")
    options = [text for name, value in settings.items() for text in ("--kafka", f"{name}={value}")]
    assert "by-command" in _run(place, tmp_path, {}, "recover", _LOG, *options)
    assert len(place.server.asked) >= asked + 4, "the function was not asked by each client"
    wrong = {**variables, "STATELOG_KAFKA__TOKEN": f"{module}:nobody"}
    assert f"{module}:nobody" in _run(place, tmp_path, wrong, "describe", _LOG, code=2)
    assert files_with_canary(tmp_path) == []


def _run(place: Place, directory: Path, variables: Mapping[str, str], *args: object, code: int = 0) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("STATELOG_")},
        "STATELOG_ROOT": str(place.root),
        "STATELOG_ALLOW_UNSAFE": ",".join(UNSAFE),
        "XDG_CONFIG_HOME": str(directory),
        "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)]),
        **variables,
    }
    command = [sys.executable, "-c", "from statelog.cli import main; main()", *map(str, args)]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, timeout=300, check=False)
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == code, printed
    assert not canary_in(printed.encode())
    return printed


# ---- the concurrent work


def test_a_connection_goes_on_with_new_tokens(lasting: "Future[tuple[int, int]]") -> None:
    """A connection goes on with new tokens beyond a token's, and the broker's, limit: every commit is confirmed.

    A follower reads each. The broker cuts off a client without a new token.
    """
    at_first, in_the_end = lasting.result()
    assert in_the_end >= 2 * at_first
