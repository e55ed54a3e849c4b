"""Every name that a program uses has one public home, and a face exports nothing else. All is read from source.

The policy is the same for every room. A face (`statelog.<room>`) exports names that its room defines. Each must be in a
document, or in the public signature of an exported name of any room. Errors and warnings are in `statelog.errors`, and
`statelog` repeats what a first program needs.
"""

import ast
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.rooms import ROOMS, SOURCE
from tests.support.style import declared_names

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Signature = tuple[str, str, ast.expr]  # the owner, the module that its names are looked up in, an annotation


class Name(NamedTuple):
    """A class, function, alias or constant of ours: the module that defines it, and its name there."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def exported(face: str) -> dict[str, Name]:
    """Return the names in a module's `__all__` with their definitions.

    Without it, return the public names that it defines.
    """
    names = declared_names(_source(face))
    if names is None:
        names = [name for name, one in _bindings(face).items() if _is_public(name) and not isinstance(one, Name)]
    return {name: _definition(Name(face, name)) for name in names}


def homeless(faces: Iterable[str], excused: Collection[str] = ()) -> dict[Name, str]:
    """Return names that a program passes to exported names, although no face exports them.

    An alias needs no home if its parts have. `excused` names and their parts need none.
    """
    homes = {name for face in faces for name in exported(face).values()}
    found: dict[Name, str] = {}
    queue = deque(sorted(homes))
    seen = set(queue)
    while queue:
        for where, name in taken_by(queue.popleft()):
            if name not in seen and name.name not in excused:
                seen.add(name)
                if isinstance(_node(name), ast.Assign):
                    queue.append(name)
                else:
                    found[name] = where
    return found


def taken_by(owner: Name) -> Iterator[tuple[str, Name]]:
    """Return our names that a function takes, or a class in its methods or settings, each with its owner.

    The methods of a protocol are left out, and so is a constructor if the class is "made by `...`" in its docstring.
    """
    for where, module, annotation in _signatures(owner):
        for word in _words(annotation):
            if not word.startswith("_") and word in _bindings(module):
                found = _definition(Name(module, word))
                if _is_type(found):
                    yield where, found


def _signatures(owner: Name) -> Iterator[_Signature]:
    match _node(owner):
        case ast.ClassDef() as node:
            yield from _of_class(owner, node, frozenset())
        case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
            yield from ((str(owner), owner.module, annotation) for annotation in _of_function(node))
        case ast.Assign(value=value) if _is_alias(value):
            yield str(owner), owner.module, value
        case _:
            return


def _of_class(owner: Name, node: ast.ClassDef, overridden: frozenset[str]) -> Iterator[_Signature]:
    """Return the signatures of a class, and of its bases where it does not override them."""
    own = overridden | {part.name for part in node.body if isinstance(part, _Function)}
    for word in (word for base in node.bases for word in _words(base)):
        base = _definition(Name(owner.module, word))
        if isinstance(inherited := _node(base), ast.ClassDef):
            yield from _of_class(base, inherited, own)
    if any(word == "Protocol" for base in node.bases for word in _words(base)):
        return
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and _is_setting(owner, part.target.id):
            yield f"{owner}.{part.target.id}", owner.module, part.annotation
        elif isinstance(part, _Function) and part.name not in overridden and _is_called(part.name, node):
            yield from ((f"{owner}.{part.name}", owner.module, annotation) for annotation in _of_function(part))


def _of_function(node: _Function) -> Iterator[ast.expr]:
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None and argument.annotation is not None:
            yield argument.annotation


def _words(annotation: ast.AST) -> Iterator[str]:
    for part in ast.walk(annotation):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                yield from _words(ast.parse(part.value, mode="eval"))
            except SyntaxError:
                continue  # Text of a Literal, which names nothing.


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _is_setting(owner: Name, field: str) -> bool:
    """Return whether it is a field of a value that programs make."""
    return owner.name.endswith(("Settings", "Options", "Policy", "Cap", "Where")) and _is_public(field)


def _is_called(method: str, node: ast.ClassDef) -> bool:
    if method != "__init__":
        return _is_public(method)
    return "made by `" not in " ".join((ast.get_docstring(node) or "").lower().split())


def _is_alias(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp | ast.Subscript | ast.Name)


def _is_type(name: Name) -> bool:
    match _node(name):
        case ast.ClassDef():
            return True
        case ast.Assign(value=value):
            return _is_alias(value)
        case _:
            return False


def _definition(name: Name) -> Name:
    bound = _bindings(name.module).get(name.name)
    if not isinstance(bound, Name) or bound == name:  # A package binds its own subpackages.
        return name
    return _definition(bound)


def _node(name: Name) -> ast.stmt | None:
    bound = _bindings(name.module).get(name.name)
    return None if isinstance(bound, Name) else bound


def _bindings(module: str) -> dict[str, ast.stmt | Name]:
    """Return the definitions at a module's top, and its imports of ours, also those for type checkers alone."""
    return _bound(_source(module))


@cache
def _bound(source: str) -> dict[str, ast.stmt | Name]:
    tree = ast.parse(source)
    found: dict[str, ast.stmt | Name] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == SOURCE.name:
            found |= {alias.asname or alias.name: Name(node.module or "", alias.name) for alias in node.names}
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = node
            case _:
                continue
    return found


def _source(module: str) -> str:
    path = SOURCE.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text("utf-8") if path.exists() else ""


ROOT = Path(__file__).parents[2]
INTERNAL = ("reading", "history")
"""The rooms whose faces are for the other rooms."""
FACES = tuple(f"statelog.{room}" for room in ROOMS if room not in INTERNAL)
HOMES = ("statelog", "statelog.errors", *FACES)
_FACELESS = {"statelog.recovery": "statelog.reading.", "statelog.testing": "statelog.environment."}
"""For the other rooms: the face with the names that a program, or its test, uses."""
MOST = 120
"""The number of names that a person can know, without the errors."""
EXCUSED = {
    "EngineMaker": "opaque: spark_engine makes one",
    "LedgerBase": "plan_changes(base=), which a stream passes to itself",
    "Rights": "Log.verify(rights), which the rooms call",
    "RunFile": "RunOpener.open, which readers call",
    **dict.fromkeys(("Checkpoint", "Step"), "Grant.handle, which writers call"),
    **dict.fromkeys(("Delivery", "OffsetRange", "TopicSpec"), "the twins' methods, which the rooms call"),
}
"""Names that need no home although they are passed, and why."""
DOCUMENTS = ("*.md", "docs/**/*.md", "src/**/*.md", "examples/**/*.py", "demo/**/*.py")


@cache
def _documented() -> frozenset[str]:
    return frozenset(
        word
        for pattern in DOCUMENTS
        for path in ROOT.glob(pattern)
        for word in re.findall(r"\w+", path.read_text("utf-8"))
    )


@cache
def _passed() -> frozenset[Name]:
    """Return the names that programs pass to exported ones."""
    owners = (name for home in HOMES for name in exported(home).values())
    return frozenset(taken for owner in owners for _, taken in taken_by(owner))


def test_whatever_a_program_passes_has_a_public_home() -> None:
    """A caller can import every type of the parameters."""
    assert {str(name): where for name, where in homeless(HOMES, EXCUSED).items()} == {}


def test_a_person_can_know_the_public_names() -> None:
    """All faces together have few names."""
    names = {name for face in ("statelog", *FACES) for name in exported(face).values()}
    assert len(names) <= MOST


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_names_of_its_own_room(face: str) -> None:
    """A face exports names of its own room, so that a name has one home."""
    own = (f"{face}.", _FACELESS.get(face, f"{face}."))
    assert [str(name) for name in exported(face).values() if not f"{name.module}.".startswith(own)] == []


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_what_programs_name(face: str) -> None:
    """Every exported name is in a document, or is a parameter of something exported."""
    assert [
        label for label, name in exported(face).items() if label not in _documented() and name not in _passed()
    ] == []


def test_every_error_is_in_the_one_tree() -> None:
    """Only `statelog.errors` defines errors of the tree, and warnings."""
    kinds = "|".join((r"\w*Warning", *exported("statelog.errors")))
    found = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "errors.py"
        for name in re.findall(rf"^class ([A-Z]\w*)\((?:{kinds})\)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert found == set()


def test_a_name_without_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a home is found in a parameter, a setting, an alias or a base's method.

    Names that are returned, private, overridden or marked as made by us need none.
    """
    package = tmp_path / "statelog"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from statelog.deep import Door, Made, Settings, open_it\n__all__ = ['Door', 'Made', 'Settings', 'open_it']\n"
    )
    (package / "deep.py").write_text(
        "class A: ...\nclass B: ...\nclass C: ...\nclass D: ...\nclass E: ...\nclass F: ...\n"
        "AorB = A | B\nLIMIT = 3\n"
        "class _Base:\n    def enter(self, at: 'C') -> None: ...\n    def leave(self, at: F) -> None: ...\n"
        "class Door(_Base):\n    inside: F\n    def leave(self) -> F: ...\n"
        "    def _knock(self, by: F) -> None: ...\n"
        "class Settings:\n    one: D\n    _other: F\n"
        "class Made:\n    '''Made by `open_it`.'''\n    def __init__(self, f: F) -> None:\n        self.e: F = F()\n"
        "def open_it(what: AorB, how: E) -> Made: ...\n"
    )
    monkeypatch.setattr(f"{__name__}.SOURCE", package)
    assert {name.name for name in homeless(["statelog"])} == {"A", "B", "C", "D", "E"}
    assert {name.name for name in homeless(["statelog"], {"E"})} == {"A", "B", "C", "D"}
    assert exported("statelog")["Door"] == Name("statelog.deep", "Door")
