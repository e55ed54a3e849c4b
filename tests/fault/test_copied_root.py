"""A copy of a root, with the topics of the original: rounds on it remove nothing that the original still needs.

This holds for any order of rounds on copy and original, until a person says which of them is the log's.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import BrokerUnavailable, ConfigError, StatelogError
from statelog.log import Log, LogOptions
from statelog.materializer import CompletedRound, claim_root, run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.names import MANIFESTS
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import Publication
from statelog.store.local import LocalStore
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.log import settings_for, where_at


class Places:
    """A log whose root can be copied: opened at the original or at a copy, always with the same Kafka."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kafka = MemoryKafka(cluster=MemoryCluster())
        self.commits, self.home = 0, "root"
        (directory / "scratch").mkdir()
        Log.create(
            "log",
            where_at(self.kafka, self.store("root")),
            LogOptions(partitions=2),
        )

    def store(self, root: str) -> LocalStore:
        """Return the log's directory at this root."""
        (self.directory / root).mkdir(exist_ok=True)
        return LocalStore(self.directory / root, "log")

    def open(self, root: str) -> Log:
        """Open the log as another process sees it."""
        return Log.open("log", where_at(self.kafka.join(), self.store(root)))

    def commit(self) -> None:
        """Commit a change, by a job in the log's own root."""
        self.commits += 1
        with Writer(self.open(self.home), "w") as writer:
            writer.put(b"k%d" % self.commits, b"v")
            writer.commit()

    def round(self, root: str) -> CompletedRound:
        """Commit, and then make a round at this root."""
        self.commit()
        outcome = run_round(self.open(root), settings_for(self.directory / "scratch"))
        assert isinstance(outcome, CompletedRound)
        return outcome

    def copy(self, root: str = "root", to: str = "copy") -> None:
        """Copy as `cp -r` does."""
        shutil.copytree(self.directory / root, self.directory / to)

    def start(self) -> int:
        """Return the ledger's start."""
        return self.kafka.offsets("log.ledger", [0])[0].start


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Return a log with three snapshots, truncated below the second, and a copy of its root."""
    made = Places(tmp_path)
    for _ in range(3):
        made.round("root")
    made.copy()
    return made


def test_a_copy_of_the_root_truncates_nothing(places: Places) -> None:
    """A copy of the root truncates nothing, by any number of rounds, and the original works as ever."""
    start = places.start()
    for _ in range(4):
        outcome = places.round("copy")
        assert f"file://{places.directory}/root" in outcome.cleanup.held_back
        assert "claim" in outcome.cleanup.held_back
        assert (outcome.cleanup.files_deleted, outcome.unpublished) == (0, "")
    assert places.start() == start
    assert len(recover(places.open("root")).to_dict()) == places.commits
    assert places.round("root").cleanup.held_back == ""
    assert places.round("root").cleanup.records_truncated > 0
    assert places.start() > start
    assert len(recover(places.open("root")).to_dict()) == places.commits


def test_a_person_says_which_root_is_the_logs(places: Places) -> None:
    """A root that was moved truncates again once a person claims it."""
    assert places.round("copy").cleanup.held_back
    claim_root(places.open("copy"))
    places.home = "copy"
    assert places.round("copy").cleanup.held_back == ""
    assert places.round("copy").cleanup.records_truncated > 0
    assert len(recover(places.open("copy")).to_dict()) == places.commits


def test_what_was_copied_from_is_held_once_the_copy_is_claimed(places: Places) -> None:
    """Of a claimed copy and its original, both in use, only the one that a person named truncates."""
    claim_root(places.open("copy"))
    start = places.start()
    assert "copy" in places.round("root").cleanup.held_back
    assert places.start() == start


def test_a_root_without_a_snapshot_can_be_claimed(tmp_path: Path) -> None:
    """A root without a snapshot can be claimed: it was copied, or moved, before its first round."""
    places = Places(tmp_path)
    places.copy()
    claim_root(places.open("copy"))
    assert places.round("root").cleanup.held_back
    assert places.round("copy").cleanup.held_back == ""


def test_an_older_copy_at_the_same_url_truncates_nothing(places: Places) -> None:
    """A store's backup that was put back, or mounted by mistake, truncates nothing: the newer one may need it.

    Here the ledger still reaches the backup's newest manifest, and its next one has a lost manifest's number.
    """
    published = places.kafka.cluster.published
    (key,) = published
    places.round("root")
    shutil.rmtree(places.directory / "root")
    places.copy("copy", "root")
    start = places.start()
    assert "manifest 4 here is not the one that was published" in places.round("root").cleanup.held_back
    shutil.rmtree(places.directory / "root")
    places.copy("copy", "root")
    offset, text = published[key]
    later = Publication.from_text(text)
    assert later is not None
    ahead = Publication(later.ledger, 9, later.nonce, later.url)
    published[key] = offset, ahead.to_text()
    assert "manifest 9 was published, but is not here" in places.round("root").cleanup.held_back
    assert places.start() == start
    claim_root(places.open("root"))
    assert places.round("root").cleanup.held_back == ""


def test_daemons_on_one_root_do_not_hold_each_other(tmp_path: Path) -> None:
    """Daemons on one root see each other's manifests, also where the last published one has been dropped since."""
    cluster, disk = MemoryCluster(), MemoryDisk(lambda: 0.0)
    kafka = MemoryKafka(cluster=cluster)
    Log.create(
        "log",
        where_at(kafka, MemoryStore(disk, "log")),
        LogOptions(partitions=1),
    )
    logs = [Log.open("log", where_at(kafka.join(), MemoryStore(disk, "log"))) for _ in range(2)]
    late: tuple[int, str] | None = None
    for turn in range(8):
        with Writer(logs[0], "w") as writer:
            writer.put(b"k", b"%d" % turn)
            writer.commit()
        outcome = run_round(logs[turn % 2], settings_for(tmp_path))
        assert isinstance(outcome, CompletedRound)
        assert outcome.cleanup.held_back == ""
        (key,) = cluster.published
        late = late or cluster.published[key]
        if turn == 6:
            cluster.published[key] = late  # A stalled round publishes a manifest that was deleted long ago.
    assert disk.get(f"log/{MANIFESTS.path(8)}")


@pytest.mark.parametrize("error", [BrokerUnavailable("asleep"), ConfigError("no right")])
def test_what_cannot_be_read_holds_nothing(
    error: StatelogError, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication that cannot be read holds nothing: it is only for tools, and rounds truncate as before."""

    def refused(*_: object) -> str:
        raise error

    monkeypatch.setattr(MemoryKafka, "published", refused)
    assert places.round("root").cleanup.records_truncated > 0


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "x", '{"ledger":1,"number":1,"nonce":"","url":""}', "null", "[" * 4000]
)
def test_what_is_no_publication_holds_nothing(text: str, places: Places) -> None:
    """Foreign metadata at the offset holds nothing: an earlier release's, or another tool's."""
    (key,) = places.kafka.cluster.published
    places.kafka.cluster.published[key] = 0, text
    assert places.round("copy").cleanup.held_back == ""


def test_a_publication_of_other_topics_holds_nothing(places: Places) -> None:
    """A publication of other topics holds nothing: the log goes on on new topics of the same names."""
    (key,) = places.kafka.cluster.published
    offset, text = places.kafka.cluster.published[key]
    found = Publication.from_text(text)
    assert found is not None
    places.kafka.cluster.published[key] = offset, Publication("other", found.number, found.nonce, "elsewhere").to_text()
    assert places.round("root").cleanup.held_back == ""


def test_two_rounds_that_slept_are_no_copy(tmp_path: Path) -> None:
    """Two stalled rounds are no copy: one fills a slot that was cleaned up, the other publishes that number late.

    The next round truncates as ever.
    """
    places = Places(tmp_path)
    places.round("root")
    log = places.open("root")
    group, path = "statelog.log.materializer", MANIFESTS.path(1)
    late, first = places.kafka.published(group, "log.ledger", 0).text, log.store.read(path)
    for _ in range(3):
        places.round("root")
    assert log.manifests.numbers() == [3, 4]
    void = replace(Manifest.from_bytes(first, path), nonce=bytes(16))
    log.store.put_if_absent(path, void.to_bytes())
    places.kafka.publish_offset(group, "log.ledger", 0, void.position, late)
    start = places.start()
    assert not places.round("root").cleanup.held_back
    assert places.start() > start
    assert not places.round("root").cleanup.held_back
    assert log.manifests.numbers() == [5, 6]


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_publication_above_our_own_manifest_is_compared_with_the_one_that_is_there(
    places: Places, *, is_ours: bool
) -> None:
    """A publication above our own manifest is compared with the present one.

    A round that stalled behind its put finds the next one's publication. One of this root holds nothing. One of another
    root holds truncation, though no manifest follows it yet and so no link can show its owner.
    """
    group = "statelog.log.materializer"

    def meanwhile(point: str) -> None:
        if point != "after-win":
            return
        Environment().run(places.round, "root")
        if not is_ours:
            found = Publication.from_text(places.kafka.published(group, "log.ledger", 0).text)
            assert found is not None
            other = Publication(found.ledger, found.number, bytes(16).hex(), found.url)
            places.kafka.publish_offset(group, "log.ledger", 0, 0, other.to_text())

    places.commit()
    log = places.open("root")
    outcome = Environment(crash=meanwhile).run(run_round, log, settings_for(places.directory / "scratch"))
    assert isinstance(outcome, CompletedRound)
    assert outcome.number + 1 == max(log.manifests.numbers())
    held_back = outcome.cleanup.held_back
    assert held_back == "" if is_ours else f"manifest {outcome.number + 1} here is not" in held_back
