"""Settings of the Kafka clients are refused or completed by rule, and no secret is ever shown."""

import pickle
import traceback
from contextlib import closing

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.errors import ConfigError, StatelogError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import (
    admin_properties,
    check_password_in_clear,
    client_config,
    consumer_properties,
    output_properties,
    producer_properties,
)
from statelog.secrets import (
    mask_text,
)

CANARY = "canary-7f3a-secret"
SERVERS = {"bootstrap.servers": "localhost:1"}

REFUSED = [
    ("plugin.library.paths", "x.so"),
    ("sasl.kerberos.kinit.cmd", "rm -rf /"),
    ("ssl.engine.location", "x.so"),
    ("ssl.providers", "default,/tmp/x.so"),
    ("ssl.providers", "..\\x.dll"),
    ("test.mock.num.brokers", "3"),
    ("enable.ssl.certificate.verification", "false"),
    ("enable.ssl.certificate.verification", " False "),
    ("enable.ssl.certificate.verification", "0"),
    ("ssl.endpoint.identification.algorithm", "none"),
    ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
    ("debug", "all"),
    ("log.queue", "true"),
    ("log_level", "7"),
    ("acks", "1"),
    ("request.required.acks", "1"),
    ("enable.idempotence", "false"),
    ("max.in.flight.requests.per.connection", "1000"),
    ("retries", "0"),
    ("auto.offset.reset", "earliest"),
    ("isolation.level", "read_committed"),
    ("check.crcs", "false"),
    ("enable.auto.commit", "true"),
    ("enable.auto.offset.store", "true"),
    ("enable.partition.eof", "false"),
    ("partitioner", "murmur2"),
    ("transactional.id", "t"),
    ("group.id", "g"),
    ("group.protocol", "consumer"),
    ("message.max.bytes", "1000"),
    ("enable.metrics.push", "true"),
    ("error_cb", "x"),
    ("on_delivery", "x"),
    ("metadata.broker.list", "elsewhere:9092"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_unsafe_settings_are_refused_by_name_with_a_reason(name: str, value: str) -> None:
    """A setting that weakens a guarantee or runs code is a ConfigError that names it and says why."""
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as raised:
        client_config({**SERVERS, name: value})
    assert "refused: " in raised.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "SASL_SSL"),
        ("sasl.username", "me"),
        ("ssl.ca.location", "/ca.pem"),
        ("ssl.providers", "default,legacy"),
        ("ssl.endpoint.identification.algorithm", "https"),
        ("enable.ssl.certificate.verification", "true"),
        ("client.id", "billing"),
        ("compression.type", "zstd"),
        ("linger.ms", "5"),
        ("message.timeout.ms", "120000"),
        ("socket.keepalive.enable", "true"),
        ("fetch.message.max.bytes", "1048576"),
    ],
)
def test_harmless_settings_pass_through(name: str, value: str) -> None:
    """Security and tuning settings reach the clients that understand them, unchanged."""
    config = client_config({**SERVERS, name: value})
    kinds = [producer_properties(config), consumer_properties(config), admin_properties(config)]
    assert any(properties.get(name) == value for properties in kinds)


def test_the_guarantees_are_explicit() -> None:
    """No guarantee rests on a default of the client."""
    config = client_config(SERVERS)
    producer, consumer = producer_properties(config), consumer_properties(config)
    assert (producer["enable.idempotence"], producer["acks"], producer["linger.ms"]) == ("true", "all", "0")
    assert producer["message.max.bytes"] == str(16 << 20)
    assert consumer["auto.offset.reset"] == "error"
    assert (consumer["check.crcs"], consumer["enable.partition.eof"]) == ("true", "true")
    assert consumer["isolation.level"] == "read_uncommitted"
    assert (consumer["enable.auto.commit"], consumer["enable.auto.offset.store"]) == ("false", "false")
    assert consumer["group.id"] == "statelog-reader"


def test_a_sparing_consumer_fetches_little_unless_a_user_says_how_much() -> None:
    """A sparing consumer fetches little unless a user sets how much. Its other settings are those of any consumer."""
    given = client_config({**SERVERS, "fetch.message.max.bytes": "1048576"})
    for config, size_bytes in ((client_config(SERVERS), 64 << 10), (given, 1 << 20)):
        sparing = consumer_properties(config, is_sparing=True)
        assert sparing == {**consumer_properties(config), "fetch.message.max.bytes": str(size_bytes)}


def test_each_client_gets_only_what_it_understands() -> None:
    """Producer settings reach only producers, consumer settings only consumers, and neither reach the admin client."""
    config = client_config({**SERVERS, "compression.type": "zstd", "fetch.wait.max.ms": "3"})
    assert "compression.type" not in consumer_properties(config)
    assert "fetch.wait.max.ms" not in producer_properties(config)
    assert not {"compression.type", "fetch.wait.max.ms", "acks"} & admin_properties(config).keys()


@pytest.mark.parametrize("servers", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": "  "}])
def test_bootstrap_servers_are_needed(servers: dict[str, str]) -> None:
    """Without a broker to ask there is no client."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        client_config(servers)


@pytest.mark.parametrize("value", ["0", "999", "900001", "-1", "soon", "1e4"])
@pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms"])
def test_a_delivery_timeout_is_finite_and_sensible(name: str, value: str) -> None:
    """A delivery timeout of zero is refused: a record would never be resolved."""
    with pytest.raises(ConfigError, match="milliseconds"):
        client_config({**SERVERS, name: value})


def test_the_delivery_timeout_exceeds_the_clients_own() -> None:
    """The caller waits longer than the client's delivery timeout, under either name of the setting."""
    assert ConfluentKafka(client_config(SERVERS)).producer().delivery_timeout_s > 30
    assert client_config(SERVERS).request_timeout_s == 10
    assert client_config({**SERVERS, "socket.timeout.ms": "1500"}).request_timeout_s == 1.5
    config = client_config({**SERVERS, "delivery.timeout.ms": "60000"})
    assert ConfluentKafka(config).producer().delivery_timeout_s > 60
    assert producer_properties(config)["message.timeout.ms"] == "60000"


@pytest.mark.parametrize(("given_ms", "taken_ms"), [("1500", "1500"), ("60001", "60000"), ("280000", "60000")])
def test_a_request_never_outlasts_a_transaction(given_ms: str, taken_ms: str) -> None:
    """Patience with brokers beyond a transaction's time is cut there: the client would refuse the settings."""
    config = client_config({**SERVERS, "socket.timeout.ms": given_ms})
    assert output_properties(config, "t")["socket.timeout.ms"] == taken_ms
    assert output_properties(config, "")["socket.timeout.ms"] == given_ms
    confluent_kafka.Producer(output_properties(config, "t"))


def test_a_setting_that_librdkafka_does_not_know_is_a_config_error() -> None:
    """A misspelt setting is named when the first client is made."""
    config = client_config({**SERVERS, "sasl.pasword": CANARY})
    for use in (
        ConfluentKafka(config).cluster_id,
        lambda: ConfluentKafka(config).producer().send("t", 0, b"x", lambda _: None),
    ):
        with pytest.raises(ConfigError, match=r"sasl\.pasword") as raised:
            use()
        assert CANARY not in _everything(raised.value)


@pytest.mark.parametrize(
    "name",
    ["sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret",
     "sasl.jaas.config", "ssl.certificate.pem", "sasl.oauthbearer.config"],
)  # fmt: skip
def test_a_secret_is_never_shown(name: str) -> None:
    """No repr and no error contains the value of a secret setting."""
    config = client_config({**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", name: CANARY})
    shown = [repr(config), str(config), repr(config.masked()), repr(ConfluentKafka(config))]
    shown.append(config.redact(f"{name}={CANARY} is wrong"))
    with pytest.raises(StatelogError) as raised:
        ConfluentKafka(config, request_timeout_s=0.2).cluster_id()
    shown.append(_everything(raised.value))
    with pytest.raises(ConfigError) as refused:
        client_config({**config.settings, "acks": CANARY})
    shown.append(_everything(refused.value))
    assert not [text for text in shown if CANARY in text]


def test_of_a_secret_that_begins_as_another_does_nothing_is_shown() -> None:
    """A secret that begins with another secret is masked as a whole, in either order of the settings."""
    for names in (("sasl.password", "ssl.key.password"), ("ssl.key.password", "sasl.password")):
        config = client_config({**SERVERS, names[0]: "begins", names[1]: "begins-and-ends"})
        assert config.redact("wrong: begins-and-ends, begins") == "wrong: ***, ***"


def test_credentials_in_addresses_are_never_shown() -> None:
    """A password in an address is masked, and the host stays readable."""
    config = client_config({"bootstrap.servers": f"SASL_SSL://me:{CANARY}@kafka.example:9092"})
    with closing(ConfluentKafka(config, request_timeout_s=0.2)) as kafka, pytest.raises(StatelogError) as raised:
        kafka.cluster_id()
    assert CANARY not in repr(config) + _everything(raised.value)
    assert "kafka.example:9092" in repr(config)


@given(st.text(alphabet="ab1.-", min_size=1), st.text(alphabet="xyz@/!:", min_size=1))
def test_masking_removes_any_password(user: str, ending: str) -> None:
    """A password is masked as a whole, whatever signs it holds."""
    text = mask_text(f"see https://{user}:{CANARY}{ending}@host.example/path")
    assert CANARY not in text
    assert "host.example/path" in text


def _everything(error: StatelogError) -> str:
    """Return all that a log or a report could show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.facts) + repr(pickle.dumps(error))


@pytest.mark.parametrize("name", ["sasl.kerberos.principal", "sasl.kerberos.keytab"])
def test_what_the_client_puts_into_a_shell_has_no_character_of_a_shell(name: str) -> None:
    """Shell characters are refused in settings that the client's default command for Kerberos expands."""
    client_config({**SERVERS, name: "statelog/host.example@EXAMPLE.ORG"})
    with pytest.raises(ConfigError, match="shell"):
        client_config({**SERVERS, name: "x; touch /tmp/owned"})


@pytest.mark.parametrize(
    ("servers", "is_refused"),
    [
        ("127.0.0.1:9092", False),
        ("localhost:9092,[::1]:9092", False),
        ("broker-1:9092", True),
        ("127.0.0.1:1,b:2", True),
    ],
)
def test_no_password_goes_over_a_network_as_it_is(servers: str, is_refused: bool) -> None:
    """PLAIN without TLS is allowed on loopback only. SCRAM and TLS are allowed everywhere."""
    plain = {"bootstrap.servers": servers, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    check_password_in_clear(client_config({**plain, "sasl.mechanism": "SCRAM-SHA-256"}))
    check_password_in_clear(client_config({**plain, "security.protocol": "SASL_SSL"}))
    if is_refused:
        with pytest.raises(ConfigError, match="as it is"):
            check_password_in_clear(client_config(plain))
    else:
        check_password_in_clear(client_config(plain))
