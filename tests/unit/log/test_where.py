"""`Where` is a value that connects to nothing, shows no secret, and travels."""

import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import statelog
from statelog.errors import ConfigError, NotFound
from statelog.log import Where
from statelog.recovery import recover_snapshot
from statelog.testing.kafka import MemoryKafka

_KAFKA = {"bootstrap.servers": "kafka:9092", "sasl.password": "hidden"}


def _where() -> Where:
    options = {"secret": "hidden", "client_kwargs": {"token": "hidden", "region": "eu"}}
    return Where(dict(_KAFKA), "s3://user:hidden@b/logs", storage_options=options, allow_unsafe=["cleartext"])


def test_it_is_a_value() -> None:
    """Equal values are one key of a cache, also as copies in other processes. Any difference makes them unequal."""
    where = _where()
    assert where == _where() == pickle.loads(pickle.dumps(where))
    assert len({where, _where()}) == 1
    assert pickle.loads(pickle.dumps(replace(where, replication_factor=1))).replication_factor == 1
    for other in (
        replace(where, kafka={**_KAFKA, "sasl.password": "other"}),
        replace(where, root="s3://b/other"),
        replace(where, storage_options={"secret": "other"}),
        replace(where, allow_unsafe=()),
        replace(where, replication_factor=1),
    ):
        assert other != where


def test_it_does_not_change() -> None:
    """A value does not change, even if the mappings change that it was made of or returns."""
    kafka = {"bootstrap.servers": "kafka:9092"}
    where = Where(kafka, "/logs")
    kafka["bootstrap.servers"] = "elsewhere:1"
    assert where.kafka_settings() == {"bootstrap.servers": "kafka:9092"}
    with pytest.raises(FrozenInstanceError):
        where.root = "/other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue] # as said
    with pytest.raises(TypeError):
        where.storage_options["key"] = "x"  # type: ignore[index]  # pyright: ignore[reportIndexIssue] # as said


def test_secrets_stay_out_of_sight() -> None:
    """Passwords, storage secrets, nested ones too, and credentials in a URL are masked."""
    assert "hidden" not in repr(_where())
    assert "kafka:9092" in repr(_where())


def test_what_is_refused_is_refused_at_once() -> None:
    """A bad setting, an unknown waiver and an empty address are refused at once, with what to write."""
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit"):
        Where({"bootstrap.servers": "kafka:9092", "enable.auto.commit": "true"}, "/logs")
    for root, said in (("ftp://host/logs", "unsupported protocol 'ftp'"), ("hdfs://name/logs", "HDFS' own protocol")):
        with pytest.raises(ConfigError, match=said):
            Where(None, root)
    with pytest.raises(ConfigError, match="allow_unsafe is 'everything'"):
        Where(_KAFKA, "/logs", allow_unsafe=["everything"])
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        Where({}, "/logs")


def test_settings_are_asked_for_where_a_port_does_not_do() -> None:
    """A `Where` with a port, or without Kafka, has no Kafka settings. Without Kafka only snapshots open."""
    for kafka in (None, MemoryKafka()):
        with pytest.raises(ConfigError, match="settings of the Kafka client"):
            Where(kafka, "/logs").kafka_settings()
    with pytest.raises(ConfigError, match="names no Kafka"):
        statelog.open("visits", Where(None, "/logs"))
    with pytest.raises(NotFound):
        recover_snapshot("visits", Where(None, "/nowhere"))


def test_the_development_broker() -> None:
    """The development broker names its waivers, and logs made there are not replicated."""
    where = Where.local("/logs")
    assert where.kafka_settings() == {"bootstrap.servers": "127.0.0.1:9092"}
    assert (where.root, where.allow_unsafe) == ("/logs", ("replication", "min-insync"))
    assert where.replication_factor == 1


def test_from_the_environment_and_a_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables override the file that one of them names. A file that nobody named is not read."""
    lying, named = tmp_path / "statelog.toml", tmp_path / "named.toml"
    lying.write_text('root = "/lying"\nbootstrap = "lying:1"\n', encoding="utf-8")
    named.write_text('root = "/named"\nallow_unsafe = ["cleartext"]\n[storage]\ndirectory_mode = "2770"\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="bootstrap is missing"):
        Where.from_env({})
    variables = {
        "STATELOG_CONFIG": str(named),
        "STATELOG_BOOTSTRAP": "kafka:9092",
        "STATELOG_KAFKA__SASL_USERNAME": "u",
        "STATELOG_STORAGE__CLIENT_KWARGS": '{"region": "eu"}',
        "STATELOG_REPLICATION_FACTOR": "1",
    }
    kafka = {"bootstrap.servers": "kafka:9092", "sasl.username": "u"}
    options = {"directory_mode": "2770", "client_kwargs": {"region": "eu"}}
    expected = Where(kafka, "/named", storage_options=options, allow_unsafe=("cleartext",), replication_factor=1)
    assert Where.from_env(variables) == expected
    with pytest.raises(ConfigError, match="STATELOG_ROOTT"):
        Where.from_env({**variables, "STATELOG_ROOTT": "/x"})
    with pytest.raises(NotFound, match="configuration file"):
        Where.from_env({"STATELOG_CONFIG": str(tmp_path / "missing.toml")})
