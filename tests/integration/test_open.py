"""`statelog.open` on a real broker and the local file system: two runs of one program, and concurrent opens."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

import statelog
from statelog.errors import ConfigError, NotFound
from statelog.log import Log
from tests.support.rigs.log import where_at
from tests.support.services.broker import Broker

pytestmark = pytest.mark.broker
_RIVALS = 4


@pytest.fixture
def where(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[statelog.Where]:
    """Yield the log's place and its options; its topics are deleted at the end."""
    root = str(tmp_path / "root")
    place = where_at(broker.bootstrap, root)
    yield place
    Log.delete(log_name, place)


def test_a_program_that_is_run_twice(log_name: str, where: statelog.Where) -> None:
    """The second run opens the first one's log and goes on behind its last checkpoint."""
    with pytest.raises(NotFound, match="create=True"):
        statelog.open(log_name, where)
    for run in (1, 2):
        with statelog.open(log_name, where, create=statelog.LogOptions(partitions=2)) as log:
            with statelog.Writer(log, "web") as writer:
                assert (writer.last_commit.checkpoint.id if writer.last_commit else 0) == run - 1
                writer.put(b"run", b"%d" % run)
                writer.commit(checkpoint_id=run)
            assert statelog.recover(log).to_dict() == {b"run": b"%d" % run}
    with pytest.raises(ConfigError, match="partitions is 2 and not 3"):
        statelog.open(log_name, where, create=statelog.LogOptions(partitions=3))


def test_rivals_open_one_log(log_name: str, where: statelog.Where) -> None:
    """Concurrent openers commit to the same log, whichever of them makes it."""
    barrier = Barrier(_RIVALS)

    def rival(number: int) -> bytes:
        barrier.wait()
        with statelog.open(log_name, where, create=statelog.LogOptions(partitions=4)) as log:
            with statelog.Writer(log, f"rival-{number}", partitions=[number]) as writer:
                writer.commit(checkpoint_id=1)
            return log.descriptor.nonce

    with ThreadPoolExecutor(_RIVALS) as pool:
        nonces = list(pool.map(rival, range(_RIVALS)))
    assert len(set(nonces)) == 1
    with statelog.open(log_name, where) as log:
        assert sorted(log.commits()) == [f"rival-{number}" for number in range(_RIVALS)]
