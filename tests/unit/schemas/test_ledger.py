"""Ledger records: their bytes, and who is stopped by what."""

import struct
from dataclasses import replace

import pytest
import xxhash

from statelog.errors import ConfigError, CorruptLedger, InvalidName, UnknownFormat
from statelog.schemas.avro import RecordCodec
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.handle import NO_CHECKPOINT
from statelog.schemas.ledger.place import ORIGIN, Metadata, Place
from statelog.schemas.ledger.records import AcceptLoss, Commit, Commits, LedgerRecord, LossRange, Open
from tests.support.samples.chunks import mutations
from tests.support.samples.format_examples import EXAMPLES
from tests.support.samples.ledger_story import IDENTITY, Story, nonce


def _open() -> Open:
    return Story().new_open("A", 0, 1)


def _commit() -> Commit:
    story = Story()
    epoch = story.open("A", 0, 1)
    return story.new_commit(epoch, story.persist(epoch, 0, 1, meta="m"), story.persist(epoch, 0))


def _loss() -> AcceptLoss:
    return AcceptLoss(ranges=(LossRange(0, 3, 4),), reason="a disk broke", operator="ann")


def _inline() -> Commit:
    commit: Commit = EXAMPLES["inline-commit"].value  # type: ignore[assignment]  # an example is of any type
    return commit


RECORDS = [_open(), _commit(), _loss(), _inline(), Commits((_commit(), _inline(), _commit()))]


def _sealed(version: int, kind: int, payload: bytes) -> bytes:
    """A record as any version writes it: prefix and checksum never change."""
    checksum = xxhash.xxh3_64_intdigest(b"\0\0" + payload, seed=version << 8 | kind)
    return b"SLLG" + struct.pack("<BB2xQ", version, kind, checksum) + payload


@pytest.mark.parametrize("record", RECORDS, ids=["open", "commit", "accept loss", "inline", "commits"])
def test_records_survive_their_bytes(record: LedgerRecord) -> None:
    """A record decodes to itself."""
    assert ledger.decode(ledger.encode(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=["open", "commit", "accept loss", "inline", "commits"])
def test_every_mutation_of_a_record_stops_its_reader(record: LedgerRecord) -> None:
    """No flipped, missing or added byte passes; without the magic a record is a stranger's."""
    for damaged in mutations(ledger.encode(record)):
        if damaged[:4] != b"SLLG":
            assert ledger.decode(damaged) is None
            continue
        with pytest.raises((CorruptLedger, UnknownFormat)):
            ledger.decode(damaged)


@pytest.mark.parametrize("value", [b"", b"SLL", b"hello, ledger", b"SLCH" + bytes(40)])
def test_a_record_without_the_magic_is_a_strangers(value: bytes) -> None:
    """It is void for every reader, and stops none."""
    assert ledger.decode(value) is None


@pytest.mark.parametrize(("version", "kind"), [(3, 1), (4, 2), (2, 3), (2, 6), (1, 7), (1, 0), (9, 9)])
def test_an_unknown_version_or_kind_stops_every_reader(version: int, kind: int) -> None:
    """It might be a commit, so nobody may step over it."""
    with pytest.raises(UnknownFormat):
        ledger.decode(_sealed(version, kind, b"whatever"))


def test_an_open_of_version_1_is_read() -> None:
    """It names the position that its writer had folded, and no record below it."""
    found = ledger.decode(
        bytes.fromhex(
            "534c4c47010100003b8e0c585b957f72c3018c541f96900489a00277020200000102030405060708090a0b0c0d0e0f01"
            "000000000000000000000000000000000002430244024c02"
        )
    )
    assert isinstance(found, Open)
    assert (found.writer, found.partitions, found.witness) == ("w", (1,), Place(1))


def test_a_whole_record_that_says_nonsense_is_corrupt() -> None:
    """A right checksum over a payload that does not decode is no excuse."""
    for kind in (1, 2, 3, 4, 5):
        with pytest.raises(CorruptLedger):
            ledger.decode(_sealed(1, kind, b"nonsense"))


def test_bytes_after_an_open_are_corrupt() -> None:
    """A decoder consumes its input to the last byte."""
    payload = ledger.encode(_open())[16:]
    assert ledger.decode(_sealed(1, 1, payload)) == _open()
    with pytest.raises(CorruptLedger):
        ledger.decode(_sealed(1, 1, payload + b"\0"))


def test_a_commits_body_gives_back_what_it_was_made_of() -> None:
    """Metadata and handles are read only when they are asked for."""
    story = Story()
    epoch = story.open("A", 0)
    handle = story.persist(epoch, 0)
    body = story.new_commit(epoch, handle).read_body()
    assert body.metadata == {"checkpoint": "1"}
    assert body.handles == (handle,)


def test_a_commits_head_spans_all_entries_of_a_partition() -> None:
    """One extent per partition, from the first offset to the end offset of everything listed there."""
    commit = _commit()
    assert commit.extents == [(0, 0, 2), (1, 0, 1)]


@pytest.mark.parametrize("lie", ["extents", "has_meta", "body"])
def test_a_head_that_differs_from_its_body_is_corrupt(lie: str) -> None:
    """Validity is decided by the head, so a body that says something else is damage."""
    commit = _commit()
    lying = {
        "extents": replace(commit, packed_extents=ledger.pack_extents(commit.extents[:1])),
        "has_meta": replace(commit, has_meta=False),
        "body": replace(commit, body=commit.body + b"\0"),
    }[lie]
    arrived = ledger.decode(ledger.encode(lying))
    assert isinstance(arrived, Commit)
    with pytest.raises(CorruptLedger):
        arrived.read_body()


def test_a_commit_that_is_read_leaves_its_changes_in_the_record() -> None:
    """It says where they begin, and how large they are; its size is that of the whole record."""
    sent = _inline()
    value = ledger.encode(sent)
    found = ledger.decode(value)
    assert isinstance(found, Commit)
    assert (found, found.batch, found.size_bytes) == (sent, b"", len(value))
    assert value[found.batch_start :] == sent.batch
    assert found.batch_start % 8 == 0


def test_each_of_several_commits_says_where_its_changes_begin() -> None:
    """Behind those before it, at a multiple of 8 bytes of the record."""
    several = Commits((_commit(), _inline(), _inline()))
    value = ledger.encode(several)
    found = ledger.decode(value)
    assert isinstance(found, Commits)
    for one in found.commits[1:]:
        assert one.batch_start % 8 == 0
        assert value[one.batch_start :].startswith(_inline().batch)


def test_a_record_of_several_commits_holds_commits_alone() -> None:
    """None at all, one of an unknown version, and one that is cut off, stop every reader."""
    item = ledger.encode(_commit())[16:]
    for payload in (b"", struct.pack("<IB3x", len(item), 1) + item, struct.pack("<IB3x", len(item) + 9, 2) + item):
        with pytest.raises(CorruptLedger):
            ledger.decode(_sealed(1, 6, payload))


@pytest.mark.parametrize(
    "lie", [{"size_bytes": 1 << 20}, {"size_bytes": 0}, {"changes": 0}, {"partitions": 0}, {"first_key_group": 128}]
)
def test_a_head_that_describes_other_changes_is_corrupt(lie: dict[str, int]) -> None:
    """Numbers that cannot be those of the changes behind it."""
    sent = _inline()
    assert sent.inline is not None
    with pytest.raises(CorruptLedger):
        ledger.decode(ledger.encode(replace(sent, inline=sent.inline._replace(**lie))))


def test_an_open_refuses_what_no_manifest_could_carry() -> None:
    """A writer's name and partitions end up in every later manifest, so they are checked on the way in."""
    with pytest.raises(InvalidName):
        Open(writer="../a", partitions=(0,), nonce=nonce(1), prior=-1, last=NO_CHECKPOINT, identity=IDENTITY)
    with pytest.raises(ConfigError):
        Open(writer="a", partitions=(-1,), nonce=nonce(1), prior=-1, last=NO_CHECKPOINT, identity=IDENTITY)


def test_a_head_that_names_more_extents_than_it_holds_is_corrupt() -> None:
    """The count of a commit's extents is compared with its bytes, and with what a log can have."""
    payload = ledger.encode(_commit())[16:]
    held, count_at = 80 + 2 * 20, 76
    for count, tail in ((5, b""), (1 << 17, b""), (1 << 17, bytes(3 << 20)), ((1 << 32) - 1, b"")):
        lying = payload[:count_at] + struct.pack("<I", count) + payload[count_at + 4 : held] + tail
        with pytest.raises(CorruptLedger, match="extents"):
            ledger.decode(_sealed(1, 2, lying))


def test_an_open_of_more_partitions_than_a_log_can_have_is_corrupt() -> None:
    """Millions of partitions are refused by their bytes, before they are decoded."""
    many = replace(_open(), partitions=tuple(range(400_000)))
    with pytest.raises(CorruptLedger, match="partitions"):
        ledger.decode(ledger.encode(many))
    most = replace(_open(), writer="w" * 128, partitions=tuple(range(65_536)))
    assert ledger.decode(ledger.encode(most)) == most


@pytest.mark.parametrize("lost", [LossRange(-1, 0, 1), LossRange(0, -1, 1), LossRange(0, 5, 4)])
def test_a_loss_of_impossible_offsets_is_corrupt(lost: LossRange) -> None:
    """Nobody gives up what no log has."""
    with pytest.raises(CorruptLedger):
        ledger.decode(ledger.encode(replace(_loss(), ranges=(lost,))))


def test_a_commits_body_has_the_bytes_of_its_schema() -> None:
    """It is written without Avro's encoder: values of each type, long names, several handles, and none."""
    story = Story()
    handle = story.persist(story.open("A", 0, 1), 0, 1)
    text, numbers = {"": "", "ä" * 100: "ö" * 5000}, {"least": -(1 << 63), "most": (1 << 63) - 1, "none": 0, "few": -65}
    named: Metadata = {**text, **numbers, "fraction": -0.1, "whole": 2.0, "yes": True, "no": False}
    of = handle.checkpoint
    for metadata in ({}, named):
        for handles in ([], [handle], [handle] * 70):
            commit = Commit.of(
                epoch=1,
                nonce=of.nonce,
                base=NO_CHECKPOINT,
                checkpoint=of,
                metadata=metadata,
                handles=handles,
                witness=ORIGIN,
            )
            body = {"metadata": metadata, "handles": [one.to_record() for one in handles]}
            assert commit.body == RecordCodec("commit").encode(body)
            found = commit.read_body().metadata
            assert found == metadata
            assert [*map(type, found.values())] == [*map(type, metadata.values())]
