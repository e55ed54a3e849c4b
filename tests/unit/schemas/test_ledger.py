"""Ledger records: their bytes, and the readers that they stop."""

import struct
from dataclasses import replace
from typing import Any

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
    """Return a record as any version writes it: prefix and checksum never change."""
    checksum = xxhash.xxh3_64_intdigest(b"\0\0" + payload, seed=version << 8 | kind)
    return b"SLLG" + struct.pack("<BB2xQ", version, kind, checksum) + payload


@pytest.mark.parametrize("record", RECORDS, ids=["open", "commit", "accept loss", "inline", "commits"])
def test_records_survive_their_bytes(record: LedgerRecord) -> None:
    """A record decodes to itself."""
    assert ledger.decode(ledger.encode(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=["open", "commit", "accept loss", "inline", "commits"])
def test_every_mutation_of_a_record_stops_its_reader(record: LedgerRecord) -> None:
    """A flipped, missing or added byte stops the reader. A record without the magic is a foreign one."""
    for damaged in mutations(ledger.encode(record)):
        if damaged[:4] != b"SLLG":
            assert ledger.decode(damaged) is None
            continue
        with pytest.raises((CorruptLedger, UnknownFormat)):
            ledger.decode(damaged)


@pytest.mark.parametrize("value", [b"", b"SLL", b"hello, ledger", b"SLCH" + bytes(40)])
def test_a_record_without_the_magic_is_a_strangers(value: bytes) -> None:
    """A record without the magic is void for every reader, and stops none."""
    assert ledger.decode(value) is None


@pytest.mark.parametrize(("version", "kind"), [(3, 1), (5, 2), (2, 3), (3, 6), (1, 7), (1, 0), (9, 9)])
def test_an_unknown_version_or_kind_stops_every_reader(version: int, kind: int) -> None:
    """An unknown version or kind stops every reader, since it might be a commit."""
    with pytest.raises(UnknownFormat):
        ledger.decode(_sealed(version, kind, b"whatever"))


def test_an_open_of_version_1_is_read() -> None:
    """An Open of version 1 names the position that its writer had folded, without the record below it."""
    found = ledger.decode(
        bytes.fromhex(
            "534c4c47010100003b8e0c585b957f72c3018c541f96900489a00277020200000102030405060708090a0b0c0d0e0f01"
            "000000000000000000000000000000000002430244024c02"
        )
    )
    assert isinstance(found, Open)
    assert (found.writer, found.partitions, found.witness) == ("w", (1,), Place(1))


def test_a_whole_record_that_says_nonsense_is_corrupt() -> None:
    """A payload that does not decode is corrupt, even under a right checksum."""
    for kind in (1, 2, 3, 4, 5):
        with pytest.raises(CorruptLedger):
            ledger.decode(_sealed(1, kind, b"nonsense"))


def test_bytes_after_an_open_are_corrupt() -> None:
    """Bytes after an Open are corrupt: a decoder consumes its input to the last byte."""
    payload = ledger.encode(_open())[16:]
    assert ledger.decode(_sealed(1, 1, payload)) == _open()
    with pytest.raises(CorruptLedger):
        ledger.decode(_sealed(1, 1, payload + b"\0"))


def test_a_commits_body_gives_back_what_it_was_made_of() -> None:
    """The body of a commit gives back metadata and handles, which are decoded on request."""
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
    """A body that contradicts its head is corrupt, since the head decides validity."""
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
    """A commit says where its changes begin in the record, and how large they are. Its size is that of the record."""
    sent = _inline()
    value = ledger.encode(sent)
    found = ledger.decode(value)
    assert isinstance(found, Commit)
    assert (found, found.batch, found.size_bytes) == (sent, b"", len(value))
    assert value[found.batch_start :] == sent.batch
    assert found.batch_start % 8 == 0


def test_each_of_several_commits_says_where_its_changes_begin() -> None:
    """The changes of several commits begin one behind the other, at multiples of 8 bytes of the record."""
    several = Commits((_commit(), _inline(), _inline()))
    value = ledger.encode(several)
    found = ledger.decode(value)
    assert isinstance(found, Commits)
    for one in found.commits[1:]:
        assert one.batch_start % 8 == 0
        assert value[one.batch_start :].startswith(_inline().batch)


def test_a_record_of_several_commits_holds_commits_alone() -> None:
    """No commit at all, an unknown version, or a cut-off one in a record of several stops every reader."""
    item = ledger.encode(_commit())[16:]
    for payload in (b"", struct.pack("<IB3x", len(item), 1) + item, struct.pack("<IB3x", len(item) + 9, 2) + item):
        with pytest.raises(CorruptLedger):
            ledger.decode(_sealed(1, 6, payload))


@pytest.mark.parametrize(
    "lie", [{"size_bytes": 1 << 20}, {"size_bytes": 0}, {"changes": 0}, {"partitions": 0}, {"first_key_group": 128}]
)
def test_a_head_that_describes_other_changes_is_corrupt(lie: dict[str, Any]) -> None:
    """A head whose numbers cannot describe the changes behind it is corrupt."""
    sent = _inline()
    assert sent.inline is not None
    with pytest.raises(CorruptLedger):
        ledger.decode(ledger.encode(replace(sent, inline=sent.inline._replace(**lie))))


def test_an_open_refuses_what_no_manifest_could_carry() -> None:
    """An Open checks its writer's name and partitions, which every later manifest carries."""
    with pytest.raises(InvalidName):
        Open(writer="../a", partitions=(0,), nonce=nonce(1), prior=-1, last=NO_CHECKPOINT, identity=IDENTITY)
    with pytest.raises(ConfigError):
        Open(writer="a", partitions=(-1,), nonce=nonce(1), prior=-1, last=NO_CHECKPOINT, identity=IDENTITY)


def test_a_head_that_names_more_extents_than_it_holds_is_corrupt() -> None:
    """The count of a commit's extents must agree with its bytes, and with a possible log."""
    payload = ledger.encode(_commit())[16:]
    held, count_at = 80 + 2 * 20, 76
    for count, tail in ((5, b""), (1 << 17, b""), (1 << 17, bytes(3 << 20)), ((1 << 32) - 1, b"")):
        lying = payload[:count_at] + struct.pack("<I", count) + payload[count_at + 4 : held] + tail
        with pytest.raises(CorruptLedger, match="extents"):
            ledger.decode(_sealed(1, 2, lying))


def test_an_open_of_more_partitions_than_a_log_can_have_is_corrupt() -> None:
    """An Open of millions of partitions is refused by its bytes, before they are decoded."""
    many = replace(_open(), partitions=tuple(range(400_000)))
    with pytest.raises(CorruptLedger, match="partitions"):
        ledger.decode(ledger.encode(many))
    most = replace(_open(), writer="w" * 128, partitions=tuple(range(65_536)))
    assert ledger.decode(ledger.encode(most)) == most


@pytest.mark.parametrize("lost", [LossRange(-1, 0, 1), LossRange(0, -1, 1), LossRange(0, 5, 4)])
def test_a_loss_of_impossible_offsets_is_corrupt(lost: LossRange) -> None:
    """An accepted loss of impossible offsets is corrupt."""
    with pytest.raises(CorruptLedger):
        ledger.decode(ledger.encode(replace(_loss(), ranges=(lost,))))


def test_a_commits_body_has_the_bytes_of_its_schema() -> None:
    """The body of a commit has the bytes of its schema, although Avro's encoder does not write it.

    The cases have values of each type, long names, and several handles or none.
    """
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
