"""The house rules hold in the whole tree, and each check finds its offence."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import style
from tests.support.rooms import ROOMS, SOURCE
from tests.support.style import Offence

ROOT = Path(__file__).parents[2]
LINKED = ("producer", "materializer", "recovery", "schemas")
PROGRAMS = ("bench", "demo", "examples")
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OTHER_TEXT = ("*.md", "*.toml", "*.yml", "Makefile", "Dockerfile", ".ci/run", "docs/*.md", "typings/**/*.pyi")

Check = Callable[[str], Iterable[Offence]]


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """Parse each file once for all checks, and forget the trees after the last one."""
    yield
    style.parsed.cache_clear()


def _python(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _offences(check: Check, paths: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{offence.line}: {offence.complaint}"
        for path in paths
        for offence in check(path.read_text(encoding="utf-8"))
    ]


def _room_modules() -> Iterator[Path]:
    return (path for path in _python("src"))


def test_no_function_is_too_long() -> None:
    """No function outside the tests has a body of more than fifty lines."""
    assert _offences(style.long_functions, _python("src", *PROGRAMS)) == []


def test_no_file_is_too_long() -> None:
    """No file, tests included, has more than five hundred lines."""
    assert _offences(style.long_file, _python("src", *PROGRAMS, "tests")) == []


def test_no_module_is_a_fragment() -> None:
    """A short module that only one other imports belongs into that one. Faces are no modules of their own."""
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in _room_modules()
        if path.name != "__init__.py"
    }
    assert list(style.fragments(modules)) == []


def test_a_fragment_is_found() -> None:
    """A short module with one importer is a fragment. A long one, one with two importers or none is not."""
    long = "\n" * style.MIN_FILE_LINES
    imports = "from a import x\nfrom b import y\nfrom c import z\n"
    sources = {"a": "x = 1\n", "b": f"y = 1{long}", "c": "z = 1\n", "d": imports, "e": "from c import z\n"}
    assert list(style.fragments(sources)) == ["a, for d"]


def test_every_ignore_has_a_reason() -> None:
    """An ignore for a linter or a type checker names the rule and has a reason."""
    assert _offences(style.bare_ignores, _python("src", *PROGRAMS, "tests")) == []


def test_every_ignore_of_the_configuration_has_a_reason() -> None:
    """Each rule that pyproject.toml switches off is followed by a comment."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    silenced = re.search(r"^ignore = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert silenced
    per_file = re.search(r"^\[tool\.ruff\.lint\.per-file-ignores\]\n(.*?)^$", text, re.MULTILINE | re.DOTALL)
    assert per_file
    lines = [*silenced.group(1).splitlines(), *per_file.group(1).splitlines()]
    assert [line for line in lines if not re.search(r"# \w", line)] == []


def test_nothing_is_put_off() -> None:
    """No file of the project leaves a promise behind."""
    others = [path for pattern in OTHER_TEXT for path in ROOT.glob(pattern)]
    assert _offences(style.open_promises, [*_python("src", *PROGRAMS, "tests"), *others]) == []


def test_every_test_states_its_property() -> None:
    """Each test function has a docstring."""
    assert _offences(style.undocumented_tests, _python("tests")) == []


def test_the_import_contract_names_every_room() -> None:
    """The rooms on disk are those whose layers the import contract lists, which is the one list of them."""
    assert sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")) == sorted(ROOMS)


def test_a_class_is_the_only_one_of_its_name() -> None:
    """A class name is unique across rooms."""
    found = [
        one.name
        for path in _room_modules()
        for one in style.statements(style.parsed(path.read_text("utf-8")))
        if isinstance(one, ast.ClassDef)
    ]
    assert sorted(name for name, count in Counter(found).items() if count > 1) == []


def test_links_are_for_people() -> None:
    """The links at the top lead to their rooms, and no file imports through one: it would be a second module.

    A source distribution has no links, and a checkout has them all.
    """
    links = [name for name in LINKED if (ROOT / name).is_symlink()]
    assert links == (list(LINKED) if (ROOT / ".git").exists() else [])
    assert [name for name in links if (ROOT / name).resolve() != SOURCE / name] == []
    bare = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(LINKED)})\b", re.MULTILINE)
    paths = _python("src", *PROGRAMS, "tests")
    assert [path for path in paths if bare.search(path.read_text(encoding="utf-8"))] == []


def test_rooms_take_what_reading_offers_from_its_face() -> None:
    """The other rooms import from the face of `reading` alone."""
    deep = re.compile(r"^\s*(?:from|import) statelog\.reading\.", re.MULTILINE)
    others = (path for path in _room_modules() if path.parent != SOURCE / "reading")
    assert [path for path in others if deep.search(path.read_text(encoding="utf-8"))] == []


def test_what_declares_names_binds_them() -> None:
    """An `__all__` is without repetitions, and its module binds every name in it. Every face has one.

    A module inside of a room needs none: its names without an underscore are for other modules.
    """
    wrong: list[str] = []
    for path in _room_modules():
        source = path.read_text(encoding="utf-8")
        names = style.declared_names(source)
        if names is None:
            wrong += [f"{path.relative_to(ROOT)}: no __all__"] * (path.name == "__init__.py")
        elif len(set(names)) != len(names) or not set(names) <= style.exported_names(source):
            wrong.append(f"{path.relative_to(ROOT)}: {sorted(set(names) - style.exported_names(source)) or names}")
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_exports_what_it_says(room: str) -> None:
    """The public names that a room's `__init__` binds are exactly those in its `__all__`."""
    source = (SOURCE / room / "__init__.py").read_text(encoding="utf-8")
    assert style.exported_names(source) == set(style.declared_names(source) or [])


def test_the_package_is_typed() -> None:
    """The package tells type checkers that it is annotated, for all of its rooms."""
    assert (SOURCE / "py.typed").exists()


_LONG = "def f():\n" + "    pass\n" * (style.MAX_BODY_LINES + 1)


@pytest.mark.parametrize(
    ("check", "bad", "good"),
    [
        (style.long_functions, _LONG, _LONG.removesuffix("    pass\n")),
        (style.long_file, "\n" * (style.MAX_FILE_LINES + 1), "\n" * style.MAX_FILE_LINES),
        (style.bare_ignores, "x = 1  # no" + "qa: S101", "x = 1  # no" + "qa: S101 - the fork is the test"),
        (style.bare_ignores, "x = 1  # no" + "qa", ""),
        (
            style.bare_ignores,
            "x = 1  # type: " + "ignore[arg-type]",
            "x = 1  # type: " + "ignore[arg-type]  # the library's annotation is wrong",
        ),
        (style.open_promises, "# TO" + "DO: all", "# method"),
        (style.undocumented_tests, "def test_x(): pass", 'def test_x():\n    """It holds."""'),
    ],
)
def test_a_check_finds_its_offence(check: Check, bad: str, good: str) -> None:
    """Each check complains about a planted offence, and not about its lawful twin."""
    assert list(check(bad))
    assert not list(check(good))


def test_statements_are_found_at_any_depth() -> None:
    """Every statement is found, in whichever block of another one, as often as a walk over all nodes finds it."""
    source = (
        "try:\n    f()\nexcept E:\n    def a(): pass\nelse:\n    class B:\n        def c(self): import d\nfinally:\n"
        "    with x: y\nmatch z:\n    case 1:\n        for i in j: k\n        else: l\nif m: n\nelif o: p\nelse: q\n"
    )
    for text in (source, *(path.read_text("utf-8") for path in _python("src/statelog/tables"))):
        tree = ast.parse(text)
        walked = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        assert sorted(map(id, style.statements(tree))) == sorted(map(id, walked))


def test_names_are_read_from_source() -> None:
    """Bound and declared names are read without importing the module."""
    source = "import a.b\nfrom c import d as e, _f\n__all__ = ['e', 'g']\ng: int = 1\nclass H: ...\n"
    assert style.declared_names(source) == ["e", "g"]
    assert style.exported_names(source) == {"a", "e", "g", "H"}
    assert style.declared_names("x = 1") is None
