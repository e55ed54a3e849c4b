"""Another owner that commits between an Open and the reading of its state does not mix with older progress."""

from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import Fenced
from statelog.producer.guard import Life
from statelog.recovery import Recovery, RecoverySettings, recover
from statelog.tables import Loading, TableSettings
from statelog.tables.standbys import follower
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import TableRig, content
from tests.support.told import lines

UNHELD = TableSettings(recovery=RecoverySettings(holder="standby", lease=False, threads=1))


class Rival:
    """Another machine that takes the table over at a step of an opening, commits, and may roll the log up."""

    def __init__(self, tables: TableRig, scratch: Path, *, step: str, rolls: bool) -> None:
        self.tables = TableRig(tables.rig, None)
        self._scratch, self._step, self._rolls = scratch, step, rolls
        self.environment = Environment(crash=self._pass)

    def _pass(self, step: str) -> None:
        if step == self._step:
            self._step = ""
            self.commit(9)
            for n in (10, 11) if self._rolls else ():
                self.tables.roll_up(self._scratch)
                self.commit(n)
                self.tables.roll_up(self._scratch)

    def commit(self, n: int) -> None:
        """Commit in another incarnation."""
        with self.tables.open() as table:
            table[b"n"] = b"%d" % n
            table.commit({"n": n})


@pytest.fixture(params=["dict", "rocksdb"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> TableRig:
    """Return tables with each backend in turn."""
    return TableRig(twin_rig("log"), tmp_path / "local" if request.param == "rocksdb" else None)


@pytest.mark.parametrize("loading", list(Loading))
@pytest.mark.parametrize("rolls", [False, True], ids=["", "rolls"])
def test_a_table(tables: TableRig, tmp_path: Path, loading: Loading, *, rolls: bool) -> None:
    """A table that is overtaken while it opens is fenced, or opens at its own progress. Its directory catches up later.

    The directory's place is below the newest snapshot, from which the Open begins to fold.
    """
    rival = Rival(tables, tmp_path, step="opened", rolls=rolls)
    rival.commit(0)
    tables.roll_up(tmp_path)
    with tables.open() as table:
        table[b"n"] = b"1"
        table.commit({"n": 1})
    rival.commit(2)
    tables.roll_up(tmp_path)
    with lines():
        options = {"settings": TableSettings(loading=loading), "environment": rival.environment}
        with pytest.raises(Fenced), tables.open(**options) as table:
            assert (content(table), table.progress) == ({b"n": b"2"}, {"n": 2})
            table.commit({"n": 3})
        with tables.open() as table:
            n = table.progress["n"]
            assert n == (11 if rolls else 9)
            assert content(table) == {b"n": b"%d" % n}


def test_a_promotion(tables: TableRig, tmp_path: Path) -> None:
    """A standby that has to be re-created behind its Open is closed, since the state is another owner's by now."""
    rival = Rival(tables, tmp_path, step="promoting", rolls=True)
    rival.commit(1)
    with lines(), tables.standby(settings=UNHELD, environment=rival.environment) as standby:
        rival.commit(2)
        with pytest.raises(Fenced):
            standby.promote()
        assert standby.life is Life.CLOSED


def test_a_standby_and_a_newer_schema(tables: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that is planned while its owner evolves the schema has the new one, with renamed fields' values."""
    schema = '{"type": "record", "name": "V", "fields": [{%s, "type": "long", "default": 0}]}'
    with tables.open(value_schema=schema % '"name": "seen"') as table:
        table[b"k"] = {"seen": 1}
        table.commit()

    def after_an_evolution(*given: Any, **more: Any) -> Recovery:
        monkeypatch.undo()
        with tables.rig.open() as log:
            log.evolve_value_schema(schema % '"name": "visits", "aliases": ["seen"]')
        with TableRig(tables.rig, None).open() as owner:
            owner[b"k"] = {"visits": 7}
            owner.commit()
        return recover(*given, **more)

    monkeypatch.setattr(follower, "recover", after_an_evolution)
    with tables.standby(poll_s=None) as standby:
        assert content(standby) == {b"k": {"visits": 7}}
