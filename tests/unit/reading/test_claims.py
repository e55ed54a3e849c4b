"""Subscriptions on the store: one file after the other, no moment without a hold, and one winner of each slot."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import Corrupt, NotFound, OffsetGone, ReaderInUse, StoreUnavailable, SubscriptionEnded
from statelog.log import Log
from statelog.materializer import run_round
from statelog.materializer.outcome import CompletedRound
from statelog.reading.claims import end_subscription, list_subscriptions, remove_subscription
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import subscription_path
from statelog.schemas.snapshot.claims import SubscriptionCap, holding
from statelog.testing.store import Fault, FaultHook
from tests.support.rigs.claims import SureSubscription
from tests.support.rigs.log import TwinLog, settings_for


def _state(log: Log) -> LedgerState:
    return log.describe().state


def _held(log: Log, holder_id: str = "one") -> SureSubscription:
    return SureSubscription(log, "lake", holder_id=holder_id, holder=f"query {holder_id}")


def _paths(twin: TwinLog) -> list[str]:
    return sorted(info.path.removeprefix("log/") for info in twin.disk.files("log/subscriptions/"))


def _written(count: int) -> TwinLog:
    twin = TwinLog()
    for number in range(count):
        twin.write({b"k": str(number).encode()})
    return twin


def test_a_move_writes_the_next_file_and_sweeps_the_last() -> None:
    """A move writes the next file with position, offsets and folded ledger, and removes the last one."""
    twin = _written(1)
    log = twin.open()
    held = _held(log)
    first = held.hold(_state(log), None)
    assert (first.number, first.is_taken_up, held.is_sure) == (1, False, True)
    twin.write({b"k": b"2"})
    twin.now_s += 5
    second = held.hold(_state(log), log.history.read().place.last, take_up=True)
    assert _paths(twin) == [subscription_path("lake", 2)]
    (stored,) = list_subscriptions(log.store).files
    assert (stored.subscription, stored.modified_s) == (second, twin.now_s)
    assert set(second.next_offsets) == {0, 1, 2}
    assert second.state == _state(log)
    assert (second.created_s, second.moved_s) == (first.created_s, first.moved_s + 5)


def test_another_process_goes_on_and_another_reading_does_not() -> None:
    """The id in the checkpoint distinguishes a restarted reader from another one.

    A claim that nobody took up is replaced.
    """
    log = _written(1).open()
    _held(log).hold(_state(log), None)
    assert _held(log, "two").hold(_state(log), None, take_up=True).number == 2
    with pytest.raises(ReaderInUse):
        _held(log).hold(_state(log), None)
    assert _held(log, "two").hold(_state(log), None).is_taken_up


def test_a_reader_that_lost_its_slot_is_told_why() -> None:
    """A reader whose slot was taken learns whether it was ended, or removed and replaced by another reader."""
    twin = _written(1)
    log = twin.open()
    held = _held(log)
    written = held.hold(_state(log), None, take_up=True)
    assert end_subscription(log.store, written, "idle", Environment())
    assert not end_subscription(log.store, written, "again", Environment()), "the slot was taken"
    with pytest.raises(SubscriptionEnded, match="idle"):
        held.hold(_state(log), None)
    assert _held(log, "two").hold(_state(log), None, take_up=True).number == 3
    assert _paths(twin) == [subscription_path("lake", 3)]
    with pytest.raises(ReaderInUse):
        held.hold(_state(log), None)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE])
def test_a_store_that_fails_at_any_call_never_leaves_the_reader_without_a_hold(fault: Fault) -> None:
    """A move whose calls fail, before, after or long after their effect, always leaves a hold low enough."""
    asked: list[str] = []
    fails_at = [-1]

    def ask(method: str, _path: str) -> Fault | None:
        asked.append(method)
        return fault if len(asked) - 1 == fails_at[0] else None

    for at in range(14):
        twin = _written(1)
        old = _held(twin.open()).hold(_state(twin.open()), None, take_up=True)
        twin.write({b"k": b"2"})
        fails_at[0] = -1
        log, faulty = twin.open(), twin.open(ask)
        fails_at[0] = at
        asked.clear()
        with suppress(StoreUnavailable):
            _held(faulty).hold(_state(log), None)
        twin.disk.settle()
        assert min(one.position for one in holding(list_subscriptions(log.store).files, log.descriptor.identity)) in (
            old.position, _state(log).position,
        )  # fmt: skip
        assert _held(log).hold(_state(log), None).position == _state(log).position, "the reader continues"
    assert len(asked) < 14, "each call of a move has failed once"


def test_a_listing_that_a_move_overtook_is_taken_again() -> None:
    """A listing that a move overtakes is repeated, so it finds the new file and not nothing."""
    twin = _written(1)
    log = twin.open()
    held = _held(log)
    held.hold(_state(log), None)
    moved: list[int] = []

    def move(method: str, path: str) -> None:
        if method == "read" and path.startswith("subscriptions/") and not moved:
            moved.append(held.hold(_state(log), None).number)

    (found,) = list_subscriptions(twin.open(_hook(move)).store).files
    assert [found.subscription.number] == moved == [2]


def _hook(call: object) -> FaultHook:
    return call  # type: ignore[return-value]  # a hook that only looks


def test_a_claim_looks_at_the_logs_start_after_it_was_written(tmp_path: Path) -> None:
    """A claim checks the log's start after its write.

    A truncated position is refused, and one below every snapshot has no promise.
    """
    twin = _written(1)
    log = twin.open()
    old, nothing = _state(log), LedgerState()
    for number in range(3):
        twin.write({b"k": str(number).encode()})
        twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    with pytest.raises(OffsetGone, match="Start again from a snapshot"):
        _held(log).hold(old, None)
    held = _held(log, "two")
    held.hold(_state(log), None)
    assert held.is_sure
    young = _written(1)
    young.environment.run(run_round, young.open(), settings_for(tmp_path))
    unsure = _held(young.open())
    unsure.hold(nothing, None)
    assert not unsure.is_sure, "the snapshot says nothing about records below its position"


def test_what_cannot_be_read_is_told_and_can_be_removed() -> None:
    """An unreadable file hides no other, stops its reader, and can be removed. Below an ended file it is harmless."""
    twin = _written(1)
    log = twin.open()
    _held(log).hold(_state(log), None)
    log.store.put(subscription_path("lake", 2), b"no subscription")
    found = list_subscriptions(log.store)
    assert (len(found.files), [one.number for one in found.unreadable]) == (1, [2])
    with pytest.raises(Corrupt, match="--remove"):
        _held(log).hold(_state(log), None)
    assert remove_subscription(log, "lake", "by hand").number == 2
    assert list_subscriptions(log.store).unreadable == ()
    assert remove_subscription(log, "lake", "again").ended == "by hand"
    with pytest.raises(NotFound):
        remove_subscription(log, "nobody", "by hand")


# ---- rounds


def _rounds(twin: TwinLog, scratch: Path, count: int, **changed: Any) -> list[CompletedRound]:
    outcomes = list[CompletedRound]()
    for number in range(count):
        twin.write({b"k": f"{number} {twin.now_s}".encode()})
        outcome = twin.environment.run(run_round, twin.open(), settings_for(scratch, **changed))
        assert isinstance(outcome, CompletedRound)
        outcomes.append(outcome)
    return outcomes


def _starts(log: Log) -> tuple[int, dict[int, int]]:
    return log.kafka.offsets(log.ledger_topic, [0])[0].start, {p: at.start for p, at in log.data_offsets().items()}


def test_a_stopped_reader_holds_truncation_until_it_moves(tmp_path: Path) -> None:
    """A stopped reader below the cap holds truncation, and rounds name it. Once it moves, the log is truncated."""
    twin = _written(2)
    log = twin.open()
    held = _held(log)
    written = held.hold(_state(log), None, take_up=True)
    week_s = 7 * 86_400.0
    for _ in range(2):
        twin.now_s += week_s / 2
        last = _rounds(twin, tmp_path, 3)[-1]
        ledger, data = _starts(log)
        assert ledger <= written.position
        assert all(data[p] <= offset for p, offset in written.next_offsets.items())
        assert last.cleanup.held_by == "subscription lake of query one"
    held.hold(_state(log), None)
    _rounds(twin, tmp_path, 3)
    assert _starts(log)[0] > written.position


def test_the_cap_ends_a_subscription_loudly_and_its_reader_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cap ends a subscription in one round, and a later round truncates. Its reader is refused with the reason."""
    twin = _written(2)
    log = twin.open()
    held = _held(log)
    written = held.hold(_state(log), None, take_up=True)
    twin.now_s += 11.0
    cap = SubscriptionCap(idle_s=10.0)
    outcomes = _rounds(twin, tmp_path, 4, subscriptions=cap)
    assert [one.reader for one in outcomes[0].cleanup.capped] == ["lake"]
    assert [outcome.cleanup.capped for outcome in outcomes[1:]] == [(), (), ()]
    assert "the subscription of reader lake was ended: its reader did not move it for 11 s" in caplog.text
    assert _paths(twin) == [subscription_path("lake", 2)]
    assert _starts(log)[0] > written.position
    with pytest.raises(SubscriptionEnded, match="materializer allows 10 s"):
        held.hold(written.state, None)


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_reader_that_moves_just_now_is_not_ended(tmp_path: Path, moves: int) -> None:
    """A reader that moves during a round is not ended: the end finds its slot taken, or a later file supersedes it."""
    twin = _written(2)
    log = twin.open()
    held = _held(log)
    held.hold(_state(log), None, take_up=True)
    twin.now_s += 11.0

    def move(name: str) -> None:
        if name == "after-check":
            for _ in range(moves):
                held.hold(_state(log), None)

    environment = replace(twin.environment, crash=move)
    twin.write({b"k": b"3"})
    outcome = environment.run(
        run_round, twin.open(), settings_for(tmp_path, subscriptions=SubscriptionCap(idle_s=10.0))
    )
    assert isinstance(outcome, CompletedRound)
    assert outcome.cleanup.capped == ()
    assert _paths(twin) == [subscription_path("lake", 1 + moves)]
    assert held.hold(_state(log), None).ended == ""


def test_who_removes_a_subscription_removes_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal outlasts a reader that moves meanwhile: the first end is superseded, the second one counts."""
    log = _written(1).open()
    held = _held(log)
    held.hold(_state(log), None, take_up=True)
    put, moves = log.store.put_if_absent, [2]

    def move_first(path: str, data: bytes) -> None:
        while moves[0]:
            moves[0] -= 1
            held.hold(_state(log), None)
        put(path, data)

    monkeypatch.setattr(log.store, "put_if_absent", move_first)
    assert remove_subscription(log, "lake", "by hand").number == 3
    with pytest.raises(SubscriptionEnded, match="by hand"):
        held.hold(_state(log), None)


def test_what_cannot_be_read_holds_everything_back(tmp_path: Path) -> None:
    """An unreadable subscription blocks truncation and deletion until a person removes it, and rounds report it."""
    twin = _written(2)
    log = twin.open()
    log.store.put(subscription_path("lake", 1), b"no subscription")
    outcomes = _rounds(twin, tmp_path, 3)
    assert all("reader lake cannot be read" in outcome.cleanup.held_back for outcome in outcomes)
    assert (_starts(log)[0], log.manifests.numbers()) == (0, [1, 2, 3])
    remove_subscription(log, "lake", "by hand")
    _rounds(twin, tmp_path, 1)
    assert log.manifests.numbers() == [3, 4]
    assert _starts(log)[0] > 0
