"""Tokens for Kafka: their functions by name or value, errors of a failed function, and each client's settings."""

import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import confluent_kafka
import pytest

from statelog.errors import BrokerUnavailable, ConfigError, NotFound, StatelogError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import check_password_in_clear, client_config
from statelog.kafka.errors import refusal_of
from statelog.kafka.group import group_settings
from statelog.kafka.native import last_error, make_client
from statelog.kafka.token import TokenSource, token_by_name
from statelog.log import Where
from statelog.testing.kafka import MemoryKafka

CANARY = "canary-7f3a-token"
SERVERS = {"bootstrap.servers": "localhost:1"}
HERE = f"{__name__}:given"


def given() -> tuple[str, float]:
    """Return a token for an hour."""
    return CANARY, time.time() + 3600


def _source(token: Any, errors: "deque[confluent_kafka.KafkaError] | None" = None) -> TokenSource:
    return TokenSource(token, deque() if errors is None else errors, lambda text: text.replace(CANARY, "***"))


def _raising(error: Exception) -> Callable[[], tuple[str, float]]:
    def raises() -> tuple[str, float]:
        raise error

    return raises


# ---- by name, or as it is


def test_a_function_that_others_can_import_is_its_name() -> None:
    """An importable function is its name, so equal ones given in different ways are equal, hash alike, and pickle."""
    where = Where(SERVERS, "/logs", kafka_token=given)
    assert where.kafka_token == HERE
    assert where == Where(SERVERS, "/logs", kafka_token=HERE) == Where({**SERVERS, "token": HERE}, "/logs")
    assert pickle.loads(pickle.dumps(where)) == where
    assert len({where, Where(SERVERS, "/logs"), pickle.loads(pickle.dumps(where))}) == 2
    assert where.kafka_settings()["token"] == HERE
    assert Where(where.kafka_settings(), "/logs") == where


def test_a_function_without_a_name_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closure, a nested function or a bound method works in its process, and is refused where it would travel."""
    closure = _raising(ValueError())
    monkeypatch.setattr(closure, "__qualname__", "given")
    for function in (closure, partial(given), TestedMethod().token):
        where = Where(SERVERS, "/logs", kafka_token=function)
        assert where.kafka_token is function or where.kafka_token == function
        assert where.client_config().token == function
        for travels in (lambda where=where: pickle.dumps(where), where.kafka_settings):
            with pytest.raises(ConfigError, match="no other process can import") as caught:
                travels()
            assert "package.module:function" in caught.value.hint


class TestedMethod:
    """A class with a method that returns a token."""

    __test__ = False

    def token(self) -> tuple[str, float]:
        """Return a token."""
        return given()


@pytest.mark.parametrize("wrong", ["given", "a.b", "a:b:c", ":x", "x:", "a b:c", "os:system('x')", 3, ("a", 1.0)])
def test_what_names_nothing_is_refused_at_once(wrong: Any) -> None:
    """A malformed name is refused at once, and nothing is imported."""
    with pytest.raises(ConfigError, match="token"):
        token_by_name(wrong)
    with pytest.raises(ConfigError, match="token"):
        Where(SERVERS, "/logs", kafka_token=wrong)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:token", "No module named 'no_such_module'"),
        (f"{__name__}:missing", "is no function"),
        (f"{__name__}:HERE", "is no function"),
    ],
)
def test_a_name_is_looked_up_when_a_client_is_made(name: str, why: str) -> None:
    """A name is looked up when a client is made: the machine that configures it may lack the module."""
    config = Where(SERVERS, "/logs", kafka_token=name).client_config()
    with pytest.raises(ConfigError, match=why) as caught:
        ConfluentKafka(config).cluster_id()
    assert name in str(caught.value)


def test_a_port_logs_in_by_itself() -> None:
    """A token next to a port, or without Kafka, is refused: it would have no effect."""
    for kafka in (MemoryKafka(), None):
        with pytest.raises(ConfigError, match="kafka_token goes with settings"):
            Where(kafka, "/logs", kafka_token=given)


# ---- the settings


def test_a_token_brings_its_mechanism_and_tls() -> None:
    """A token sets mechanism and TLS where the settings set neither."""
    settings = client_config(SERVERS, given).settings
    assert settings == {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    other = {**SERVERS, "security.protocol": "sasl_plaintext", "sasl.mechanisms": "OAUTHBEARER"}
    assert client_config(other, given).settings == other


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.mechanism", "PLAIN"),
        ("sasl.mechanisms", "SCRAM-SHA-512"),
        ("security.protocol", "SSL"),
        ("sasl.oauthbearer.method", "oidc"),
    ],
)
def test_another_way_of_logging_in_contradicts_a_token(name: str, value: str) -> None:
    """Another way of logging in contradicts a token, and is named in the error."""
    with pytest.raises(ConfigError, match="belongs to another login") as caught:
        client_config({**SERVERS, name: value}, given)
    assert caught.value.facts["setting"] == name


def test_two_functions_are_refused() -> None:
    """Two token functions, as an argument and in the settings, are refused."""
    with pytest.raises(ConfigError, match="two token functions"):
        Where({**SERVERS, "token": "other:token"}, "/logs", kafka_token=given)
    Where({**SERVERS, "token": HERE}, "/logs", kafka_token=HERE)


def test_no_token_goes_over_a_network_as_it_is() -> None:
    """A token needs TLS, loopback or the waiver, as a password with PLAIN does."""
    clear = {"bootstrap.servers": "broker-1:9092", "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(ConfigError, match="OAUTHBEARER would send the token as it is"):
        check_password_in_clear(client_config(clear, given))
    check_password_in_clear(client_config({**clear, **SERVERS}, given))
    check_password_in_clear(client_config({"bootstrap.servers": "broker-1:9092"}, given))


def test_a_group_has_the_token_of_the_cluster_that_it_is_in() -> None:
    """A group has the log's token.

    If its settings name other brokers, they never get that token, and may have their own.
    """
    log = client_config(SERVERS, given)
    assert group_settings({}, log.settings, default_group="g", token=log.token).config.token == HERE
    other = {"bootstrap.servers": "other:1"}
    assert group_settings(other, log.settings, default_group="g", token=log.token).config.token is None
    own = {**other, "token": "other:token"}
    assert group_settings(own, log.settings, default_group="g", token=log.token).config.token == "other:token"


# ---- what a client is given


def test_the_first_token_is_asked_for_before_there_is_a_client() -> None:
    """The first token is fetched before the client is made, once.

    The client's first question gets it, and later ones get new ones.
    """
    asked: list[int] = []

    def counted() -> tuple[str, float]:
        asked.append(len(asked))
        return f"t{len(asked)}", time.time() + 3600

    source = _source(counted)
    assert asked == [0]
    assert [source(None)[0], source(None)[0], source("config")[0]] == ["t1", "t2", "t3"]


@pytest.mark.parametrize(
    "token",
    [
        ("t", time.time() + 3600),
        ("t", int(time.time()) + 3600, "me"),
        ("t", time.time() + 3600, "me", {"logicalCluster": "lkc-1"}),
    ],
)
def test_what_confluent_kafka_takes_is_taken(token: Any) -> None:
    """All forms that confluent-kafka accepts are accepted: token and expiry, principal, and extensions."""
    assert _source(lambda: token)(None) == token


NO_TOKENS: list[tuple[Any, str]] = [
    (CANARY, "str, and no such tuple"),
    (None, "NoneType, and no such tuple"),
    ((CANARY,), "tuple, and no such tuple"),
    ([CANARY, time.time() + 3600], "list, and no such tuple"),
    ((CANARY, "soon"), "no such tuple"),
    (("", time.time() + 3600), "an empty token"),
    ((f"{CANARY}\0", time.time() + 3600), "characters that none has"),
    ((CANARY, time.time() - 1), "has expired"),
    ((CANARY, (time.time() + 3600) * 1000), "milliseconds"),
    ((CANARY, float("nan")), "a token that"),
    ((CANARY, time.time() + 3600, None), "a principal"),
    ((CANARY, time.time() + 3600, "me\0"), "a principal"),
    ((CANARY, time.time() + 3600, "me", {"auth": "x"}), "extensions that Kafka does not take"),
    ((CANARY, time.time() + 3600, "me", {"a-b": "x"}), "extensions that Kafka does not take"),
    ((CANARY, time.time() + 3600, "me", {"a": 1}), "extensions that Kafka does not take"),
    ((CANARY, time.time() + 3600, "me", {}, "more"), "extensions that Kafka does not take"),
]


@pytest.mark.parametrize(("token", "why"), NO_TOKENS)
def test_what_is_no_token_is_told_without_a_word_of_it(token: Any, why: str) -> None:
    """A malformed token is an error that does not repeat it.

    The client would drop it silently, and perhaps never ask again.
    """
    with pytest.raises(ConfigError, match=why) as caught:
        _source(lambda: token)
    assert CANARY not in _everything(caught.value)


def test_a_function_that_raises_is_a_typed_error_at_once() -> None:
    """A function that raises is a typed error at once, with its type and message, but without secrets.

    No client is left waiting for a token.
    """
    settings = {**SERVERS, "ssl.key.password": CANARY}
    config = client_config(settings, _raising(TimeoutError(f"no answer to {CANARY}")))
    began_s = time.monotonic()
    with closing(ConfluentKafka(config)) as kafka:
        for use in (
            kafka.cluster_id,
            lambda: kafka.producer().send("t", 0, b"x", lambda _: None),
            lambda: list(kafka.reader("t")._client()),  # type: ignore[call-overload]  # pyright: ignore # it raises
        ):
            with pytest.raises(BrokerUnavailable, match=r"token function failed: TimeoutError: no answer") as caught:
                use()
            assert CANARY not in _everything(caught.value)
    assert time.monotonic() - began_s < 10


def test_an_error_of_ours_comes_out_as_it_is() -> None:
    """Our own error passes through unchanged, so that a function can say that only another setting helps."""
    with pytest.raises(NotFound, match="no such role"):
        _source(_raising(NotFound("no such role")))


def test_a_later_failure_is_told_and_the_client_asks_again(caplog: pytest.LogCaptureFixture) -> None:
    """A later failure is the client's last error, and a line in the log, and the client asks again."""
    answers: list[Any] = [("t", time.time() + 3600), OSError("issuer away"), ("t2", time.time() + 60)]

    def one() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
    source = _source(one, errors)
    source(None)
    with pytest.raises(BrokerUnavailable):
        source(None)
    generic = "Failed to acquire SASL OAUTHBEARER token: OAuth callback raised exception"
    errors.append(confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTHENTICATION, generic))
    config = client_config(SERVERS)
    assert last_error(errors, config) == "_AUTHENTICATION: the token function failed: OSError: issuer away"
    assert caplog.messages == ["the token function failed: OSError: issuer away; the client asks again in 10 s"]
    assert source(None)[0] == "t2"
    assert last_error([], config) == ""
    assert "callback raised" in last_error(list(errors)[-1:], config)


def test_who_was_in_waits_for_a_new_token() -> None:
    """Without a token, the first log-in is refused. Later, or if the issuer does not answer, the client waits."""
    denied = [("_AUTHENTICATION", "Failed to acquire SASL OAUTHBEARER token: invalid_client")]
    away = [("_AUTHENTICATION", "Failed to acquire SASL OAUTHBEARER token: Couldn't connect to server")]
    wrong = [("_AUTHENTICATION", "SASL authentication error: no")]
    assert [refusal_of(one, 0.0) for one in (denied, away, wrong)] == [denied[0], None, wrong[0]]
    assert [refusal_of(one, 0.0, was_in=True) for one in (denied, away, wrong)] == [None, None, wrong[0]]


def test_a_client_that_lacks_what_awss_tokens_need_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing boto3, which confluent-kafka needs for AWS's tokens, is a ConfigError."""
    monkeypatch.setitem(sys.modules, "confluent_kafka._oauthbearer.aws.aws_autowire", None)
    aws = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}
    marker = {"sasl.oauthbearer.metadata.authentication.type": "aws_iam"}
    for more, why in (({}, "region and audience"), ({"sasl.oauthbearer.config": "region=r,audience=a"}, "extra")):
        with pytest.raises(ConfigError, match=why):
            ConfluentKafka(client_config({**SERVERS, **aws, **marker, **more})).cluster_id()


def test_a_signal_ends_the_wait_for_a_client() -> None:
    """A signal handler's exception ends the wait for a client with a token, and passes through."""

    class Stop(Exception): ...

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Stop

    config, errors = client_config(SERVERS, given), deque[confluent_kafka.KafkaError]()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Stop):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            make_client(confluent_kafka.Producer, "a producer", dict(config.settings), config, errors)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_no_token_is_ever_shown(tmp_path: Path) -> None:
    """Only the name of a token's function is ever shown."""
    where = Where(SERVERS, str(tmp_path), kafka_token=given)
    config = where.client_config()
    with closing(ConfluentKafka(config, request_timeout_s=0.2)) as kafka, pytest.raises(StatelogError) as caught:
        kafka.cluster_id()
    shown = repr(where) + repr(config) + repr(kafka) + _everything(caught.value)
    assert HERE in shown
    assert CANARY not in shown
    assert HERE not in repr(replace(where, kafka_token=None))


def _everything(error: StatelogError) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.facts) + repr(pickle.dumps(error))
