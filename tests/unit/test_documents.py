"""Every page is in the navigation, and every link, file and name in a document exists."""

import builtins
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import statelog
from tests.support import style
from tests.support.documents import DOCS, OUTSIDE, ROOT, anchors, documents, links, mentions, nav, prose
from tests.support.rooms import ROOMS, SOURCE

_ELSEWHERE = {"statelog.toml", "./statelog.toml", "leases/", "runs/", "manifests/", "truncation/", "losses/"}
"""Mentioned files that are the user's, or a log's."""
_WORD = re.compile(r"\b(?!Test)[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
_FOREIGN = {
    "CreateTime", "DeleteRecords", "DescribeConfigs", "JavaScript", "ListOffsets", "MirrorMaker", "OpenTelemetry",
    "PySpark", "StateStores", "WarpStream",
    # Words of other projects.
    "KeyValueStore", "StreamingDataFrame",
    # Settings of systemd, and kinds of Kubernetes.
    "ExecStart", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "StatefulSet", "SystemCallFilter",
    # IAM actions of Amazon MSK.
    "AlterGroup", "AlterTransactionalId", "CreateTopic", "DeleteTopic", "DescribeGroup", "DescribeTopic",
    "DescribeTopicDynamicConfiguration", "DescribeTransactionalId",
    "ReadData", "WriteData", "WriteDataIdempotently",
}  # fmt: skip
_BARE = {path.name for folder in (ROOT / "tests", SOURCE / "schemas" / "avsc") for path in folder.rglob("*.*")}

each_document = pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))


def _is_there(document: Path, file: str) -> bool:
    places = (ROOT, document.parent, SOURCE, SOURCE.parent)
    return file in _BARE or any(any(place.glob(file)) for place in places)


def test_every_page_is_in_the_navigation() -> None:
    """The navigation names each page once, and no page that does not exist."""
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(nav()) == sorted([*pages, *OUTSIDE.values()])


def test_every_room_has_a_page() -> None:
    """The site shows every room's README."""
    assert {f"src/statelog/{room}/README.md" for room in ROOMS} <= OUTSIDE.keys()


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    """Each link of a document leads to a file of the tree and to an existing heading."""
    broken: list[str] = []
    for target in links(document):
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@each_document
def test_mentioned_files_are_there(document: Path) -> None:
    """A file or folder in a document's prose exists at the root, next to the document, or in the source."""
    if document.name == "CHANGELOG.md":
        return  # It also describes former versions.
    assert [file for file in mentions(document) if file not in _ELSEWHERE and not _is_there(document, file)] == []


@cache
def _classes() -> set[str]:
    """Return every name that a module of the source binds at its top, and Python's own."""
    modules = (path.read_text(encoding="utf-8") for path in SOURCE.parent.rglob("*.py"))
    return {name for module in modules for name in style.exported_names(module)} | set(dir(builtins))


@each_document
def test_mentioned_classes_are_there(document: Path) -> None:
    """A word that is written as a class is one of ours, or one of Kafka's or Spark's."""
    if document.name == "CHANGELOG.md":
        return  # It also describes former versions.
    assert set(_WORD.findall(prose(document))) - _classes() - _FOREIGN == set()


def _names(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return [*re.findall(r"\]\[([\w.]+)\]", text), *re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)]


def _resolves(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        return hasattr(import_module(module), attribute)
    return True


@pytest.mark.parametrize("document", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_names_are_there(document: Path) -> None:
    """Each name that an API page describes, or that a page refers to, can be imported."""
    assert [name for name in _names(document) if not _resolves(name)] == []


def test_the_front_door_is_described() -> None:
    """The page of `statelog` lists all its names."""
    page = DOCS / "api" / "statelog.md"
    listed = {name.rpartition(".")[2] for name in _names(page)}
    assert set(statelog.__all__) <= listed | {link.removesuffix(".md") for link in links(page)}


def test_pages_for_machines_are_there() -> None:
    """Every link of `llms.txt` leads to a page of the site."""
    found = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    pages = {page.removesuffix("index.md").removesuffix(".md") for page in nav()}
    assert len(found) > 30
    assert [link for link in found if link.strip("./") not in pages] == []
