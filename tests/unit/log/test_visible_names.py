"""What `dir(log)` and the completion of a shell show: the names that programs use, and no other."""

import re
from pathlib import Path

from tests.support.rigs.log import twin_rig

ROOT = Path(__file__).parents[3]
_NAMES = """
    barrier close commits create data_topic delete describe descriptor evolve_value_schema kafka ledger_topic name open
    place position retention_s set_truncation truncation value_schemas verify
"""


def test_a_log_shows_what_programs_use() -> None:
    """Every name is there. Those for other modules of statelog are not shown."""
    with twin_rig("names").create() as log:
        assert dir(log) == _NAMES.split()
        assert [name for name in dir(log) if not hasattr(log, name)] == []


def test_a_log_shows_what_the_documents_name() -> None:
    """An attribute that a guide or an example takes from a log is shown."""
    texts = [
        path.read_text("utf-8") for kind in ("docs/**/*.md", "examples/**/*.py", "*.md") for path in ROOT.glob(kind)
    ]
    with twin_rig("names").create() as log:
        named = {name for text in texts for name in re.findall(r"\b[Ll]og\.([a-z]\w*)", text) if hasattr(log, name)}
        assert len(named) > 5
        assert named - set(dir(log)) == set()
