"""The page of supported Pythons, packages, brokers and stores agrees with the project's files."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from statelog.testing.node import KAFKA_VERSION
from tests.support.constraints import pinned, requirements
from tests.support.rooms import ROOT
from tests.support.services.broker import KAFKA_IMAGE
from tests.support.services.s3 import S3_IMAGE

_PAGE = (ROOT / "docs" / "support.md").read_text("utf-8")
_WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
_COMPOSE = (ROOT / "docker-compose.yml").read_text("utf-8")
_PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the tables below a heading, without the tables' heads."""
    section = _PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for table in tables for row in table.splitlines()]


def _minimum(name: str) -> str:
    return next(part.version for one in requirements()[name] for part in one.specifier if part.operator == ">=")


def test_each_python_of_the_page_is_tested() -> None:
    """The page, the classifiers and the CI name the same versions of Python."""
    named = [version for version, *_ in _rows("Python and packages") if re.fullmatch(r"3\.\d+", version)]
    prefix = "Programming Language :: Python :: "
    assert [one.removeprefix(prefix) for one in _PROJECT["classifiers"] if one.startswith(f"{prefix}3.")] == named
    listed = ", ".join(f'"{one}"' for one in named)
    assert f"python: [{listed}]" in _WORKFLOW


def test_packages_have_their_minimum_and_the_version_tested() -> None:
    """Each row of a package has its extra and its minimum of pyproject.toml, and its version of constraints.txt."""
    rows = [row for row in _rows("Python and packages") if len(row) == 4]
    extras = _PROJECT["optional-dependencies"]
    for name, needed_for, minimum, tested in rows:
        assert (minimum, tested) == (_minimum(name), pinned()[name]), name
        extra = re.fullmatch(r"the extra `(\w+)`", needed_for)
        needing = extras[extra[1]] if extra else _PROJECT["dependencies"]
        assert name in {canonicalize_name(Requirement(one).name) for one in needing}
    assert {"confluent-kafka", "pyarrow", "pyspark"} <= {name for name, *_ in rows}


def test_the_minimums_are_tested() -> None:
    """The job that the page names installs the constraints of the minimums."""
    assert "The job `lowest`" in _PAGE
    job = _WORKFLOW.split("\n  lowest:\n")[1]
    assert "tests.support.constraints lowest" in job
    assert "PIP_CONSTRAINT: ${{ runner.temp }}/lowest.txt" in job


def test_the_broker_is_the_one_of_the_tests() -> None:
    """The version of Kafka on the page is that of the jars, of the container in tests, and of docker-compose.yml."""
    tested = [row for row in _rows("Kafka") if row[1] == "tested"]
    assert [name for name, *_ in tested if name.startswith("Apache")] == [f"Apache Kafka {KAFKA_VERSION}"]
    assert KAFKA_IMAGE.endswith(f":{KAFKA_VERSION}")
    assert f"`{KAFKA_IMAGE}`" in _PAGE
    assert f"image: {KAFKA_IMAGE}\n" in _COMPOSE


def test_spark_is_the_one_of_the_tests() -> None:
    """The tested Spark is that of constraints.txt, and the minimum is that of pyproject.toml."""
    rows = {name: status for name, status, *_ in _rows("Spark")}
    assert rows[pinned()["pyspark"]] == "tested"
    assert rows[_minimum("pyspark")] == "works"


def test_the_store_is_the_one_of_the_tests() -> None:
    """The gateway to S3 on the page is that of the tests and of docker-compose.yml, and each store has its extra."""
    assert f"`{S3_IMAGE}`" in _PAGE
    assert f"image: {S3_IMAGE}\n" in _COMPOSE
    tested = [name for name, status, *_ in _rows("Stores") if status == "tested"]
    assert len(tested) == 1 + len({"s3", "gcs", "azure", "hdfs"} & _PROJECT["optional-dependencies"].keys())


@pytest.mark.parametrize("system", ["ubuntu-latest", "Debian 12"])
def test_the_system_is_the_one_of_the_tests(system: str) -> None:
    """The CI runs on the Linux that the page names, and the image is built on the other one."""
    (row,) = [row for row in _rows("Operating systems") if row[1] == "tested"]
    assert system in row[2]
    assert set(re.findall(r"runs-on: (\S+)", _WORKFLOW)) == {"ubuntu-latest"}
    assert "FROM python:3.11-slim-bookworm" in (ROOT / "Dockerfile").read_text("utf-8")
