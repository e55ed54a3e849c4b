"""A writer or coordinator whose constructor fails after a valid Open closes what it opened."""

import pytest

from statelog.producer import coordinator, writer
from statelog.producer.epoch import EpochClients
from tests.support.rigs.log import twin_rig


def _cut_short(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("made", [writer.Writer, coordinator.Coordinator])
def test_a_half_made_writer_leaves_no_client_behind(
    made: type[writer.Writer | coordinator.Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constructor that fails leaves no client open, since the caller never gets the object."""
    closed: list[EpochClients] = []
    close = EpochClients.close

    def noting(opened: EpochClients) -> None:
        closed.append(opened)
        close(opened)

    monkeypatch.setattr(EpochClients, "close", noting)
    for module in (writer, coordinator):
        monkeypatch.setattr(module, "Committer", _cut_short)
    with twin_rig("log").create() as log, pytest.raises(KeyboardInterrupt):
        made(log, "w")
    assert len(closed) == 1
