"""Handles: what they say about themselves, how they continue the log, and their bytes."""

import pytest

from statelog.schemas.errors import CheckpointMismatch, Corrupt, UnknownFormat
from statelog.schemas.handle import NO_CHECKPOINT, Checkpoint, Handle
from tests.support.ledger_story import Story, nonce
from tests.support.mutation import mutations


def _three_steps() -> Handle:
    """Checkpoints 1, 2 and 3, none of them confirmed."""
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
    """Nothing was confirmed meanwhile."""
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
    """A handle that was committed as a whole, or was passed by another life, is never committed."""
    with pytest.raises(CheckpointMismatch):
        _three_steps().continuing(last)


def test_a_continued_handle_commits() -> None:
    """What is left of a handle after an earlier checkpoint was confirmed is valid, and its steps count once."""
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
    """No flipped, missing or added byte passes."""
    for damaged in mutations(_three_steps().to_bytes()):
        with pytest.raises((Corrupt, UnknownFormat)):
            Handle.from_bytes(damaged)


def test_a_newer_handle_format_is_unknown() -> None:
    """A version above ours says so, instead of looking damaged."""
    data = bytearray(_three_steps().to_bytes())
    data[4] += 1
    with pytest.raises(UnknownFormat):
        Handle.from_bytes(bytes(data))
