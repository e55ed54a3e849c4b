"""The demo's second query: its fold, and the check for missing, doubled and extra rows."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from demo.followed import Change, Followed, faults, fold_changes, read_rows

_ROWS = (
    Change(3, "a", "put", {"n": 1}),
    Change(3, "b", "put", {"n": 2}),
    Change(4, "a", "delete", None),
    Change(6, "b", "put", {"n": 3}),
    Change(6, "c", "put", {"n": 4}),
)
_COMMITS = {2: 7, 4: 1, 6: 2}


def _followed(*rows: Change) -> Followed:
    return Followed(begin_position=3, rows=rows, lags_s=())


def test_rows_fold_by_position_in_any_order() -> None:
    """The newest row of a key counts, and a delete removes the key."""
    assert fold_changes(_ROWS) == fold_changes(reversed(_ROWS)) == {"b": {"n": 3}, "c": {"n": 4}}


def test_every_commit_whole_and_once_is_no_fault() -> None:
    """Commits below the beginning are part of its state and are not searched for."""
    assert faults(_followed(*_ROWS), _COMMITS) == []
    assert _followed(*_ROWS).state_rows == 2


def test_faults_name_what_is_missing_doubled_or_too_much() -> None:
    """A lost commit, half a commit, a doubled row and rows of no commit are each a fault."""
    assert "position 4 has 1 changes, and 0" in faults(_followed(*_ROWS[:2], *_ROWS[3:]), _COMMITS)[0]
    assert "position 6 has 2 changes, and 1" in faults(_followed(*_ROWS[:4]), _COMMITS)[0]
    assert "b came twice at position 3" in faults(_followed(*_ROWS, _ROWS[1]), _COMMITS)[0]
    assert "position 9 has 0 changes, and 1" in faults(_followed(*_ROWS, Change(9, "a", "delete", None)), _COMMITS)[0]


def test_only_files_of_the_sink_s_own_log_are_read(tmp_path: Path) -> None:
    """A file that a task left without a commit does not count. A file that two entries name counts once."""
    for name, rows in (("one", _ROWS[:2]), ("two", _ROWS[2:]), ("orphan", _ROWS)):
        pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows]), tmp_path / f"{name}.parquet")
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for entry, names in (("0", ["one"]), ("1.compact", ["one", "two"]), (".1.crc", [])):
        lines = [json.dumps({"path": f"file://{tmp_path}/{name}.parquet"}) for name in names]
        (log / entry).write_text("\n".join(["v1", *lines]), "utf-8")
    assert read_rows(tmp_path) == _ROWS
