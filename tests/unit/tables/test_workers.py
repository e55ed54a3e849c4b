"""Decisions of a worker: its group settings, its starting offsets, and when it opens a table again."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

import statelog
from statelog.errors import (
    BeyondEnd,
    BrokerUnavailable,
    CommitRefused,
    ConfigError,
    Fenced,
    IdentityChanged,
    LogInUse,
    OffsetGone,
    OutcomeUnknown,
    PersistFailed,
    StatelogError,
    UnsafeTopic,
)
from statelog.kafka.group import group_settings
from statelog.kafka.port import OffsetRange
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity, Metadata
from statelog.schemas.topic_policy import NO_TOPIC_ID, Waiver
from statelog.tables.group.context import DescribedInput, InputStart, InputTopic, check_fits, check_identified
from statelog.tables.group.schedule import FAILURES_MAX, IN_USE_MAX_S, OpenSchedule
from statelog.testing import Twin
from tests.support.providers.cluster import ProviderCluster
from tests.support.providers.provider import Provider

LOG = {"bootstrap.servers": "log:9092", "security.protocol": "SSL", "linger.ms": "5"}
INPUT = DescribedInput(topic="words", topic_id="id", partitions=3)


# ---- group settings


def test_a_member_never_commits_nor_resets() -> None:
    """A member never commits or resets offsets. Its default group is the log's, in the log's cluster."""
    made = group_settings({}, LOG, default_group="counts")
    expected = {
        "enable.auto.commit": "false",
        "auto.offset.reset": "error",
        "check.crcs": "true",
        "group.id": "counts",
        "bootstrap.servers": "log:9092",
        "security.protocol": "SSL",
        "partition.assignment.strategy": "cooperative-sticky",
    }
    assert expected.items() <= made.properties.items()
    assert "linger.ms" not in made.properties
    assert (made.is_cooperative, made.group) == (True, "counts")


def test_a_member_fetches_on_before_a_quick_loop_runs_dry() -> None:
    """A member fetches again within 100 ms. librdkafka's default waits a second, in which a quick loop runs dry."""
    assert int(group_settings({}, LOG, default_group="counts").properties["fetch.queue.backoff.ms"]) <= 100


def test_a_member_says_what_is_the_users() -> None:
    """A user's group, assignor, timeouts and cluster are used. Another cluster gets none of the log's connection."""
    given = {
        "bootstrap.servers": "input:9092",
        "group.id": "mine",
        "group.instance.id": "a",
        "partition.assignment.strategy": "range",
        "max.poll.interval.ms": "60000",
        "fetch.queue.backoff.ms": "1000",
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": "false",
    }
    made = group_settings(given, LOG, default_group="counts")
    assert given.items() <= made.properties.items()
    assert "security.protocol" not in made.properties
    assert not made.is_cooperative
    newer = group_settings({"group.protocol": "consumer"}, LOG, default_group="counts")
    assert newer.is_cooperative
    assert "partition.assignment.strategy" not in newer.properties


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable.auto.commit": "true"}, "never in the group"),
        ({"auto.offset.reset": "earliest"}, "start="),
        ({"auto.commit.interval.ms": "1"}, "nothing is committed"),
        ({"enable.auto.offset.store": "1"}, "never in the group"),
        ({"enable.partition.eof": "true"}, "no ends"),
        ({"group.id": " "}, "group.id is empty"),
        ({"on_commit": "x"}, "callbacks"),
        ({"transactional.id": "x"}, "its own groups and transactions"),
        ({"session.timeout.ms": 6000}, "not text"),
    ],
)
def test_contradicting_settings(given: Mapping[str, str], said: str) -> None:
    """Settings that make the group's offsets count, or take the member away from the worker, are refused by name."""
    with pytest.raises(ConfigError, match=said):
        group_settings(given, LOG, default_group="counts")


# ---- starting offsets


def _start(progress: Metadata | None, start: InputStart = InputStart.EARLIEST, *, accepts_loss: bool = False) -> int:
    topic = InputTopic("words", start=start, accept_loss=accepts_loss)
    return INPUT.start_offset(progress, 1, OffsetRange(10, 20), topic)


def test_where_to_read_on() -> None:
    """Reading starts behind what is processed. Without a commit, it starts where the caller says."""
    assert [_start(INPUT.progress(offset)) for offset in (10, 15, 20)] == [10, 15, 20]
    assert (_start(None), _start(None, InputStart.LATEST)) == (10, 20)
    assert [_start(INPUT.progress(offset), accepts_loss=True) for offset in (9, 15, 21)] == [10, 15, 20]


@pytest.mark.parametrize(
    ("progress", "error"),
    [
        (INPUT.progress(9), OffsetGone),
        (INPUT.progress(21), BeyondEnd),
        (DescribedInput(topic="words", topic_id="other", partitions=3).progress(15), IdentityChanged),
        ({}, ConfigError),
        ({"offset": 15}, ConfigError),
        ({**INPUT.progress(15), "offset": "15"}, ConfigError),
    ],
)
def test_a_place_that_is_none(progress: Metadata, error: type[StatelogError]) -> None:
    """Lost input, another topic of the same name, and commits of other programs are errors."""
    with pytest.raises(error) as raised:
        _start(progress)
    assert raised.value.facts["partition"] == 1
    if error in (IdentityChanged, ConfigError):
        with pytest.raises(error):
            _start(progress, accepts_loss=True)


def test_an_input_without_an_id() -> None:
    """An input without an id is refused, unless waived, since a re-created one is indistinguishable."""
    unknown = replace(INPUT, topic_id=NO_TOPIC_ID)
    for known, waived in ((INPUT, ()), (unknown, [Waiver.TOPIC_IDS])):
        check_identified(known, waived)
    twin = Twin()
    twin.cluster = ProviderCluster(Provider(name="without ids", has_topic_ids=False))
    twin.create_topic("words")
    with pytest.raises(UnsafeTopic, match="if it is re-created"):
        statelog.worker("counts", twin.where(), topic="words", create=True)


@pytest.mark.parametrize(("name", "topic"), [("words", "words"), ("words", "words.ledger")])
@pytest.mark.parametrize("records", [0, 1])
def test_a_log_of_the_name_of_its_input(name: str, topic: str, records: int) -> None:
    """A log with its input's name is refused with another name as hint, whatever is in the input."""
    twin = Twin()
    twin.create_topic(topic, partitions=1)
    twin.send(topic, *[b"v"] * records)
    with pytest.raises(ConfigError, match="the name of its own input") as refused:
        statelog.worker(name, twin.where(), topic=topic, create=True)
    assert f"{topic}-counts" in refused.value.hint


def test_an_input_that_is_another_one_now() -> None:
    """An input that was re-created or has grown is an error with what to do."""
    INPUT.check_is(INPUT)
    with pytest.raises(IdentityChanged):
        INPUT.check_is(replace(INPUT, topic_id="other"))
    with pytest.raises(ConfigError, match="it has grown") as grown:
        INPUT.check_is(replace(INPUT, partitions=4))
    assert (grown.value.facts["partitions"], grown.value.facts["key_groups"]) == (4, 3)
    assert "begin with a new log" in grown.value.hint


@pytest.mark.parametrize(("rule", "partitions", "key_groups"), [("crc32", 3, 3), ("caller", 2, 3), ("caller", 4, 4)])
def test_a_log_that_does_not_fit(rule: str, partitions: int, key_groups: int) -> None:
    """The log must have a key group and a partition for each partition of the input, named by callers."""
    check_fits(_log("caller", 3, 3), INPUT)
    with pytest.raises(ConfigError) as raised:
        check_fits(_log(rule, partitions, key_groups), INPUT)
    assert raised.value.facts["input_partitions"] == 3
    assert "a log with a new name, and create=True" in raised.value.hint


def _log(rule: str, partitions: int, key_groups: int) -> Descriptor:
    return Descriptor(
        name="counts",
        identity=LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l"),
        partitions=partitions,
        key_groups=key_groups,
        hash_rule=HashRule(rule),
        key_type=KeyType.BYTES,
        value_schema_id=0,
        nonce=b"n" * 16,
    )


# ---- openings


def _take(roster: OpenSchedule, partition: int) -> None:
    roster.taken([partition])


def _roster(*partitions: int) -> OpenSchedule:
    made = OpenSchedule()
    made.assigned(partitions)
    return made


def test_assigned_partitions_are_opened_once() -> None:
    """Each assigned partition is due at once, until it has a table or the group takes it."""
    roster = _roster(0, 1, 2)
    opened: list[int] = []
    roster.taken([1])
    while (vacancy := roster.due(0.0)) is not None:
        opened.append(vacancy.partition)
        assert not vacancy.checks_group
        roster.opened(vacancy.partition)
    assert opened == [0, 2]


@pytest.mark.parametrize("error", [PersistFailed("x"), OutcomeUnknown("x"), BrokerUnavailable("x"), Fenced("x")])
def test_failures_in_a_row(error: StatelogError) -> None:
    """Each failure in a row waits longer, and too many end the worker. A commit or a reassignment resets the count."""
    for forgives in (OpenSchedule.committed, _take):
        roster = _roster()
        for _ in range(FAILURES_MAX - 1):
            roster.failed(1, error, 100.0, 7)
        forgives(roster, 1)
        for _ in range(FAILURES_MAX - 1):
            roster.failed(1, error, 100.0, 7)
        assert roster.due(100.0) is None
        vacancy = roster.due(105.0)
        assert vacancy is not None
        assert (vacancy.checks_group, vacancy.offset) == (isinstance(error, Fenced), 7)
        with pytest.raises(type(error)):
            roster.failed(1, error, 100.0)


def test_who_was_fenced_asks_first() -> None:
    """A fenced partition asks the group until it confirms the assignment, before it opens again."""
    roster = _roster()
    roster.failed(1, Fenced("x"), 0.0, 7)
    roster.failed(1, BrokerUnavailable("x"), 0.0)
    for now_s in (10.0, 20.0):
        vacancy = roster.due(now_s)
        assert vacancy is not None
        assert (vacancy.checks_group, vacancy.offset) == (True, 7)
        roster.checked(1, now_s, is_current=False)
        assert roster.due(now_s) is None
    roster.checked(1, 30.0, is_current=True)
    vacancy = roster.due(30.0)
    assert vacancy is not None
    assert not vacancy.checks_group


def test_failures_that_are_for_a_person() -> None:
    """Failures that need a person are raised at once."""
    with pytest.raises(CommitRefused):
        _roster().failed(1, CommitRefused("x"), 0.0)


def test_a_directory_that_another_process_has() -> None:
    """A directory that another process uses is waited for. After a while the table opens in one of its own."""
    roster = _roster(1)
    for now_s in range(100):
        roster.failed(1, LogInUse("x"), float(now_s))
        vacancy = roster.due(now_s + 1.0)
        assert vacancy is not None
        assert vacancy.in_own_directory is (now_s >= IN_USE_MAX_S)
    roster.opened(1)
    roster.failed(1, LogInUse("x"), 100.0)
    vacancy = roster.due(101.0)
    assert vacancy is not None
    assert not vacancy.in_own_directory
