"""Commits with messages: carried in their own record, or listed by their handles. Their bytes, and what those stop."""

import struct
from dataclasses import replace
from typing import Any

import pytest
import xxhash

from statelog.errors import CorruptLedger, UnknownFormat
from statelog.producer.committer import Cargo
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.handle import Entry, Handle, Step
from statelog.schemas.ledger.inline import CommitOutputs, Inline
from statelog.schemas.ledger.place import ORIGIN
from statelog.schemas.ledger.records import Commit, Commits
from statelog.schemas.outputs.batch import read_outputs
from tests.support.samples.chunks import mutations
from tests.support.samples.format_examples import EXAMPLES
from tests.support.samples.ledger_story import Story, nonce
from tests.support.samples.outputs import OUTPUTS

_INLINE: Commit = EXAMPLES["inline-commit"].value  # type: ignore[assignment]  # an example is of any type
_LISTED = Entry(1, 1, 2, 7, 90, 20, 22, 5, b"")


def _handle(*outputs: Entry) -> Handle:
    story = Story()
    handle = story.persist(story.open("A", 0, 1), 0)
    return replace(handle, steps=(*handle.steps[:-1], replace(handle.steps[-1], outputs=outputs)))


def _commit(*handles: Handle, changes: bool = False, carried: bool = True) -> Commit:
    assert _INLINE.inline is not None
    described: tuple[Inline, bytes] | None = (_INLINE.inline, _INLINE.batch) if changes else None
    return Commit.of(
        epoch=_INLINE.epoch,
        nonce=_INLINE.nonce,
        base=_INLINE.base,
        checkpoint=_INLINE.checkpoint,
        metadata={"offset": 1},
        handles=handles,
        witness=ORIGIN,
        **Cargo.of(described, OUTPUTS if carried else [])._asdict(),
    )


COMMITS = {
    "carried": _commit(),
    "carried with changes": _commit(changes=True),
    "listed": _commit(_handle(_LISTED), carried=False),
    "listed, with changes carried": _commit(_handle(_LISTED), changes=True, carried=False),
    "listed and carried": _commit(_handle(_LISTED), changes=True),
}


@pytest.mark.parametrize("name", list(COMMITS))
def test_a_commit_survives_its_bytes(name: str) -> None:
    """A commit with messages is of version 4, decodes to itself, and has the size that it says."""
    sent = COMMITS[name]
    value = ledger.encode(sent)
    found = ledger.decode(value)
    assert isinstance(found, Commit)
    assert (value[4], found, found.size_bytes, sent.size_bytes) == (4, sent, len(value), len(value))
    assert found.outputs is not None
    assert found.read_body().handles == sent.read_body().handles


@pytest.mark.parametrize("name", ["carried", "carried with changes", "listed and carried"])
def test_messages_stay_in_the_record(name: str) -> None:
    """A commit that was read says where its messages begin, and its changes, each at a multiple of 8."""
    sent = COMMITS[name]
    value = ledger.encode(sent)
    found = ledger.decode(value)
    assert isinstance(found, Commit)
    assert found.outputs is not None
    assert (found.batch, found.output_start % 8) == (b"", 0)
    assert read_outputs(value, found.output_start, found.outputs.messages) == OUTPUTS
    if found.inline is not None:
        assert value[found.batch_start :] == sent.batch


def test_several_commits_keep_their_messages_apart() -> None:
    """Each of several commits says where its own messages begin. Such a record is of version 2."""
    several = Commits((COMMITS["carried"], _INLINE, COMMITS["listed and carried"], COMMITS["listed"]))
    value = ledger.encode(several)
    found = ledger.decode(value)
    assert isinstance(found, Commits)
    assert (value[4], found) == (2, several)
    for one in found.commits:
        if one.outputs is not None and one.outputs.messages:
            assert read_outputs(value, one.output_start, one.outputs.messages) == OUTPUTS
    assert ledger.encode(Commits((_INLINE, _INLINE)))[4] == 1


@pytest.mark.parametrize("name", list(COMMITS))
def test_every_mutation_stops_its_reader(name: str) -> None:
    """A flipped, missing or added byte stops the reader, or makes the record a foreign one."""
    for damaged in mutations(ledger.encode(COMMITS[name])):
        if damaged[:4] != b"SLLG":
            assert ledger.decode(damaged) is None
            continue
        with pytest.raises((CorruptLedger, UnknownFormat)):
            ledger.decode(damaged)


def test_extents_span_listed_messages() -> None:
    """Extents, by which the fold judges, span messages as they span changes."""
    listed, alone = COMMITS["listed"], _commit(_handle(_LISTED, _LISTED._replace(partition=0)), carried=False)
    plain = _commit(_handle(), carried=False)
    assert (plain.extents, plain.outputs) == ([(0, 0, 1)], None)
    assert listed.extents == [(0, 0, 1), (1, 20, 22)]
    assert alone.extents == [(0, 0, 22), (1, 20, 22)]
    assert ledger.encode(plain)[4] == 2


def _sealed(version: int, payload: bytes) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(b"\0\0" + payload, seed=version << 8 | 2)
    return b"SLLG" + struct.pack("<BB2xQ", version, 2, checksum) + payload


@pytest.mark.parametrize(
    "lie",
    [
        {"outputs": CommitOutputs(0, 8)},
        {"outputs": CommitOutputs(4, 0)},
        {"outputs": CommitOutputs(4, 1 << 20)},
        {"outputs": CommitOutputs(is_listed=True)},
        {"outputs": None},
    ],
)
def test_a_head_that_describes_other_messages_is_corrupt(lie: dict[str, Any]) -> None:
    """A head whose numbers cannot describe the messages behind it is corrupt."""
    for sent in (COMMITS["carried with changes"], COMMITS["listed and carried"]):
        with pytest.raises(CorruptLedger):
            ledger.decode(ledger.encode(replace(sent, **lie)))


def test_a_head_that_hides_listed_messages_is_corrupt() -> None:
    """A head that does not say whether handles list messages, or wrongly says so, contradicts its body."""
    listed, carried = COMMITS["listed, with changes carried"], COMMITS["carried with changes"]
    assert carried.outputs is not None
    for lying in (replace(listed, outputs=None), replace(carried, outputs=carried.outputs._replace(is_listed=True))):
        found = ledger.decode(ledger.encode(lying))
        assert isinstance(found, Commit)
        with pytest.raises(CorruptLedger, match="differ"):
            found.read_body()


def test_a_flag_that_is_not_known_stops_the_reader() -> None:
    """A flag of a newer program is an unknown format. Nobody writes version 4 without a flag, or 3 without changes."""
    payload = ledger.encode(COMMITS["carried"])[16:]
    at = 80 + 24 + 22  # behind the head, the witness, and the first fields of the inline head
    for flags, error in ((2 | 8, UnknownFormat), (0, CorruptLedger)):
        with pytest.raises(error):
            ledger.decode(_sealed(4, payload[:at] + struct.pack("<H", flags) + payload[at + 2 :]))
    with pytest.raises(CorruptLedger):
        ledger.decode(_sealed(3, payload))


def test_the_fold_takes_messages_for_granted() -> None:
    """A commit of messages alone is valid, moves its writer, and its extent moves the committed position."""
    story = Story()
    epoch = story.open("A", 0, 1)
    handle = story.persist(epoch, 0)
    step = Step(checkpoint_id=handle.checkpoint.id, outputs=(_LISTED,))
    assert story.commit(epoch, replace(handle, steps=(step,))) is None
    assert story.last("A").nonce == nonce(1)
    assert story.fold.committed_position(1) == 22
