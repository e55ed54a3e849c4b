"""The report on truncation agrees with a round: for each partition its holders, and what releases them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from statelog.cli.output import MISUSE
from statelog.cli.program import program
from statelog.environment import Environment
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.operate.truncation import Held, held
from statelog.reading.claims import HeldSubscription, list_leases, list_subscriptions
from statelog.reading.hold import Hold, Needs, Terms
from statelog.schemas.snapshot.retention import RetentionPolicy, truncation_floor
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinLog, key_in, settings_for
from tests.support.rigs.shell import commands_open

HERE = ("--bootstrap", "here:1", "--root", "s3://here/logs")


def rolled_up(tmp_path: Path, rounds: int, **settings: Any) -> TwinLog:
    """Return a log with so many rounds, each after a commit in every partition."""
    twin = TwinLog(partitions=2)
    for _ in range(rounds):
        more(twin, tmp_path, **settings)
    return twin


def more(twin: TwinLog, tmp_path: Path, **settings: Any) -> CompletedRound:
    """Write another commit in every partition, and run a round."""
    with twin.open() as log:
        twin.write({key_in(log, partition): b"v" for partition in range(twin.partitions)})
        twin.now_s += 1.0
        done = twin.environment.run(run_round, log, settings_for(tmp_path, **settings))
    assert isinstance(done, CompletedRound)
    return done


def shown(twin: TwinLog, **settings: Any) -> Held:
    """Return the report by these settings."""
    with twin.open() as log:
        return held_now(log, settings_for(Path(), **settings))


def held_now(log: Log, settings: MaterializerSettings) -> Held:
    """Return the holders, with the present leases and subscriptions."""
    return held(log, settings, list_leases(log.store), list_subscriptions(log.store))


def rows(found: Held) -> dict[str, dict[str, Any]]:
    """Return the listing by holder."""
    listing = found.listing()
    return {str(row[0]): dict(zip(listing.columns, row, strict=True)) for row in listing.rows}


def leased(twin: TwinLog, position: int, next_offsets: dict[int, int]) -> Hold:
    """Take a reader's lease."""
    hold = Hold(MemoryStore(twin.disk, "log"), Terms("web", 120.0), environment=Environment(wall_clock=twin.clock))
    return hold.claim(Needs(position, next_offsets))


def test_snapshots_hold(tmp_path: Path) -> None:
    """The oldest retained snapshot holds truncation. For each, the report says how many more rounds release it."""
    twin = rolled_up(tmp_path, 4, keep=3)
    found = shown(twin, keep=3)
    named = rows(found)
    assert list(named) == ["manifest 2", "manifest 3", "manifest 4"]
    assert found.held_by == "manifest 2"
    assert found.held_back == ""
    assert named["manifest 2"]["holds"] == "ledger and 2 of 2 partitions"
    assert named["manifest 3"]["holds"] is None
    assert named["manifest 2"]["age_s"] == 2.0
    assert [one["frees"] for one in named.values()] == [
        f"{text} with something new (keep=3)" for text in ("1 more round", "2 more rounds", "3 more rounds")
    ]
    with twin.open() as log:
        kept = [log.manifests.read(number) for number in (2, 3, 4)]
        assert found.held_by == truncation_floor(kept, []).ledger_held_by


@pytest.mark.usefixtures("busy_ledger")
def test_what_only_one_keeps_goes_when_it_is_gone(tmp_path: Path) -> None:
    """A released holder truncates exactly the reported number of records."""
    twin = rolled_up(tmp_path, 3)
    lease = leased(twin, 0, {0: 0, 1: 0})
    more(twin, tmp_path)
    name = next(name for name in rows(shown(twin)) if name.startswith("lease"))
    told = rows(shown(twin))[name]
    assert (told["owner"], told["kind"]) == ("web", "lease")
    assert told["holds"] == "ledger and 2 of 2 partitions"
    assert "2 min 0 s of silence" in told["frees"]
    lease.close()
    before = {**shown(twin).data, -1: shown(twin).ledger}
    now = rows(shown(twin))["manifest 3"]
    assert now["holds"] == "ledger and 2 of 2 partitions"
    more(twin, tmp_path)
    after = {**shown(twin).data, -1: shown(twin).ledger}
    # The round released manifest 3 as well, which accounts for the rest.
    assert told["frees_records"] + now["frees_records"] == sum(after[p].start - before[p].start for p in after)


@pytest.mark.usefixtures("busy_ledger")
def test_a_lease_of_one_partition(tmp_path: Path) -> None:
    """A lease of one partition holds the ledger and its partition. An expired lease holds nothing."""
    twin = rolled_up(tmp_path, 2)
    leased(twin, 1, {1: 0})
    named = rows(shown(twin))
    lease = next(one for name, one in named.items() if name.startswith("lease"))
    assert lease["holds"] == "ledger and 1 of 2 partitions"
    assert named["manifest 1"]["holds"] == "1 of 2 partitions"
    twin.now_s += 121.0
    assert list(rows(shown(twin))) == ["manifest 1", "manifest 2"]


@pytest.mark.usefixtures("busy_ledger")
def test_a_subscription_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    """A subscription is listed with the command that removes it. An unreadable one blocks all truncation."""
    twin = rolled_up(tmp_path, 3)
    with twin.open() as log:
        state = log.manifests.read(2).state
        HeldSubscription(log, "lake", holder_id="1", holder="query 7").hold(state, None, take_up=True)
    more(twin, tmp_path)
    found = shown(twin)
    lake = rows(found)["subscription lake of query 7"]
    assert found.held_by == "subscription lake of query 7"  # The record below its position is compared, too.
    assert lake["frees"].startswith("its reader's progress, or `statelog subscriptions NAME --remove lake`")
    assert rows(found)["manifest 2"]["frees"] == "the reader at its position, when it moves on"
    path = next(info.path for info in twin.disk.files("log/subscriptions/"))
    twin.disk.truncate(path, 20)
    found = shown(twin)
    assert found.held_by == "subscription lake, which cannot be read"
    assert "cannot be read" in found.held_back
    assert rows(found)[found.held_by]["holds"] == "ledger and 2 of 2 partitions"


def test_young_and_pinned_snapshots(tmp_path: Path) -> None:
    """A minimum age and a reader's lease retain more snapshots than the configured number."""
    twin = rolled_up(tmp_path, 3, retention=RetentionPolicy(keep=2, min_age_s=60.0))
    settings = MaterializerSettings(retention=RetentionPolicy(keep=2, min_age_s=60.0))
    with twin.open() as log:
        named = rows(held_now(log, settings))
        assert named["manifest 1"]["frees"] == "a round in 59.0 s or later (min_age=60.0 s)"
        twin.now_s += 100.0
        assert rows(held_now(log, settings))["manifest 1"]["frees"] == "the next round"
        hold = Hold(log.store, Terms("web", 120.0), environment=Environment(wall_clock=twin.clock))
        hold.claim(Needs(9, {}, manifest_number=1))
        assert rows(held_now(log, settings))["manifest 1"]["frees"].startswith("the end of lease")


def test_too_few_snapshots_and_none(tmp_path: Path) -> None:
    """With too few snapshots, or none, the report says why nothing is truncated."""
    assert shown(TwinLog()).holders == ()
    assert shown(TwinLog()).held_by == ""
    assert shown(rolled_up(tmp_path, 1)).held_back == "nothing is truncated before there are 2 snapshots; now: 1"


def test_days_alone_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of days without its policy is refused instead of ignored."""
    commands_open(rolled_up(tmp_path, 1), monkeypatch)
    refused = CliRunner().invoke(program, ["truncate", "log", "--retention-days", "3", *HERE])
    assert refused.exit_code == MISUSE
    assert "--truncation retention" in refused.stderr


def test_the_command_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`truncate --explain` shows all partitions, and `describe` the two oldest snapshots, under the same names."""
    twin = rolled_up(tmp_path, 4, keep=4)

    commands_open(twin, monkeypatch)
    found = json.loads(CliRunner().invoke(program, ["truncate", "log", "--explain", "--json", *HERE]).stdout)
    described = json.loads(CliRunner().invoke(program, ["describe", "log", "--json", *HERE]).stdout)
    assert found["truncation_held_by"] == described["truncation_held_by"] == "manifest 1"
    assert [one["held_by"] for one in found["truncation_bounds"]] == [f"manifest {number}" for number in range(1, 5)]
    assert [one["held_by"] for one in described["truncation_bounds"]] == ["manifest 1", "manifest 2"]
    partitions = found["truncation_bounds_by_partition"]
    assert len(partitions) == (2 + 1) * 4
    holding = [(one["topic"], one["partition"], one["held_by"]) for one in partitions if one["holds"]]
    assert holding == [("ledger", 0, "manifest 1"), ("data", 0, "manifest 1"), ("data", 1, "manifest 1")]
