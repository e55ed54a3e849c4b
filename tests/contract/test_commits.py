"""The metadata and checkpoint ids of a commit, on the twins and on a real broker."""

import pytest

from statelog.errors import CheckpointMismatch
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.place import Metadata
from tests.support.rigs.log import LogRig


def test_metadata_come_back_as_what_they_are(rig: LogRig, log: Log) -> None:
    """Text, whole numbers, fractions and booleans keep their types in the next incarnation and in a recovery."""
    given: Metadata = {"text": "5", "whole": -(1 << 63), "one": 1, "yes": True, "fraction": 1.0, "": "\N{SNOWMAN}"}
    with Writer(log, "w") as writer:
        writer.commit(given, checkpoint_id=1)
        assert writer.last_commit is not None
        told = writer.last_commit.metadata
    with rig.open() as again, Writer(again, "w") as writer:
        last, recovered = writer.last_commit, recover(again).last_commit("w")

    assert last is not None
    assert recovered is not None
    for metadata in (told, last.metadata, recovered.metadata):
        assert {name: (type(value), value) for name, value in metadata.items()} == {
            name: (type(value), value) for name, value in given.items()
        }


def test_without_an_id_the_next_checkpoint_is_made(rig: LogRig, log: Log) -> None:
    """Without an id the next checkpoint is one more than the last, in flight or of the previous incarnation too."""
    with Writer(log, "w") as writer:
        assert writer.commit().checkpoint.id == 1
        assert writer.commit(checkpoint_id=5).checkpoint.id == 5
    with rig.open() as again, Writer(again, "w") as writer:
        first, second = writer.persist(), writer.persist()
        assert (first.checkpoint_id, second.checkpoint_id) == (6, 7)
        assert writer.confirm(first.result()).checkpoint.id == 6
        assert writer.commit(metadata={"offset": 3}) == writer.last_commit
        assert writer.last_commit is not None
        assert (writer.last_commit.checkpoint.id, writer.last_commit.metadata) == (8, {"offset": 3})


def test_behind_the_last_id_there_is_none(log: Log) -> None:
    """The greatest id is the last: the next one is refused, and ids do not start again."""
    with Writer(log, "w") as writer:
        writer.commit(checkpoint_id=(1 << 63) - 1)
        with pytest.raises(CheckpointMismatch, match="from 1 to 2\\^63 - 1"):
            writer.commit()
