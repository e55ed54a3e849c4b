"""A round's requests to the store and its memory for the ledger do not grow with the retained manifests."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import CorruptManifest, StoreUnavailable
from statelog.kafka.port import Record
from statelog.materializer import run_round
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.materializer.target import choose_target
from statelog.producer.writer import Writer
from statelog.schemas.names import MANIFESTS
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.store.port import STALE_AFTER_S
from statelog.testing.kafka import MemoryReader
from tests.support.rigs.daemon import DaemonBench
from tests.support.rigs.log import TwinLog, settings_for, state_of


def test_requests_do_not_grow_with_the_kept_manifests(tmp_path: Path) -> None:
    """A round with forty retained manifests makes the same requests as one with five, and reads no older manifest."""
    twin, counts, known = TwinLog(), Counter[str](), VerifiedRuns()

    def count(method: str, path: str) -> None:
        counts[f"{method} manifest" if path.startswith("manifests/0") else method] += 1

    log = twin.open(faults=count)
    settings = settings_for(tmp_path, retention=RetentionPolicy(keep=2, min_age_s=3600.0))
    asked: dict[int, Counter[str]] = {}
    for number in range(1, 41):
        twin.now_s += 1.0
        twin.write({b"a": b"%d" % number})
        counts.clear()
        outcome = twin.environment.run(Round, log, settings, verified=known).run()
        assert isinstance(outcome, CompletedRound)
        if not outcome.runs_merged:
            asked[number] = counts.copy()
    assert len(log.manifests.numbers()) == 40
    few, many = asked[5], asked[max(asked)]
    assert many == few
    assert many["read manifest"] == 2  # The newest at the start, and its own after the put.
    assert (many["list"], many["now_s"], sum(many.values())) == (9, 0, 15)


def test_partitions_with_little_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions with few changes are read together, so eight cost as many reads as one.

    A small fold limit reads each alone.
    """
    reading: list[object] = []
    read = MemoryReader.read

    def counted(*args: Any, **more: Any) -> Iterator[Record]:
        reading.append(args)
        return read(*args, **more)

    monkeypatch.setattr(MemoryReader, "read", counted)

    def reads(partitions: int, **changed: int) -> int:
        twin = TwinLog(partitions=partitions)
        twin.write({b"%d" % number: b"" for number in range(100)})
        reading.clear()
        twin.environment.run(run_round, twin.open(), settings_for(tmp_path, **changed))
        count = len(reading)
        assert state_of(twin.open()) == twin.model
        return count

    assert reads(8) == reads(1)
    assert reads(8, fold_bytes=1) == reads(1) + 7


def test_a_kept_manifest_that_changed_is_read_again(tmp_path: Path) -> None:
    """A retained manifest of another size or time is another file and is read again, so damage is noticed."""
    twin, known = TwinLog(), VerifiedRuns()
    log = twin.open()
    settings = settings_for(tmp_path, retention=RetentionPolicy(keep=2, min_age_s=3600.0))
    for turn in range(3):
        twin.write({b"a": b"%d" % turn})
        twin.environment.run(Round, log, settings, verified=known).run()
    twin.disk.truncate(f"log/{MANIFESTS.path(1)}", 100)
    twin.write({b"a": b"later"})
    with pytest.raises(CorruptManifest):
        twin.environment.run(Round, log, settings, verified=known).run()


def test_a_winner_sweeps_what_killed_uploads_left(tmp_path: Path) -> None:
    """The next winning round removes an upload that a killed round left a day ago. A younger one may be in use."""
    twin = TwinLog()
    log = twin.open()
    twin.disk.write("log/runs/.tmp-old", b"half an upload", absent=True)
    twin.now_s += STALE_AFTER_S + 1
    twin.disk.write("log/runs/.tmp-young", b"half an upload", absent=True)
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, log, settings_for(tmp_path))
    left = {info.path for info in twin.disk.files("log/") if "/.tmp-" in info.path}
    assert left == {"log/runs/.tmp-young"}


def test_a_process_sweeps_once_an_hour(tmp_path: Path) -> None:
    """A process sweeps once an hour by the store's clock.

    A clock that was days ahead for a moment does not stop it for days.
    """
    twin, known, swept = TwinLog(), VerifiedRuns(), list[bool]()
    for now_s in (10 * STALE_AFTER_S + after_s for after_s in (0, 3599, 3600, 9 * STALE_AFTER_S, 7200)):
        twin.now_s = 0.0
        twin.disk.write("log/runs/.tmp-old", b"half an upload", absent=False)
        twin.now_s = now_s
        twin.write({b"a": str(now_s).encode()})
        twin.environment.run(Round, twin.open(), settings_for(tmp_path), verified=known).run()
        swept.append(not any("/.tmp-" in info.path for info in twin.disk.files("log/")))
    assert swept == [True, False, True, True, True]


def _write_with_metadata(twin: TwinLog, commits: int) -> None:
    with twin.open() as log, Writer(log, "talker") as writer:
        for checkpoint in range(1, commits + 1):
            writer.put(b"a", b"1")
            writer.commit({"offsets": "x" * 10_000}, checkpoint_id=checkpoint)


def test_metadata_counts_against_the_budget(tmp_path: Path) -> None:
    """Commit metadata counts against the budget: of commits with 10 kB each, a budget of 50 kB takes a few."""
    twin = TwinLog()
    _write_with_metadata(twin, 20)
    log = twin.open()
    target = choose_target(log, None, settings_for(tmp_path, budget_bytes=50_000), log.ledger.end())
    assert target.behind
    assert 1 <= len(target.commits) <= 5
    assert target.state.commits["talker"].checkpoint.id == len(target.commits)


def test_a_failing_probe_tells_its_cause(tmp_path: Path) -> None:
    """The cause of a failing probe is the failed write, even if deleting fails as well."""
    bench = DaemonBench(tmp_path)
    bench.broken = True
    with pytest.raises(StoreUnavailable, match="put_if_absent"):
        bench.log.store.check()


def test_a_round_tells_that_it_goes_on_while_it_cleans_up(tmp_path: Path) -> None:
    """A round reports progress before each run that it checks and each file that it deletes.

    It is never silent or abandoned after its put.
    """
    twin, done = TwinLog(), list[str]()

    def note(method: str, path: str) -> None:
        done.append("read a run" if method == "read" and path.startswith("runs/") else method)

    log, settings = twin.open(faults=note), settings_for(tmp_path, fanout=9)

    def is_given_up() -> bool:
        done.append("goes on")
        return "put_if_absent" in done

    for turn in range(6):
        done.clear()
        twin.write({b"a": b"%d" % turn})
        made = twin.environment.run(Round, log, settings, is_given_up=is_given_up)
        assert isinstance(made.run(), CompletedRound)
    cleaned = done[done.index("put_if_absent") :]
    assert cleaned.count("read a run") == 5
    assert cleaned.count("delete") == 1
    assert {before for before, now in pairwise(cleaned) if now in ("read a run", "delete")} == {"goes on"}
