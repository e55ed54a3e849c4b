"""Handles: their contents, their continuation of the log, and their bytes."""

from dataclasses import replace
from typing import Any

import pytest

from statelog.errors import CheckpointMismatch, Corrupt, UnknownFormat
from statelog.schemas.avro import Datum, RecordCodec, datum_of
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Entry, Handle, Step, gaps_of
from tests.support.samples.chunks import mutations
from tests.support.samples.ledger_story import Story, nonce


def _three_steps() -> Handle:
    """Return handles of checkpoints 1, 2 and 3, none of them confirmed."""
    story = Story()
    epoch = story.open("A", 0, 1)
    one = story.persist(epoch, 0, 1, meta="one")
    return story.persist(epoch, 1, after=story.persist(epoch, 0, after=one))


def test_a_handle_includes_every_unconfirmed_checkpoint() -> None:
    """The last handle alone holds everything since the base."""
    handle = _three_steps()
    assert handle.base == NO_CHECKPOINT
    assert handle.checkpoint == Checkpoint(3, nonce(1))
    assert [entry.partition for entry in handle.entries] == [0, 1, 0, 1]
    assert (handle.changes, handle.size_bytes) == (40, 400)


def test_continuing_the_base_changes_nothing() -> None:
    """Continuing from the handle's own base changes nothing."""
    handle = _three_steps()
    assert handle.continuing(NO_CHECKPOINT) == handle


def test_continuing_drops_what_was_confirmed() -> None:
    """The last confirmed checkpoint becomes the base."""
    handle = _three_steps()
    rest = handle.continuing(Checkpoint(2, nonce(1)))
    assert rest.base == Checkpoint(2, nonce(1))
    assert [step.checkpoint_id for step in rest.steps] == [3]
    assert rest.checkpoint == handle.checkpoint


@pytest.mark.parametrize(
    "last",
    [Checkpoint(3, nonce(1)), Checkpoint(4, nonce(1)), Checkpoint(2, nonce(2)), Checkpoint(0, nonce(1))],
    ids=["all confirmed", "further", "another life", "another start"],
)
def test_continuing_refuses_what_the_log_went_on_without(last: Checkpoint) -> None:
    """A handle that was committed as a whole, or that another incarnation passed, is never committed."""
    with pytest.raises(CheckpointMismatch):
        _three_steps().continuing(last)


def test_a_continued_handle_commits() -> None:
    """The rest of a handle after an earlier checkpoint was confirmed is valid, and its steps count once."""
    story = Story()
    epoch = story.open("A", 0)
    one = story.persist(epoch, 0)
    two = story.persist(epoch, 0, after=one)
    assert story.commit(epoch, one) is None
    assert story.commit(epoch, two.continuing(story.last("A"))) is None
    assert story.last("A") == two.checkpoint


def test_a_handle_survives_its_bytes() -> None:
    """Both forms decode to the handle."""
    handle = _three_steps()
    assert Handle.from_bytes(handle.to_bytes()) == handle
    assert Handle.from_record(handle.to_record()) == handle


def test_every_mutation_of_a_handle_is_refused() -> None:
    """A flipped, missing or added byte is refused."""
    for damaged in mutations(_three_steps().to_bytes()):
        with pytest.raises((Corrupt, UnknownFormat)):
            Handle.from_bytes(damaged)


def test_a_newer_handle_format_is_unknown() -> None:
    """A version above ours is an unknown format, and not damage."""
    data = bytearray(_three_steps().to_bytes())
    data[4] = 3
    with pytest.raises(UnknownFormat):
        Handle.from_bytes(bytes(data))


GAPPED = Entry(0, 1, 3, 9, 90, 4, 10, 7, b"\1", (0, 3))


def _of(*entries: Entry) -> Handle:
    return replace(_three_steps(), steps=(Step(checkpoint_id=1, entries=entries),))


def test_an_entry_names_the_offset_of_every_chunk() -> None:
    """An entry names the offset of every chunk, with and without foreign records in between, and survives its bytes."""
    close = Entry(1, 1, 2, 9, 90, 4, 6, 7, b"\1")
    assert list(GAPPED.offsets) == [4, 5, 9]
    assert list(close.offsets) == [4, 5]
    assert gaps_of([4, 5, 9]) == (0, 3)
    assert gaps_of([4, 5]) == ()
    handle = _of(close, GAPPED, close, GAPPED._replace(partition=2, gaps=(2, 1)))
    assert Handle.from_bytes(handle.to_bytes()) == handle


@pytest.mark.parametrize(
    "changed",
    [
        {"first_offset": -1}, {"end_offset": 4}, {"end_offset": 1 << 62}, {"chunks": 0}, {"chunks": 10},
        {"chunks": 2}, {"partition": -1}, {"size_bytes": -1}, {"gaps": (-1, 4)}, {"gaps": ()}, {"gaps": (0, 3, 1)},
    ],
)  # fmt: skip
def test_an_entry_of_impossible_numbers_is_corrupt(changed: dict[str, Any]) -> None:
    """Contradicting offsets, counts and gaps are refused, whatever their checksum."""
    data = _of(GAPPED._replace(**changed)).to_bytes()
    with pytest.raises(Corrupt):
        Handle.from_bytes(data)


@pytest.mark.parametrize("ids", [(), (2, 2), (3, 1)])
def test_checkpoints_that_do_not_ascend_are_corrupt(ids: tuple[int, ...]) -> None:
    """A handle has at least one step, and each is later than the one before."""
    handle = replace(_three_steps(), steps=tuple(Step(checkpoint_id=number) for number in ids))
    with pytest.raises(Corrupt):
        Handle.from_bytes(handle.to_bytes())


def test_a_handle_has_the_bytes_of_its_schema() -> None:
    """A handle has the bytes of its schema, although Avro's encoder does not write it.

    The cases have no entries or many, numbers of every length, and meta records.
    """
    sizes = [
        Entry(n, 1 << n, n + 1, n + 1, 1 << 5 * n, 1 << 6 * n, n + 1 + (1 << 6 * n), n, bytes(n)) for n in range(9)
    ]
    several = replace(
        _three_steps(),
        steps=(
            Step(checkpoint_id=1, meta={"gone": None, "a/ä": b"", "long": bytes(300)}),
            Step(checkpoint_id=1 << 40, entries=(GAPPED, *sizes)),
            Step(checkpoint_id=(1 << 63) - 1, entries=tuple(sizes[:1] * 200)),
        ),
    )
    for handle in (_three_steps(), _of(), _of(GAPPED), several):
        steps = [_datum(step) for step in handle.steps]
        datum = datum_of(handle, identity=datum_of(handle.identity), **handle.base.to_fields("base"), steps=steps)
        assert handle.to_record() == RecordCodec("handle-1").encode(datum)


def _datum(step: Step) -> Datum:
    names = ("partitions", "sqns", "chunks", "changes", "size_bytes", "first_offsets", "end_offsets")
    return {
        "checkpoint_id": step.checkpoint_id,
        **{name: [entry[i] for entry in step.entries] for i, name in enumerate(names)},
        "checksums": b"".join(entry.checksum.to_bytes(8, "little") for entry in step.entries),
        "key_groups": [entry.key_groups for entry in step.entries],
        "gaps": [gap for entry in step.entries for gap in entry.gaps],
        "meta": step.meta,
    }


# ---- messages


def _sending() -> Handle:
    """Return a handle whose second step lists messages, in two change sets."""
    one, two, three = _three_steps().steps
    outputs = (Entry(0, 2, 1, 5, 70, 20, 21, 1 << 63, b""), GAPPED._replace(sqn=3, key_groups=b""))
    return replace(_three_steps(), steps=(one, replace(two, outputs=outputs), three))


def test_a_handle_lists_messages_beside_changes() -> None:
    """Messages are counted and listed by themselves, and survive the bytes; no sum of changes includes them."""
    handle = _sending()
    assert Handle.from_bytes(handle.to_bytes()) == handle
    assert (handle.entries, handle.changes, handle.size_bytes) == (
        _three_steps().entries, _three_steps().changes, _three_steps().size_bytes,
    )  # fmt: skip
    assert (handle.messages, len(handle.outputs)) == (14, 2)
    assert [*handle.listed] == [*handle.entries, *handle.outputs]
    assert handle.of_outputs.entries == handle.outputs
    assert handle.of_outputs.outputs == ()


def test_a_handle_of_messages_alone_is_not_quiet() -> None:
    """A handle with messages has to be committed, even without a change."""
    assert replace(_of(), steps=(Step(checkpoint_id=1, outputs=(GAPPED,)),)).is_quiet is False
    assert _of().is_quiet


def test_a_handle_without_messages_has_the_older_bytes() -> None:
    """Only messages make a handle one of version 2, in a commit, too."""
    assert (_three_steps().to_bytes()[4], _sending().to_bytes()[4]) == (1, 2)
    assert _three_steps().to_record().startswith(RecordCodec("handle-1").prefix)
    assert _sending().to_record().startswith(RecordCodec("handle").prefix)


def test_every_mutation_of_a_handle_with_messages_is_refused() -> None:
    """A flipped, missing or added byte is refused; a handle is never taken for one of another version."""
    for damaged in mutations(_sending().to_bytes()):
        with pytest.raises((Corrupt, UnknownFormat)):
            Handle.from_bytes(damaged)


def test_messages_have_the_bytes_of_their_schema() -> None:
    """Messages have the bytes of their schema, although Avro's encoder does not write them."""
    handle = _sending()
    steps = [{**_datum(step), "outputs": [*map(_output_datum, step.outputs)]} for step in handle.steps]
    datum = datum_of(handle, identity=datum_of(handle.identity), **handle.base.to_fields("base"), steps=steps)
    assert handle.to_record() == RecordCodec("handle").encode(datum)


def _output_datum(entry: Entry) -> Datum:
    others = {"messages": entry.changes, "checksum": entry.checksum.to_bytes(8, "little"), "gaps": list(entry.gaps)}
    return {**entry._asdict(), **others}


@pytest.mark.parametrize("changed", [{"chunks": 0}, {"first_offset": -1}, {"end_offset": 4}, {"gaps": (0, 3, 1)}])
def test_messages_of_impossible_numbers_are_corrupt(changed: dict[str, Any]) -> None:
    """Contradicting numbers of messages are refused, whatever their checksum."""
    data = replace(_of(), steps=(Step(checkpoint_id=1, outputs=(GAPPED._replace(**changed),)),)).to_bytes()
    with pytest.raises(Corrupt):
        Handle.from_bytes(data)
