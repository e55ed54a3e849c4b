"""Secrets in files that settings name are read whenever a client is made, and never shown."""

import pickle
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from statelog.errors import ConfigError, StatelogError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.group import group_settings
from statelog.kafka.native import make_client
from statelog.log import Where
from statelog.log.config import ConfigLayer, config_layers, environment_layer, file_layer, flag_layer, merge
from statelog.store.fsspec import FsspecStore, open_store

CANARY = "canary-7f3a-mounted"
SERVERS = {"bootstrap.servers": "localhost:1"}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """Return a secret as orchestrators mount it."""
    path = tmp_path / "mounted"
    path.write_text(CANARY, encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n"])
def test_a_line_end_is_no_part_of_a_secret(mounted: Path, ending: str) -> None:
    """A line end, as of `echo`, is no part of a secret. Blanks may be."""
    mounted.write_bytes(f" {CANARY} {ending}".encode())
    config = client_config({**SERVERS, "sasl.password.file": str(mounted)})
    assert config.opened(config.settings)["sasl.password"] == f" {CANARY} "


def test_a_client_is_given_what_is_in_the_file_now(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new client reads the file, so it has the secret after a rotation."""
    given: list[dict[str, Any]] = []
    config = client_config({**SERVERS, "sasl.password.file": str(mounted)})

    def made(properties: dict[str, Any], **_: object) -> confluent_kafka.Producer:
        given.append(properties)
        return confluent_kafka.Producer(SERVERS)

    for secret in ("first", "second"):
        mounted.write_text(secret, encoding="utf-8")
        make_client(made, "a producer", dict(config.settings), config, deque())
    assert [one["sasl.password"] for one in given] == ["first", "second"]
    assert "sasl.password.file" not in given[0]


def test_a_store_is_given_what_is_in_the_file(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store reads the file when it connects, and not before."""
    given: list[dict[str, Any]] = []

    def connected(_: str, **options: Any) -> tuple[Any, str]:
        given.append(options)
        raise ValueError("that will do")

    monkeypatch.setattr("fsspec.url_to_fs", connected)
    store = open_store("s3://bucket/logs", "log", {"secret_file": str(mounted), "key": "k"})
    assert given == []
    with pytest.raises(ConfigError, match="that will do"):
        store.list("")
    assert (given[0]["secret"], given[0]["key"], "secret_file" in given[0]) == (CANARY, "k", False)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"", "it is empty"), (b"\n", "it is empty"), (b"\xff\xfe", "UTF-8")],
)
def test_a_file_without_a_secret_is_named(mounted: Path, content: bytes | None, problem: str) -> None:
    """A file without a secret is named with its setting, by Kafka's clients and by the store."""
    mounted.unlink() if content is None else mounted.write_bytes(content)
    where = Where({**SERVERS, "sasl.password.file": str(mounted)}, "s3://b", storage_options={"key_file": str(mounted)})
    store = open_store("s3://bucket/logs", "log", where.storage_options)
    assert isinstance(store, FsspecStore)
    for use, setting in (
        (ConfluentKafka(where.client_config()).cluster_id, "sasl.password.file"),
        (lambda: store.list(""), "key_file"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            use()
        assert caught.value.facts == {"setting": setting, "file": str(mounted)}


def test_no_secret_of_a_file_is_shown(mounted: Path) -> None:
    """The path of a secret's file is shown, and its contents never, also where the client repeats them."""
    options = {"secret_file": str(mounted)}
    where = Where({**SERVERS, "ssl.key.pem.file": str(mounted)}, "s3://b", storage_options=options)
    config = where.client_config()
    with pytest.raises(StatelogError) as caught:
        ConfluentKafka(config, request_timeout_s=0.2).cluster_id()
    error = "".join(traceback.format_exception(caught.value)) + repr(caught.value.facts)
    assert CANARY not in repr(where) + repr(config) + repr(pickle.dumps(where)) + error
    assert repr(where).count(str(mounted)) == 2
    assert config.redact(f"wrong: {CANARY}") == "wrong: ***"


def test_what_a_client_was_given_is_hidden_from_then_on(mounted: Path) -> None:
    """A secret is hidden from the moment that a client gets it, without reading the file again.

    It stays hidden after a rotation or an unmount.
    """
    config = client_config({**SERVERS, "sasl.password.file": str(mounted), "sasl.username.file": str(mounted)})
    config.opened(config.settings)
    mounted.write_text("second-5e1b", encoding="utf-8")
    assert config.redact(f"{CANARY} or second-5e1b") == "*** or second-5e1b"
    config.opened(config.settings)
    mounted.unlink()
    assert config.redact(f"{CANARY} or second-5e1b") == "*** or ***"


def test_a_secret_is_said_in_one_way() -> None:
    """One origin gives a secret in one way. Where origins differ, the stronger one decides."""
    with pytest.raises(ConfigError, match=r"sasl\.password is given, and sasl\.password\.file too"):
        client_config({**SERVERS, "sasl.password": "x", "sasl.password.file": "/x"})
    with pytest.raises(ConfigError, match="secret is given, and secret_file too"):
        open_store("s3://bucket/logs", "log", {"secret": "x", "secret_file": "/x"})
    file = file_layer("[kafka]\nsasl.password.file = '/f'\n[storage]\nsecret = 'f'\nkey_file = '/k'", "f.toml")
    environment = environment_layer({"STATELOG_KAFKA__SASL_PASSWORD": "e", "STATELOG_STORAGE__SECRET_FILE": "/e"})
    both = merge([file, environment])
    assert both.kafka == {"sasl.password": "e"}
    assert both.storage == {"secret_file": "/e", "key_file": "/k"}
    assert merge([environment, flag_layer({}, ["sasl.password.file=/g"], [])]).kafka == {"sasl.password.file": "/g"}
    log = {**SERVERS, "sasl.password": "x"}
    group = group_settings({"sasl.password.file": "/g"}, log, default_group="g").config.settings
    assert group == {**SERVERS, "sasl.password.file": "/g"}


def test_other_settings_that_end_so_are_not_ours() -> None:
    """librdkafka's own file settings, and those whose value a rule checks, are not read from files."""
    for name in ("sasl.oauthbearer.assertion.private.key.file", "enable.ssl.certificate.verification.file", "x.file"):
        given = {**SERVERS, name: "/x"}
        assert client_config(given).opened(given) == given


@pytest.mark.parametrize(
    "text",
    [
        "[kafka]\nsasl.password.file = '/home/me/.ssh/id'",
        "[kafka]\n'sasl.oauthbearer.assertion.file' = '/home/me/.ssh/id'",
        "[storage]\nsecret_file = '/home/me/.ssh/id'",
    ],
)
def test_a_found_file_names_no_file_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A directory's own file may not name a secret's file: it names the address, too, where the contents would go."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "statelog.toml").write_text(f"bootstrap = 'b:1'\nroot = 's3://b'\n{text}\n")
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="names a file whose content would be sent") as caught:
        config_layers(None, home, ConfigLayer(origin=""))
    assert "--config statelog.toml" in caught.value.hint
    assert len(config_layers("statelog.toml", home, ConfigLayer(origin=""))) == 3
