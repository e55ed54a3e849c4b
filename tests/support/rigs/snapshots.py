"""Three snapshots and a tail on twins that can be damaged, for faults of recovery."""

from collections.abc import Callable

from statelog.producer.writer import Writer
from statelog.storage.log.files import ManifestChain
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.rigs.history import HistoryRig, history_rig

__all__ = ["KEYS", "SnapshotTwins"]

KEYS = [b"key-%d" % i for i in range(60)]


class SnapshotTwins:
    """A rig on twins that can be damaged, with three snapshots and a tail: each key was written in every stretch."""

    def __init__(self, *, truncate: bool) -> None:
        self.now_s = 1000.0
        self.cluster = MemoryCluster()
        self.disk = MemoryDisk(lambda: self.now_s)
        self.rig: HistoryRig = history_rig(kafka=MemoryKafka(cluster=self.cluster), store=MemoryStore(self.disk, "rig"))
        self.log = self.rig.log
        with Writer(self.log, "w") as writer:
            for stretch in range(1, 4):
                self.rig.commit(writer, stretch, [(key, b"%d" % stretch) for key in KEYS])
                self.rig.snapshot()
            self.rig.commit(writer, 4, [(key, b"tail") for key in KEYS[::2]])
        if truncate:
            self.rig.drop(self.rig.manifests[0])
            self.rig.truncate(self.rig.manifests[0])

    @property
    def expected(self) -> dict[object, object]:
        """The newest state."""
        return self.rig.state_at(self.rig.end())

    def run_of(self, snapshot: int) -> str:
        """The newest run of a snapshot, by its place in the list."""
        return self.rig.manifests[snapshot].runs[-1].path

    def hooked(self, hook: Callable[[str, str], None]) -> None:
        """Let the recovery's store call `hook` with every method and path."""

        def ask(method: str, path: str) -> Fault | None:
            hook(method, path)
            return None

        self.log.store = MemoryStore(self.disk, "rig", faults=ask)
        self.log.manifests = ManifestChain(self.log.store, self.log.descriptor)
