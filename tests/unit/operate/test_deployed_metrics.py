"""The alert rules and the dashboard use existing metrics and pass Prometheus' own checker."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from statelog.operate.metrics import METRICS, Kind
from statelog.testing.broker import cache_directory
from tests.support.rooms import ROOT

_PROMETHEUS = ROOT / "deploy" / "prometheus"
_RULES = _PROMETHEUS / "statelog-alerts.yml"
_BOARD = ROOT / "deploy" / "grafana" / "statelog.json"
_NAME = re.compile(r"\bstatelog_\w+")


def _known() -> set[str]:
    """Return the names of all samples."""
    names = {name for name, one in METRICS.items() if one.kind is not Kind.HISTOGRAM}
    histograms = METRICS.keys() - names
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}


def _expressions() -> list[str]:
    board: dict[str, Any] = json.loads(_BOARD.read_text("utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


@cache
def _promtool() -> tuple[Path | None, str]:
    """Return the path of promtool, or the reason why it is missing.

    Debian's package is only unpacked: installing it would start a server.
    """
    if found := shutil.which("promtool"):
        return Path(found), ""
    place = cache_directory() / "promtool"
    kept = place / "usr" / "bin" / "promtool"
    if not kept.exists():
        place.mkdir(parents=True, exist_ok=True)
        try:
            _run(place, "apt-get", "download", "prometheus")
            _run(place, "dpkg-deb", "--extract", str(next(place.glob("prometheus_*.deb"))), ".")
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            return None, f"it is not installed, and apt-get does not have it: {error}"
    return kept, ""


def _run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)


def _checked(*args: object) -> None:
    """Run the checker. Skip with the reason if there is none."""
    program, why = _promtool()
    if program is None:
        pytest.skip(f"promtool cannot be had: {why}")
    found = subprocess.run([program, *map(str, args)], check=False, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", [_RULES, _PROMETHEUS / "statelog-alerts-test.yml", _BOARD], ids=lambda path: path.name)
def test_they_speak_of_metrics_that_there_are(path: Path) -> None:
    """Each metric in the rules and the dashboard is one of the code's."""
    found = set(_NAME.findall(path.read_text("utf-8")))
    assert len(found) > 5
    assert found - _known() == set()


def test_the_dashboard_is_whole() -> None:
    """Each panel has a query, and an id and a place of its own."""
    panels = json.loads(_BOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")


def test_the_rules_alarm_when_they_should() -> None:
    """The rules pass their own tests: a healthy log is silent, and one whose rounds fail or hang alarms."""
    _checked("check", "rules", _RULES)
    _checked("test", "rules", _PROMETHEUS / "statelog-alerts-test.yml")


def test_what_the_dashboard_asks_is_promql(tmp_path: Path) -> None:
    """Every expression of the dashboard is accepted as PromQL."""
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$log", ".*")}
        for number, expression in enumerate(_expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML, too.
    _checked("check", "rules", path)
