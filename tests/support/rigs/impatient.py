"""Nobody waits for a simulated broker to catch up: the fixture `impatient`."""

import pytest

from statelog.storage.log import ledger, topics
from statelog.tables.state import state

__all__ = ["impatient"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks or looks again does so at once."""
    monkeypatch.setattr(ledger, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(topics, "_LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(state, "_PAUSE_S", 0.0)
