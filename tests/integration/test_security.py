"""Every role on a broker that grants nothing by itself: its rights suffice, and an error names each missing one.

The sets are the ones of docs/security.md; a test compares them.
"""

import logging
import re
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from statelog.errors import AlreadyExists, ConfigError, Unavailable
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.log import Log, LogOptions, Where, accept_data_loss, accept_ledger_loss
from statelog.materializer import Materializer
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer import Coordinator, TaskWriter, Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.outputs.output import Output
from statelog.schemas.outputs.stored import outputs_group
from tests.support.canary import CANARY
from tests.support.rigs.kafka import spec_of
from tests.support.rigs.log import where_at
from tests.support.services.s3_faulty import Told, faulty_s3
from tests.support.services.secure_broker import (
    Right,
    SecureBroker,
    group,
    publishing,
    reading,
    rolling_up,
    topic,
    writing,
)

pytestmark = pytest.mark.broker

_LOG = "secured"


class Place(NamedTuple):
    """The place of the secured log, and its users."""

    broker: SecureBroker
    root: str

    def open(self, user: str) -> Log:
        """Return the log, as this user opens it."""
        return Log.open(_LOG, where_at(self.broker.client(user), self.root))

    def feed(self) -> None:
        """Commit once more as the administrator, so that a round has work to do."""
        plain = {"bootstrap.servers": self.broker.plain}
        with Log.open(_LOG, where_at(plain, self.root)) as log, Writer(log, "feed") as writer:
            writer.put(b"fed", b"1")
            writer.commit(checkpoint_id=1 + (writer.last_commit.checkpoint.id if writer.last_commit else 0))


@pytest.fixture(scope="module")
def place(secure_node: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a secured log with a snapshot."""
    directory = tmp_path_factory.mktemp("secured")
    users = {name: f"{CANARY}-{name}" for name in (*ROLES, "sender", "administrator")}
    broker = secure_node.serve(users)
    found = Place(broker, str(directory / "root"))
    plain = {"bootstrap.servers": broker.plain}
    Log.create(_LOG, where_at(plain, found.root), LogOptions(partitions=2)).close()
    found.feed()
    with Log.open(_LOG, where_at(plain, found.root)) as log:
        run_round(log, MaterializerSettings(scratch=directory))
    return found


# ---- the work of every role


def _write(place: Place, user: str) -> None:
    with place.open(user) as log, Writer(log, "writer") as writer:
        last = writer.last_commit.checkpoint.id if writer.last_commit else 0
        writer.put(b"a", b"1")
        writer.put(b"b", b"2")
        writer.commit(checkpoint_id=last + 1)


def _coordinate(place: Place, user: str) -> None:
    with place.open(user) as log, Coordinator(log, "coordinator") as coordinator:
        last = coordinator.last_commit.checkpoint.id if coordinator.last_commit else 0
        producer = log.kafka.producer()
        try:
            task = TaskWriter(producer, coordinator.task(last + 1), slot=0)
            task.put(b"c", b"3")
            coordinator.commit([task.finish()], checkpoint_id=last + 1)
        finally:
            producer.close()


def _roll_up(place: Place, user: str) -> None:
    assert user == "materializer"
    _round(place)


def _read(place: Place, user: str) -> None:
    with place.open(user) as log:
        assert recover(log).to_dict()[b"fed"] == b"1"


def _follow(place: Place, user: str) -> None:
    with place.open(user) as log, recover(log).follow() as stream:
        assert next(iter(stream)) is not None


def _describe(place: Place, user: str) -> None:
    with place.open(user) as log:
        assert log.describe().manifest is not None


def _recover_behind_a_barrier(place: Place, user: str) -> None:
    with place.open(user) as log:
        assert recover(log, barrier=True).to_dict()[b"fed"] == b"1"


def _accept_a_loss(place: Place, user: str) -> None:
    """Try to accept a loss in both ways, each refused for its own reason: nothing is lost, or was ever there."""
    with place.open(user) as log:
        with pytest.raises(ConfigError, match=r"lost nothing|does not allow") as caught:
            accept_ledger_loss(log, reason="a test", operator="a test")
        with pytest.raises(ConfigError, match=r"committed offsets can be accepted as lost|does not allow") as other:
            accept_data_loss(log, [LossRange(0, 0, 1 << 40)], reason="a test", operator="a test")
    if "does not allow" in str(caught.value):
        assert str(other.value) == str(caught.value)
        raise caught.value


def _round(place: Place) -> CompletedRound:
    place.feed()
    with place.open("materializer") as log:
        outcome = run_round(log, MaterializerSettings(scratch=Path(place.root).parent))
    assert isinstance(outcome, CompletedRound)
    return outcome


def _make(place: Place) -> None:
    kafka = place.broker.client("administrator")
    Log.create(MADE, where_at(kafka, place.root), LogOptions(partitions=1)).close()


def _delete(place: Place) -> None:
    Log.delete(MADE, Where(place.broker.client("administrator"), place.root))


LEDGER = f"{_LOG}.ledger"
ROLLING_UP, PUBLISHING = rolling_up(_LOG), publishing(_LOG)
ROLES: dict[str, tuple[Callable[[Place, str], None], list[Right]]] = {
    "writer": (_write, writing(_LOG)),
    "coordinator": (_coordinate, writing(_LOG)),
    "materializer": (_roll_up, ROLLING_UP),
    "reader": (_read, reading(_LOG)),
    "follower": (_follow, reading(_LOG)),
    "barrier": (_recover_behind_a_barrier, [*reading(_LOG), *topic(LEDGER, "WRITE")]),
    "accepter": (_accept_a_loss, [*reading(_LOG), *topic(LEDGER, "WRITE")]),
    "describer": (
        _describe,
        reading(_LOG),
    ),
}
"""The work of each role, and the rights that docs/security.md lists for it."""
OUTPUT = "secured-output"
MADE, MADE_LEDGER = "secured-too", "secured-too.ledger"
MAKING = [
    *topic(MADE, "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"),
    *topic(MADE_LEDGER, "CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS"),
]
DELETING = [*topic(MADE, "DELETE", "DESCRIBE_CONFIGS"), *topic(MADE_LEDGER, "DELETE", "READ", "DESCRIBE_CONFIGS")]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_works_with_exactly_its_rights(place: Place, role: str) -> None:
    """The rights that docs/security.md lists for a role are enough."""
    act, rights = ROLES[role]
    place.broker.grant(role, rights)
    act(place, role)


def _missing_one() -> list[object]:
    return [
        pytest.param(role, right, id=f"{role} without {right}")
        for role, (_, rights) in ROLES.items()
        for right in rights
    ]


@pytest.mark.parametrize(("role", "missing"), _missing_one())
def test_a_missing_right_is_told_by_name(place: Place, role: str, missing: Right) -> None:
    """Every right of the list is needed: an error names its operation and resource, at once."""
    act, rights = ROLES[role]
    place.broker.grant(role, [right for right in rights if right != missing])
    with pytest.raises(ConfigError) as caught:
        act(place, role)
    assert missing.operation.name in str(caught.value)
    assert missing.name in str(caught.value)


SENDING = [
    Right(ResourceType.TRANSACTIONAL_ID, f"statelog.{_LOG}/writer", AclOperation["WRITE"]),
    *group(f"statelog.{_LOG}/writer", "READ"),
    *topic(OUTPUT, "WRITE"),
]
"""The rights of a table that sends messages, besides those of a writer."""


def _send(place: Place, rights: list[Right], *, is_transactional: bool) -> None:
    """Publish a message with these rights."""
    place.broker.grant("sender", [*writing(_LOG), *rights])
    with place.open("sender") as log:
        producer = log.kafka.output_producer(
            outputs_group(_LOG, "writer"), log.ledger_topic, is_transactional=is_transactional
        )
        with closing(producer):
            producer.start()
            producer.begin()
            producer.send(Output(OUTPUT, b"sent"))
            producer.commit(1)


@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_table_sends_with_exactly_its_rights(place: Place, is_transactional: bool) -> None:
    """Messages need three rights more, each named while missing; without transactions no id of transactions."""
    plain = ConfluentKafka(client_config({"bootstrap.servers": place.broker.plain}))
    with closing(plain), suppress(AlreadyExists):
        plain.create_topic(spec_of(OUTPUT, 1))
    needed = [one for one in SENDING if is_transactional or one.kind is not ResourceType.TRANSACTIONAL_ID]
    for missing in needed:
        with pytest.raises(ConfigError) as caught:
            _send(place, [one for one in needed if one != missing], is_transactional=is_transactional)
        assert missing.operation.name in str(caught.value)
        assert missing.name in str(caught.value)
    _send(place, needed, is_transactional=is_transactional)


def test_a_round_without_the_right_on_its_group_goes_on_and_says_so(place: Place) -> None:
    """A round without the right on its group goes on with a warning, since the position is for lag tools.

    With the right it is published.
    """
    place.broker.grant("materializer", ROLLING_UP)
    assert "READ on group" in _round(place).unpublished
    place.broker.grant("materializer", [*ROLLING_UP, *PUBLISHING])
    assert not _round(place).unpublished


def test_a_log_is_made_and_deleted_with_exactly_the_rights(place: Place) -> None:
    """Making and deleting a log needs exactly the rights, each named while missing; a retry takes leftovers over."""
    for missing in MAKING:
        place.broker.grant("administrator", [right for right in MAKING if right != missing])
        with pytest.raises(ConfigError) as caught:
            _make(place)
        assert missing.operation.name in str(caught.value)
        assert missing.name in str(caught.value)
    place.broker.grant("administrator", MAKING)
    _make(place)
    for missing in DELETING:
        place.broker.grant("administrator", [right for right in DELETING if right != missing])
        with pytest.raises(ConfigError) as caught:
            _delete(place)
        assert missing.operation.name in str(caught.value)
        assert missing.name in str(caught.value)
    place.broker.grant("administrator", DELETING)
    _delete(place)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sasl_password": f"{CANARY}-wrong"}, "Authentication failed"),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, "mechanism"),
        ({"ssl_ca_location": ""}, "certificate"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "speaks TLS"),
    ],
    ids=["wrong password", "wrong mechanism", "unknown authority", "no TLS"],
)
def test_who_is_refused_is_told_why_at_once(place: Place, settings: dict[str, str], told: str) -> None:
    """A wrong password is reported at once, not after a time-out, and no supervisor repeats it."""
    patient = {"socket_timeout_ms": "280000", **settings}
    kafka = {name: value for name, value in place.broker.client("reader", **patient).items() if value}
    began_s = time.monotonic()
    with pytest.raises(ConfigError, match=told) as caught:
        Log.open(_LOG, where_at(kafka, place.root))
    assert time.monotonic() - began_s < 150.0, "the request time-out was waited for"
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_no_secret_is_in_reprs_logs_and_errors(place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No secret is in any public object, logger at DEBUG, the store's S3 client, or error with its causes."""
    caplog.set_level(logging.DEBUG)
    place.broker.grant("writer", writing(_LOG))
    place.broker.grant("materializer", ROLLING_UP)
    shown: list[object] = []
    with place.open("writer") as log, Coordinator(log, "canary") as coordinator:
        task = coordinator.task(1 + (coordinator.last_commit.checkpoint.id if coordinator.last_commit else 0))
        producer = log.kafka.producer()
        shown += [log, log.kafka, log.store, log.descriptor, log.describe(), coordinator, coordinator.grant, task]
        shown += [producer, log.kafka.reader(_LOG), TaskWriter(producer, task, slot=0)]
        producer.close()
    with place.open("writer") as log, Writer(log, "canary") as writer, recover(log) as recovery:
        writer.put(b"canary", b"1")
        handle = writer.persist(1 << 40).result()
        writer.confirm(handle)
        shown += [writer, handle, writer.statistics(), recovery, recovery.to_dict(), recovery.statistics()]
    with place.open("materializer") as log:
        shown += [run_round(log, MaterializerSettings(scratch=tmp_path)), Materializer(log, MaterializerSettings())]
    with faulty_s3() as s3:
        options = {**s3.options, "secret": f"{CANARY}store"}
        s3.faults.append(Told("PUT", 403))
        wrongs: tuple[dict[str, str], ...] = ({}, {"endpoint_url": "http://127.0.0.1:1"}, {"secrett": f"{CANARY}x"})
        for wrong in wrongs:
            with pytest.raises((ConfigError, Unavailable)) as caught:
                Log.create(MADE, Where(place.broker.client("writer"), "s3://b", storage_options={**options, **wrong}))
            shown += [caught.value, dict(caught.value.facts), "".join(traceback.format_exception(caught.value))]
    assert len(caplog.records) > 100
    told = [*map(repr, shown), *map(str, shown), *(record.getMessage() for record in caplog.records)]
    assert [text for text in told if CANARY in text] == []


def test_tls_where_the_broker_speaks_none(place: Place) -> None:
    """A client that encrypts at a plain listener gets an error of its own."""
    kafka = place.broker.client("reader", bootstrap_servers=place.broker.plain)
    with pytest.raises(ConfigError, match=r"SSL|TLS"):
        Log.open(_LOG, where_at(kafka, place.root))


_IAM = {
    "READ": "ReadData", "WRITE": "WriteData", "DELETE": "DeleteTopic", "CREATE": "CreateTopic",
    "DESCRIBE": "DescribeTopic", "DESCRIBE_CONFIGS": "DescribeTopicDynamicConfiguration",
}  # fmt: skip
"""The actions that AWS calls equal to Kafka's rights on a topic."""


def test_the_page_lists_the_same_rights_in_awss_words() -> None:
    """The page lists the same rights in AWS's words: IAM needs implied ones by name, and writers one on the cluster."""
    page = Path("docs/security.md").read_text(encoding="utf-8")
    page = page.partition("## Rights under IAM on Amazon MSK")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    listed = {row[0]: row[1:] for row in rows}
    made = [*MAKING, *DELETING]
    for name, rights, topics in (
        ("writer, coordinator, Spark writing", ROLES["writer"][1], (_LOG, LEDGER)),
        ("materializer", ROLES["materializer"][1], (_LOG, LEDGER)),
        ("recovery, follower, Spark reading, `describe`, `evolve`", ROLES["reader"][1], (_LOG, LEDGER)),
        ("`recover(barrier=True)`, `accept-loss`, `copy --finish` of the old log", ROLES["barrier"][1], (_LOG, LEDGER)),
        ("`init` and `delete`", made, (MADE, MADE_LEDGER)),
    ):
        seen: set[str] = set()
        for at, on in enumerate(topics):
            actions = {_IAM[right.operation.name] for right in rights if right.name == on} | {"DescribeTopic"}
            cell = listed[name][at]
            seen = set(re.findall(r"`(\w+)`", cell)) | (seen if "the same" in cell or "these" in cell else set[str]())
            assert seen == actions, (name, on)
        writes = "WRITE" in {right.operation.name for right in rights}
        assert ("WriteDataIdempotently" in listed[name][3]) == writes, name


def test_the_page_lists_these_rights() -> None:
    """The tested rights are the ones of docs/security.md."""
    page = Path("docs/security.md").read_text(encoding="utf-8")
    page = page.partition("## What a right is worth")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    listed = {row[0]: row[1:3] for row in rows}
    for role, name in {
        "writer": "writer, coordinator, Spark writing", "materializer": "materializer",
        "reader": "recovery, follower, Spark reading",
        "describer": "`describe`, `evolve`",
        "barrier": "`recover(barrier=True)`, `accept-loss`, `copy --finish` of the old log",
        "accepter": "`recover(barrier=True)`, `accept-loss`, `copy --finish` of the old log",
    }.items():  # fmt: skip
        for at, on in enumerate((_LOG, LEDGER)):
            found = {right.operation.name for right in ROLES[role][1] if right.name == on}
            assert set(re.findall(r"[A-Z_]+", listed[name][at])) == found, (name, on)
    for at, on in enumerate((MADE, MADE_LEDGER)):
        made = {right.operation.name for right in (*MAKING, *DELETING) if right.name == on}
        assert set(re.findall(r"[A-Z_]+", listed["`init` and `delete`"][at])) == made
