"""Properties of a round's output: the folded delta, spilled or not, and rounds cut by any budget, against a dict."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.environment import Environment
from statelog.materializer.outcome import CompletedRound, SkippedRound
from statelog.materializer.round import run_round
from statelog.materializer.sorted_tables import delta_tables
from statelog.materializer.work import RoundWork
from statelog.reading.replay import Converter
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.snapshot.runs import first_unsorted
from tests.support.rigs.log import TwinLog, settings_for, state_of, state_of_snapshot

KEYS = st.binary(max_size=3)
COMMITS = st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=4), min_size=1, max_size=8), max_size=6)


@settings(deadline=None, max_examples=60)
@given(commits=COMMITS, fold_bytes=st.sampled_from([1, 600, 1 << 20]))
def test_the_delta_is_the_last_change_of_every_key_in_order(
    commits: list[dict[bytes, bytes | None]], fold_bytes: int
) -> None:
    """The delta, however often it spills, is strictly sorted and has the last committed change of every key."""
    twin = TwinLog()
    last: dict[bytes, bytes | None] = {}
    for changes in commits:
        twin.write(changes)
        last |= changes
    log = twin.open()
    contents = [found.contents for found in log.replay().commits(log.ledger.end())]
    plan = plan_replay(contents, range(twin.partitions))
    with TemporaryDirectory() as scratch:
        work = RoundWork(
            log=log, scratch=Path(scratch), go_on=lambda: None, environment=Environment(), fold_bytes=fold_bytes
        )
        tables = list(delta_tables(log, plan, Converter(log), work, drop_deletes=False))
        assert list(Path(scratch).iterdir()) == []
    if not tables:
        assert last == {}
        return
    delta = pa.concat_tables(tables)
    assert first_unsorted(delta) is None
    assert dict(zip(delta.column("key").to_pylist(), delta.column("value").to_pylist(), strict=True)) == last


@settings(deadline=None, max_examples=40)
@given(commits=COMMITS, budget_bytes=st.integers(1, 2000), budget_commits=st.integers(1, 4), fanout=st.integers(2, 3))
def test_rounds_of_any_budget_reach_the_committed_state(
    commits: list[dict[bytes, bytes | None]], budget_bytes: int, budget_commits: int, fanout: int
) -> None:
    """Every round makes progress, ends at a commit, and its snapshot is the state at exactly its position."""
    twin = TwinLog()
    history = {0: dict(twin.model)}
    for changes in commits:
        twin.write(changes)
        history[twin.open().kafka.offsets("log.ledger", [0])[0].end] = dict(twin.model)
    with TemporaryDirectory() as scratch:
        chosen = settings_for(Path(scratch), budget_bytes=budget_bytes, budget_commits=budget_commits, fanout=fanout)
        log = twin.open()
        taken, outcome = 0, twin.environment.run(run_round, log, chosen)
        while isinstance(outcome, CompletedRound):
            assert 1 <= outcome.commits <= budget_commits
            taken += outcome.commits
            manifest = log.manifests.read(outcome.number)
            at = max(end for end in history if end <= outcome.position)
            assert state_of_snapshot(log, manifest) == history[at]
            assert state_of(log) == twin.model
            assert outcome.behind == (taken < len(commits))
            outcome = twin.environment.run(run_round, log, chosen)
    assert isinstance(outcome, SkippedRound)
    assert taken == len(commits)


def test_a_first_snapshot_holds_no_deletes_and_a_later_delta_does(tmp_path: Path) -> None:
    """Deletes vanish where they can hide no older value, and only there."""
    twin = TwinLog()
    twin.write({b"a": b"1", b"b": None})
    log = twin.open()
    first = twin.environment.run(run_round, log, settings_for(tmp_path))
    twin.write({b"a": None})
    second = twin.environment.run(run_round, log, settings_for(tmp_path))
    assert isinstance(first, CompletedRound)
    assert isinstance(second, CompletedRound)
    assert (first.rows, second.rows) == (1, 1)
    assert state_of(log) == {}
