"""A snapshot read without Kafka is the verified state at its position, and is never presented as the newest state."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from statelog.cli.output import DAMAGED, MISUSE, OK
from statelog.cli.program import program
from statelog.errors import ConfigError, CorruptRun, Misuse, NotFound
from statelog.log import Log, LogOptions, Where
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading.plan import At
from statelog.recovery import AtCheckpoint, AtPosition, Recovery, recover_snapshot
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinLog, settings_for, where_at
from tests.support.told import told


def open_snapshot(twin: TwinLog, at: At | None = None) -> Recovery:
    """Recover with the store alone."""
    return recover_snapshot("log", Where(None, MemoryStore(twin.disk, "log")), at=at)


@pytest.fixture
def twin(tmp_path: Path) -> TwinLog:
    """Return a log with two snapshots of different states, and a commit behind the second."""
    twin = TwinLog()
    for name in (b"a", b"b"):
        twin.write({name: b"1", b"both": name})
        with twin.open() as log:
            twin.environment.run(run_round, log, settings_for(tmp_path))
    kept = dict(twin.model)
    twin.write({b"behind": b"v"})
    twin.model = kept
    return twin


def test_the_newest_snapshot_is_read_alone(twin: TwinLog) -> None:
    """The newest snapshot gives the state, its position and each writer's last commit, and leaves no lease."""
    recovery = open_snapshot(twin)
    with twin.open() as log:
        newest = log.manifests.read(2)
    assert recovery.to_dict() == twin.model
    assert recovery.position == newest.position
    assert recovery.last_commit("writer") == newest.state.last_commit("writer")
    assert not twin.disk.files("log/leases/")


def test_every_target_takes_it(twin: TwinLog) -> None:
    """A snapshot fills a stream, a table, and a part by key groups."""
    rows: dict[object, object] = {}
    with open_snapshot(twin) as recovery, recovery.stream() as stream:
        stream.apply(lambda portion: rows.update({row["key"]: row["value"] for row in portion.changes.to_pylist()}))
    assert rows == twin.model
    assert open_snapshot(twin).to_arrow(ordered=True).num_rows == len(twin.model)
    part = recover_snapshot("log", Where(None, MemoryStore(twin.disk, "log")), key_groups=range(4)).to_dict()
    rest = recover_snapshot("log", Where(None, MemoryStore(twin.disk, "log")), key_groups=range(4, 8)).to_dict()
    assert part | rest == twin.model
    assert not part.keys() & rest.keys()


def test_an_older_one_is_named_by_its_position(twin: TwinLog) -> None:
    """An older snapshot is named by its position. If none fits, the error lists the positions."""
    with twin.open() as log:
        positions = [log.manifests.read(number).position for number in (1, 2)]
    assert open_snapshot(twin, AtPosition(positions[0])).to_dict() == {b"a": b"1", b"both": b"a"}
    with pytest.raises(NotFound) as told:
        open_snapshot(twin, AtPosition(positions[1] + 1))
    assert told.value.facts["positions"] == f"{positions[1]}, {positions[0]}"
    with pytest.raises(ConfigError, match="by its position"):
        open_snapshot(twin, AtCheckpoint("writer", 1))


def test_nothing_is_followed(twin: TwinLog) -> None:
    """A snapshot cannot be followed, since later changes are unknown."""
    with pytest.raises(Misuse, match="alone"):
        open_snapshot(twin).follow()
    assert not twin.disk.files("log/leases/")


def test_a_damaged_one_is_passed_over(twin: TwinLog) -> None:
    """A damaged snapshot is skipped with a warning. If all are damaged, that is the error."""
    with twin.open() as log:
        first, second = (log.manifests.read(number).runs for number in (1, 2))
    fresh = {run.path: run for run in second if run.path not in {one.path for one in first}}
    for run in fresh.values():
        twin.disk.flip_byte(f"log/{run.path}", 8)
    with told():
        assert open_snapshot(twin).to_dict() == {b"a": b"1", b"both": b"a"}
    for run in first:
        twin.disk.flip_byte(f"log/{run.path}", 8)
    with told(), pytest.raises(CorruptRun):
        open_snapshot(twin).to_dict()


def test_without_any_there_is_nothing_to_read() -> None:
    """Without a snapshot, or without a log, there is nothing to read."""
    twin = TwinLog()
    with pytest.raises(NotFound, match="no such snapshot"):
        open_snapshot(twin)
    with pytest.raises(NotFound, match="no log"):
        recover_snapshot("other", Where(None, MemoryStore(twin.disk, "other")))


def test_the_command_needs_no_broker(tmp_path: Path) -> None:
    """`--snapshot` needs no broker, and the output says that Kafka was not read."""
    root = str(tmp_path / "root")
    kafka = MemoryKafka()
    (tmp_path / "scratch").mkdir()
    with (
        Log.create("log", where_at(kafka, root), LogOptions(partitions=1)) as log,
        Writer(log, "w") as writer,
    ):
        writer.put(b"k", b"v")
        writer.commit(checkpoint_id=1)
        run_round(log, settings_for(tmp_path / "scratch"))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(program, ["recover", "log", "--root", root, *arguments])
        return done.exit_code, done.output

    code, output = run("--snapshot", "--to-json", str(tmp_path / "rows"))
    assert (code, "read without Kafka" in output) == (OK, True), output
    assert (tmp_path / "rows").read_text() == '{"key": "k", "value": "v"}\n'
    assert run("--snapshot", "--at-writer", "w", "--at-checkpoint", "1")[0] == MISUSE
    for path in (tmp_path / "root" / "log" / "runs").iterdir():
        path.write_bytes(b"")
    with told("snapshot 1 is damaged"):
        code, output = run("--snapshot")
    assert (code, "snapshot 1 is damaged" in output) == (DAMAGED, True), output
