"""Subscriptions: their file, their hold, their next writer, and their cap."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.errors import ConfigError, Corrupt, InvalidName, ReaderInUse, SubscriptionEnded, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.ledger.place import LastRecord, LogIdentity
from statelog.schemas.ledger.state import LedgerState, PartitionState
from statelog.schemas.names import subscription_path, subscription_slot
from statelog.schemas.snapshot.claims import (
    Subscription,
    SubscriptionCap,
    SubscriptionFile,
    check_holder,
    following,
    holding,
    newest_files,
    over_cap,
    superseded_paths,
)
from tests.support.samples.chunks import mutations

IDENTITY = LogIdentity(cluster_id="C", data_topic_id="D", ledger_topic_id="L")
SUBSCRIPTION = Subscription(
    reader="to-lake",
    number=3,
    nonce=bytes(range(16)),
    identity=IDENTITY,
    holder_id="one",
    holder="query on host b",
    is_taken_up=True,
    position=40,
    next_offsets={0: 12, 3: 0},
    state=LedgerState(position=40, partitions=(PartitionState(0, 7, 12),)),
    anchor=LastRecord(39, 5),
    created_s=900.0,
    moved_s=1000.0,
)


def _file(number: int, reader: str = "a", *, position: int = 5, ended: str = "", at_s: float = 0.0) -> SubscriptionFile:
    one = replace(
        SUBSCRIPTION, reader=reader, number=number, position=position, state=LedgerState(position=position), ended=ended
    )
    return SubscriptionFile(one, at_s)


# ---- the file


def test_a_subscription_survives_its_file() -> None:
    """The file decodes to the subscription, with and without an anchor."""
    for one in (SUBSCRIPTION, replace(SUBSCRIPTION, anchor=None, ended="removed")):
        assert Subscription.from_bytes(one.to_bytes(), one.path) == one


def test_every_mutation_of_the_file_is_refused() -> None:
    """A flipped, missing or added byte is refused, except in the schema text, which is for other tools."""
    for damaged in mutations(SUBSCRIPTION.to_bytes(), spare=RecordCodec("subscription").text.encode()):
        with pytest.raises((Corrupt, UnknownFormat)):
            Subscription.from_bytes(damaged, SUBSCRIPTION.path)


def test_a_file_in_the_wrong_place_is_refused() -> None:
    """A file that a person copied to another reader or number is refused, and holds nothing."""
    for path in (subscription_path("to-lake", 4), subscription_path("other", 3)):
        with pytest.raises(Corrupt, match="another subscription's file"):
            Subscription.from_bytes(SUBSCRIPTION.to_bytes(), path)


def test_a_subscription_refuses_what_cannot_be() -> None:
    """Names become paths and are checked, position and state agree, and files obey the rules of callers."""
    with pytest.raises(InvalidName):
        replace(SUBSCRIPTION, reader="../manifests/1")
    for wrong in (
        {"position": 41},
        {"number": 0},
        {"next_offsets": {0: -1}},
        {"nonce": b""},
        {"moved_s": float("nan")},
    ):
        with pytest.raises(ConfigError):
            replace(SUBSCRIPTION, **wrong)
    lying = replace(SUBSCRIPTION)
    object.__setattr__(lying, "position", -1)
    with pytest.raises(Corrupt):
        Subscription.from_bytes(lying.to_bytes(), lying.path)


@pytest.mark.parametrize(
    "path",
    ["subscriptions/a.1.avro", "subscriptions/.00000000000000000001.avro", "subscriptions/a.99999999999999999999.avro"],
)
def test_a_path_that_nobody_writes_is_no_slot(path: str) -> None:
    """A path of an unknown form is no slot, and its file stays."""
    assert subscription_slot(path) is None
    assert subscription_slot(subscription_path("a.00000000000000000001.avro", 7)) == ("a.00000000000000000001.avro", 7)


# ---- hold


def test_every_file_of_a_reader_holds_until_it_is_swept() -> None:
    """A moving reader has two files that both hold, so no moment is without a hold."""
    files = [_file(1, position=5), _file(2, position=9), _file(1, "b", position=3)]
    assert [one.position for one in holding(files, IDENTITY)] == [5, 9, 3]
    assert [one.subscription.number for one in newest_files(files).values()] == [2, 1]
    assert superseded_paths(files) == []


def test_one_that_ended_holds_nothing_and_stays() -> None:
    """An ended subscription holds nothing. Its newest file records the end and stays, and older ones may be removed."""
    files = [_file(1), _file(2), _file(3, ended="removed"), _file(1, "b")]
    assert [one.reader for one in holding(files, IDENTITY)] == ["b"]
    assert superseded_paths(files) == [subscription_path("a", 1), subscription_path("a", 2)]


def test_a_subscription_to_lost_topics_holds_nothing() -> None:
    """A subscription to deleted topics holds nothing, since its offsets are theirs."""
    assert holding([_file(1)], replace(IDENTITY, ledger_topic_id="new")) == []


_FILES = st.lists(
    st.builds(
        _file,
        st.integers(1, 6),
        st.sampled_from("ab"),
        position=st.integers(0, 30),
        ended=st.sampled_from(["", "over"]),
    ),
    unique_by=lambda file: file.subscription.path,
)


@given(_FILES)
def test_what_holds_is_never_swept_and_the_newest_never_goes(files: list[SubscriptionFile]) -> None:
    """In any set of files, removable ones hold nothing, and the newest file of each reader is not among them."""
    swept = set(superseded_paths(files))
    assert swept.isdisjoint(one.path for one in holding(files, IDENTITY))
    assert swept.isdisjoint(one.subscription.path for one in newest_files(files).values())


# ---- the next writer


def test_another_reading_takes_only_what_nobody_has_taken_up() -> None:
    """A claim that was taken up is refused to other readings. One that never was, or that ended, is not."""
    for free in (None, replace(SUBSCRIPTION, is_taken_up=False), replace(SUBSCRIPTION, ended="removed")):
        check_holder(free, "two")
    check_holder(SUBSCRIPTION, "one")
    with pytest.raises(ReaderInUse) as refused:
        check_holder(SUBSCRIPTION, "two")
    assert refused.value.facts["holder"] == "query on host b"


def test_a_reading_is_told_that_its_own_ended() -> None:
    """A reader whose subscription ended gets the reason, position and way out, before it reads anything."""
    with pytest.raises(SubscriptionEnded, match="idle for a week") as told:
        check_holder(replace(SUBSCRIPTION, ended="idle for a week"), "one")
    assert told.value.facts == {"reader": "to-lake", "position": 40}
    assert "another reader id" in str(told.value)


def test_the_next_file_keeps_what_the_reading_had() -> None:
    """The next file of a reading retains its creation time and that it was taken up. A new reading has neither."""
    wanted = replace(SUBSCRIPTION, is_taken_up=False, created_s=2000.0)
    mine = following(SUBSCRIPTION, wanted)
    assert (mine.number, mine.created_s, mine.is_taken_up) == (4, 900.0, True)
    for found in (replace(SUBSCRIPTION, holder_id="other", is_taken_up=False), replace(SUBSCRIPTION, ended="over")):
        anew = following(found, wanted)
        assert (anew.number, anew.created_s, anew.is_taken_up) == (4, 2000.0, False)
    assert following(None, wanted).number == 1


# ---- the cap


@pytest.mark.parametrize(
    ("cap", "now_s", "position", "is_over"),
    [
        (SubscriptionCap(idle_s=100.0), 100.0, 50, False),
        (SubscriptionCap(idle_s=100.0), 100.1, 50, True),
        (SubscriptionCap(idle_s=100.0), 1e9, 40, False),
        (SubscriptionCap(idle_s=1e9, records=11), 1.0, 50, False),
        (SubscriptionCap(idle_s=1e9, records=10), 1.0, 50, True),
        (SubscriptionCap(idle_s=1e9), 1.0, 50, False),
    ],
    ids=["to its last second", "idle", "idle, but holds nothing", "few records", "too many records", "any number"],
)
def test_the_cap_ends_what_holds_back_too_long_or_too_much(
    cap: SubscriptionCap, now_s: float, position: int, is_over: bool
) -> None:
    """The cap ends a hold that is too old or too large.

    Its reader holds 11 records that are in a snapshot at 50, and none in one at 40.
    """
    offsets = {0: 20, 3: 3} if position == 50 else {0: 12}
    reason = over_cap(SubscriptionFile(SUBSCRIPTION, 0.0), cap, position=position, next_offsets=offsets, now_s=now_s)
    assert bool(reason) is is_over
    ended = SubscriptionFile(replace(SUBSCRIPTION, ended="removed"), 0.0)
    assert over_cap(ended, cap, position=position, next_offsets=offsets, now_s=now_s) == ""


@pytest.mark.parametrize("wrong", [{"idle_s": 0.0}, {"idle_s": float("nan")}, {"records": -1}], ids=str)
def test_a_cap_that_no_reader_could_keep_is_refused(wrong: dict[str, float]) -> None:
    """A cap of no time is refused, since it would end every subscription."""
    with pytest.raises(ConfigError):
        SubscriptionCap(**wrong)  # type: ignore[arg-type]  # the wrong types are the point
