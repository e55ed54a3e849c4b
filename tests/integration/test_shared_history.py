"""One History of a log for all clients of a process, as for a worker's tables, on a real broker."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelog import LogOptions, Where
from statelog.errors import ClosedError
from statelog.log import Log
from statelog.log.where import one_client
from statelog.producer import Writer
from statelog.schemas.ledger.fold import LedgerFold
from tests.support.rigs.log import UNSAFE
from tests.support.services.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")]


def test_tables_of_a_worker_follow_the_ledger_once(
    broker: Broker, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is folded once for all tables of a worker, and a closed table leaves the fold to the others."""
    where = Where({"bootstrap.servers": broker.bootstrap}, tmp_path, replication_factor=1, allow_unsafe=UNSAFE)
    Log.create(log_name, where, LogOptions(partitions=4, key_groups=8)).close()
    with one_client(where) as shared:
        logs = [Log.open(log_name, shared) for _ in range(4)]
        assert {id(log.history) for log in logs} == {id(logs[0].history)}
        writers = [Writer(log, f"w{number}", partitions=[number]) for number, log in enumerate(logs)]
        folded: Counter[str] = Counter()
        monkeypatch.setattr(LedgerFold, "apply", _counted(folded, LedgerFold.apply))
        for _ in range(5):
            for writer in writers:
                writer.commit()
        assert folded.total() == 20
        writers[0].close()
        logs[0].close()
        logs[0].close()
        writers[1].commit()
        for writer, log in zip(writers[1:], logs[1:], strict=True):
            writer.close()
            log.close()
        with pytest.raises(ClosedError):
            writers[3].commit()
    with Log.open(log_name, where) as alone, Log.open(log_name, where) as other:
        assert alone.history is not other.history


def _counted(folded: Counter[str], apply: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any, **kwargs: Any) -> Any:
        folded["record"] += 1
        return apply(*args, **kwargs)

    return count
