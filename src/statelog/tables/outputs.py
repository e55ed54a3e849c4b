"""`TableOutputs`: the messages of a table, from its layers to their publisher.

    send ─► active layer ─► sealed with its changes ─► writer ─► Commit ─► publisher     publishing/publisher.py

Invariants:
- The log is held for a message before a commit that lists it is sent, so that it is there until it is published.
- A table that never sends, and whose writer never did, has no publisher: no thread, no client, no request.
- The publisher begins after the owner's Open, and ends before the log is closed.
- An error that ends the publisher ends the table, at its next commit or check. Its commits stay.
"""

from collections.abc import Sequence

from statelog.producer import Writer
from statelog.reading import OutputReader
from statelog.schemas.outputs.output import SENDER
from statelog.tables.layers import Layer
from statelog.tables.publishing.publisher import CLOSE_S, OutputStatistics, Publisher
from statelog.tables.setup import TableSetup


class TableOutputs:
    """The messages of one table. Belongs to its thread, but for `statistics`."""

    def __init__(self, setup: TableSetup, writer: Writer) -> None:
        self._setup, self._writer = setup, writer
        self._known: bytes | None = None
        """The committed or pending value of the meta record."""
        self._publisher: Publisher | None = None

    def begin(self) -> None:
        """Publish what former owners have left. Raises Corrupt, Unavailable."""
        self._known = self._writer.meta_record(SENDER)
        if self._known is not None:
            self._publisher = self._made()
            self._publisher.wake()

    def _made(self) -> Publisher:
        setup = self._setup
        reader = OutputReader(setup.log, self._writer.name)
        return Publisher(setup.log, self._writer, setup.settings, setup.environment, reader=reader)

    # ---- with the commits

    def log(self, layer: Layer) -> None:
        """Give the messages of a sealed layer to the writer. Raises Unavailable, OffsetGone, StoreRefused, Corrupt."""
        if layer.outputs:
            publisher = self._publisher = self._publisher or self._made()
            reading = publisher.claim().encode()
            if self._known is None:
                self._writer.append_meta(SENDER, reading)
                self._known = reading
            for _, output in layer.outputs:
                self._writer.send_output(output)

    def committed(self, layers: Sequence[Layer]) -> None:
        """Publish the messages of layers that are history now."""
        messages = sum(len(layer.outputs) for layer in layers)
        if messages and self._publisher is not None:
            self._publisher.wake(messages)

    def check(self) -> None:
        """Raise the error that ended the publisher."""
        if self._publisher is not None:
            self._publisher.check()

    def close(self, *, is_failed: bool) -> None:
        """Publish what is committed, for a few seconds at most. The next owner publishes the rest."""
        if self._publisher is not None:
            self._publisher.close(0.0 if is_failed else CLOSE_S, is_settled=not is_failed)

    def statistics(self) -> OutputStatistics | None:
        """Return how far the publisher is; None without one. On any thread."""
        return None if self._publisher is None else self._publisher.statistics()
