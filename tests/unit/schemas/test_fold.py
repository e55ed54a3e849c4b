"""The ledger's rules one by one: what an Open fences, and what makes a Commit void."""

from dataclasses import replace

import pytest

from statelog.schemas.ledger.fold import LedgerFold, VoidReason
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint
from statelog.schemas.ledger.records import AcceptLoss, Commit, CommitBody, LossRange, pack_extents
from statelog.schemas.ledger.state import MetaRecord
from tests.support.samples.ledger_story import IDENTITY, Story, nonce


def test_an_open_owns_its_partitions_from_its_offset_on() -> None:
    """The epoch is the Open's offset, and it is live."""
    story = Story()
    epoch = story.open("A", 0, 1)
    live = story.fold.live_epoch(epoch)
    assert live is not None
    assert (live.epoch, live.writer, live.partitions) == (0, "A", frozenset({0, 1}))


def test_a_ghost_open_is_void_and_fences_nobody() -> None:
    """An Open that arrives after a newer one that it had not read changes nothing."""
    story = Story()
    ghost = story.new_open("A", 0)
    epoch = story.open("A", 0)
    verdict = story.add(ghost)
    assert verdict is not None
    assert verdict.reason == VoidReason.STALE_OPEN
    assert story.fold.live_epoch(epoch) is not None
    assert story.commit(epoch, story.persist(epoch, 0)) is None


def test_an_open_that_missed_a_commit_is_void() -> None:
    """An opener has to know the writer's last checkpoint, or it would resume from too early a position."""
    story = Story()
    first = story.open("A", 0)
    late = replace(story.new_open("A", 0), prior=first)
    assert story.commit(first, story.persist(first, 0)) is None
    verdict = story.add(late)
    assert verdict is not None
    assert verdict.reason == VoidReason.STALE_OPEN


def test_an_open_of_another_log_is_void() -> None:
    """A record that was written for another cluster or topic fences no writer."""
    story = Story()
    stranger = replace(story.new_open("A", 0), identity=replace(IDENTITY, cluster_id="another"))
    verdict = story.add(stranger)
    assert verdict is not None
    assert verdict.reason == VoidReason.OTHER_LOG


def test_partial_overlap_fences_the_whole_epoch() -> None:
    """A writer that loses one partition may not commit to its others either."""
    story = Story()
    old = story.open("A", 0, 1)
    lost = story.persist(old, 0)
    story.open("B", 1, 2)
    assert story.commit(old, lost) == VoidReason.FENCED


def test_the_same_name_fences_without_a_shared_partition() -> None:
    """A second incarnation of a writer ends the first on all partitions, since checkpoints are one sequence."""
    story = Story()
    old = story.open("A", 0)
    lost = story.persist(old, 0)
    new = story.open("A", 1)
    assert story.commit(old, lost) == VoidReason.FENCED
    assert story.commit(new, story.persist(new, 1)) is None


def test_writers_on_other_partitions_do_not_disturb_each_other() -> None:
    """Two writers on disjoint partitions both stay live."""
    story = Story()
    a, b = story.open("A", 0), story.open("B", 1)
    assert story.commit(a, story.persist(a, 0)) is None
    assert story.commit(b, story.persist(b, 1)) is None


def test_a_commit_without_its_epochs_nonce_is_void() -> None:
    """A commit without its epoch's nonce is void: after a lost ledger tail, another epoch may have the same number."""
    story = Story()
    epoch = story.open("A", 0)
    forged = replace(story.new_commit(epoch, story.persist(epoch, 0)), nonce=nonce(99))
    verdict = story.add(forged)
    assert verdict is not None
    assert verdict.reason == VoidReason.UNKNOWN_EPOCH


def test_a_commit_of_an_epoch_that_never_was_is_void() -> None:
    """A commit of an epoch without an Open is void."""
    story = Story()
    epoch = story.open("A", 0)
    lost = replace(story.new_commit(epoch, story.persist(epoch, 0)), epoch=7)
    verdict = story.add(lost)
    assert verdict is not None
    assert verdict.reason == VoidReason.UNKNOWN_EPOCH


def test_a_commit_outside_its_partitions_is_void() -> None:
    """A commit that lists a partition its writer has not opened is void."""
    story = Story()
    epoch = story.open("A", 0)
    assert story.commit(epoch, story.persist(epoch, 0, 1)) == VoidReason.NOT_OWNED


@pytest.mark.parametrize(("first", "end"), [(-1, 5), (3, 3), (3, 2), (3, 1 << 62), (1 << 62, (1 << 62) + 1)])
def test_a_commit_of_offsets_that_no_log_has_is_void(first: int, end: int) -> None:
    """A commit of impossible offsets is void, since no chunk could follow. Its partitions continue as they were."""
    story = Story()
    epoch = story.open("A", 0)
    commit = story.new_commit(epoch, story.persist(epoch, 0))
    verdict = story.add(replace(commit, packed_extents=pack_extents([(0, first, end)])))
    assert verdict is not None
    assert verdict.reason is VoidReason.IMPOSSIBLE
    assert story.fold.committed_position(0) == 0
    assert story.commit(epoch, story.persist(epoch, 0)) is None


def test_commits_below_the_end_of_an_earlier_one_are_void() -> None:
    """A commit one offset below the committed position is void, and one at the position is not."""
    story = Story()
    epoch = story.open("A", 0)
    story.ends[0] = 5
    assert story.commit(epoch, story.persist(epoch, 0)) is None
    assert story.fold.committed_position(0) == 6
    story.ends[0] = 5
    assert story.commit(epoch, story.persist(epoch, 0)) is VoidReason.OVERLAP
    story.ends[0] = 6
    assert story.commit(epoch, story.persist(epoch, 0)) is None


def test_the_same_commit_twice_counts_once() -> None:
    """A repeated commit is void, since it does not continue the last checkpoint."""
    story = Story()
    epoch = story.open("A", 0)
    commit = story.new_commit(epoch, story.persist(epoch, 0))
    assert story.add(commit) is None
    again = story.add(commit)
    assert again is not None
    assert again.reason == VoidReason.WRONG_BASE


def test_a_skipped_handle_makes_the_next_one_void() -> None:
    """A commit must continue the last valid checkpoint, so no persisted handle in between can be left out."""
    story = Story()
    first = story.open("A", 0)
    skipped = story.persist(first, 0)
    second = story.open("A", 0)
    built_on = replace(story.persist(second, 0), base=skipped.checkpoint)
    assert story.commit(second, built_on) == VoidReason.WRONG_BASE


def test_a_base_of_the_same_id_but_another_life_is_void() -> None:
    """A handle continues only the base that it names: two incarnations can both persist checkpoint 1."""
    story = Story()
    first = story.open("A", 0)
    one = story.persist(first, 0)
    second = story.open("A", 1)
    assert story.commit(second, story.persist(second, 1)) is None
    assert story.last("A").id == one.checkpoint.id
    third = story.open("A", 0, 1)
    orphan = replace(story.persist(third, 0), base=one.checkpoint)
    assert story.commit(third, orphan) == VoidReason.WRONG_BASE


@pytest.mark.parametrize("step", [0, -1])
def test_a_checkpoint_id_has_to_grow(step: int) -> None:
    """A commit that continues the last checkpoint with no greater id is void."""
    story = Story()
    epoch = story.open("A", 0)
    assert story.commit(epoch, story.persist(epoch, 0)) is None
    commit = story.new_commit(epoch, story.persist(epoch, 0))
    stuck = replace(commit, checkpoint=Checkpoint(1 + step, commit.nonce))
    verdict = story.add(stuck)
    assert verdict is not None
    assert verdict.reason == VoidReason.NOT_LATER


def test_a_commit_below_the_committed_position_is_void() -> None:
    """A commit of change sets below the committed position is void: some reader would apply them in another order."""
    story = Story()
    first = story.open("A", 0)
    early = story.persist(first, 0)
    other = story.open("B", 0)
    assert story.commit(other, story.persist(other, 0)) is None
    again = story.open("A", 0)
    assert story.commit(again, early) == VoidReason.OVERLAP
    assert story.fold.committed_position(0) == 2


def test_all_entries_are_checked_against_the_positions_before_the_commit() -> None:
    """Two handles of one commit may interleave in a partition, since all are checked against the earlier positions."""
    story = Story()
    epoch = story.open("A", 0)
    two = [story.persist(epoch, 0), story.persist(epoch, 0)]
    assert story.commit(epoch, *reversed(two)) is None
    assert story.fold.committed_position(0) == 2


def test_a_quiet_commit_moves_the_checkpoint_and_nothing_else() -> None:
    """A commit without change sets moves the checkpoint, with the source's position, and nothing else."""
    story = Story()
    epoch = story.open("A", 0)
    assert story.commit(epoch, story.persist(epoch)) is None
    last = story.fold.last_commit("A")
    assert last is not None
    assert (last.checkpoint.id, last.offset, last.metadata) == (1, 1, {"checkpoint": "1"})
    assert story.fold.freeze().committed_positions == {}


def test_a_fenced_quiet_commit_is_void() -> None:
    """A commit needs a live epoch, even if it lists nothing."""
    story = Story()
    old = story.open("A", 0)
    quiet = story.persist(old)
    story.open("A", 0)
    assert story.commit(old, quiet) == VoidReason.FENCED


def test_a_final_commit_ends_the_writers_row() -> None:
    """A final commit removes the writer's row, so its name is free again. Its commits remain."""
    story = Story()
    epoch = story.open("A", 0)
    assert story.commit(epoch, story.persist(epoch, 0, meta="kept"), final=True) is None
    assert story.fold.live_epoch(epoch) is None
    assert story.fold.last_commit("A") is None
    assert story.fold.freeze().writers == ()
    assert story.fold.freeze().committed_positions == {0: 1}
    assert story.fold.freeze().meta == (MetaRecord("A", "key", b"kept"),)


def test_a_ghost_of_a_finished_writer_fences_nobody() -> None:
    """The partitions retain their newest Open after the writer's row was removed, so its late Open is void."""
    story = Story()
    ghost = story.new_open("A", 0)
    epoch = story.open("A", 0)
    assert story.commit(epoch, story.persist(epoch, 0), final=True) is None
    verdict = story.add(ghost)
    assert verdict is not None
    assert verdict.reason == VoidReason.STALE_OPEN


def test_a_later_life_adopts_a_handle() -> None:
    """The owner of a newer epoch commits what an earlier incarnation of the same writer persisted."""
    story = Story()
    first = story.open("A", 0)
    stored = story.persist(first, 0)
    second = story.open("A", 0)
    assert story.commit(second, stored) is None
    assert story.last("A") == Checkpoint(1, nonce(1))
    following = story.persist(second, 0)
    assert story.commit(second, following) is None
    assert story.last("A") == Checkpoint(2, nonce(2))


def test_the_last_meta_record_of_a_key_wins() -> None:
    """The last meta record for a writer and a key counts."""
    story = Story()
    epoch = story.open("A", 0)
    assert story.commit(epoch, story.persist(epoch, meta="old")) is None
    assert story.commit(epoch, story.persist(epoch, meta="new")) is None
    assert story.fold.freeze().meta == (MetaRecord("A", "key", b"new"),)


def test_a_meta_record_can_be_removed() -> None:
    """Its writer can remove a meta record in a later commit, or later in the same one.

    Removing a missing one is allowed.
    """
    story = Story()
    epoch = story.open("A", 0)
    handle = story.persist(epoch, meta="old")
    gone = replace(handle, steps=(replace(handle.steps[0], meta={"key": None, "never there": None}),))
    assert story.commit(epoch, handle) is None
    thawed = LedgerFold(IDENTITY, story.fold.freeze())
    later = replace(gone, base=handle.checkpoint, steps=(replace(gone.steps[0], checkpoint_id=2),))
    record = story.new_commit(epoch, later)
    assert (story.add(record), thawed.apply(2, record)) == (None, None)
    assert (story.fold.freeze().meta, thawed.freeze().meta) == ((), ())


def test_an_accepted_loss_is_recorded() -> None:
    """An accepted loss stays in the state for every later reader."""
    story = Story()
    lost = LossRange(0, 5, 9)
    assert story.add(AcceptLoss(ranges=(lost,), reason="disk", operator="ann")) is None
    assert story.fold.accepted == (lost,)
    assert story.fold.freeze().accepted == (lost,)


def test_a_strangers_record_only_takes_an_offset() -> None:
    """A record without our magic advances the position and changes nothing else."""
    story = Story()
    before = replace(story.fold.freeze(), position=1)
    assert story.add(None) is None
    assert story.fold.freeze() == before


def test_check_judges_without_folding() -> None:
    """A committer can check a record that is not in the ledger yet."""
    story = Story()
    epoch = story.open("A", 0)
    before = story.fold.freeze()
    assert story.fold.check(story.new_commit(epoch, story.persist(epoch, 0))) is None
    assert story.fold.freeze() == before


def test_advance_steps_over_an_end_without_records() -> None:
    """The position may move on where the ledger holds nothing, and never back."""
    fold = LedgerFold(IDENTITY)
    fold.advance(7)
    assert fold.freeze().position == 7
    with pytest.raises(AssertionError):
        fold.advance(6)
    with pytest.raises(AssertionError):
        fold.apply(6, None)


def test_a_fold_goes_on_from_a_frozen_state() -> None:
    """Fencing, bases and positions survive freezing."""
    story = Story()
    old = story.open("A", 0)
    lost = story.new_commit(old, story.persist(old, 0))
    new = story.open("A", 0)
    good = story.new_commit(new, story.persist(new, 0))
    thawed = LedgerFold(IDENTITY, story.fold.freeze())
    void = thawed.apply(2, lost)
    assert void is not None
    assert void.reason == VoidReason.FENCED
    assert thawed.apply(3, good) is None
    assert thawed.last_checkpoint("A") == good.checkpoint
    assert thawed.last_checkpoint("B") == NO_CHECKPOINT


@pytest.mark.parametrize("bound", [0, 500, 1 << 20])
def test_meta_records_wait_undecoded_until_they_are_asked_for(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    """A fold decodes no meta records until they are requested or exceed a bound. The state is the same either way."""
    monkeypatch.setattr("statelog.schemas.ledger.fold._MOST_PENDING_BYTES", bound)
    decoded: list[int] = []
    read_body = Commit.read_body

    def counted(commit: Commit) -> CommitBody:
        decoded.append(commit.epoch)
        return read_body(commit)

    monkeypatch.setattr(Commit, "read_body", counted)
    story = Story()
    epoch = story.open("A", 0)
    for number in range(8):
        assert story.commit(epoch, story.persist(epoch, meta=str(number))) is None
    before = len(decoded)

    assert story.fold.freeze().meta == (MetaRecord("A", "key", b"7"),)
    assert {0: before == 8, 500: 0 < before < 8, 1 << 20: before == 0}[bound], before
