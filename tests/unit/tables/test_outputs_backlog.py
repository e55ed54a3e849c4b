"""How many messages are not published yet, as `statelog describe` says it of each writer that ever sent."""

from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.log import Log
from statelog.materializer import MaterializerSettings
from statelog.operate.description import describe_log
from statelog.tables import TableSettings
from statelog.testing import Twin
from tests.support.told import lines


@pytest.fixture
def twin() -> Twin:
    """Return a cluster with a target."""
    made = Twin()
    made.create_topic("target")
    return made


def _writers(twin: Twin, scratch: Path) -> dict[str, Any]:
    """Return the column of each writer; empty if there is no such column."""
    with Log.open("log", twin.where()) as log:
        report = describe_log(log, MaterializerSettings(scratch=scratch))
    (listing,) = [one for one in report.listings if one.name == "writers"]
    if "unpublished_messages" not in listing.columns:
        return {}
    at = listing.columns.index("unpublished_messages")
    return {str(row[0]): row[at] for row in listing.rows}


def test_what_is_not_published_yet(twin: Twin, tmp_path: Path) -> None:
    """Messages that a killed table left are counted until its next owner has published them."""
    with statelog.table("log", twin.where(), create=True) as table:
        table.commit({"n": 0})
    assert _writers(twin, tmp_path) == {}
    with statelog.table("log", twin.where()) as table:
        table.send("target", b"1")
        table.commit({"n": 1})
    assert _writers(twin, tmp_path) == {"table": 0}
    killed = statelog.table("log", twin.where(), settings=TableSettings(outputs_patience_s=1e6))
    with lines(), pytest.raises(RuntimeError), killed as table:
        table.send("target", b"2")
        twin.cluster.delete("target")
        for number in (2, 3):
            table.send("target", b"x" * 20_000 * (number - 2), partition=0)
            table.commit({"n": number})
        raise RuntimeError
    assert _writers(twin, tmp_path) == {"table": 3}
    with Log.open("log", twin.where()) as log, statelog.producer.Writer(log, "other", partitions=[0]) as other:
        other.commit({})
    twin.create_topic("target")
    statelog.table("log", twin.where()).close()
    assert _writers(twin, tmp_path) == {"other": None, "table": 0}
    assert [len(one.value or b"") for one in twin.outputs("target")] == [1, 0, 20_000]
