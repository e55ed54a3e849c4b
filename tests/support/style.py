"""The house rules that no linter knows, as pure functions from source text to offences (line number and complaint)."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

__all__ = [
    "MAX_BODY_LINES",
    "MAX_FILE_LINES",
    "MIN_FILE_LINES",
    "Offence",
    "bare_ignores",
    "declared_names",
    "exported_names",
    "fragments",
    "long_file",
    "long_functions",
    "open_promises",
    "parsed",
    "statements",
    "undocumented_tests",
]

MAX_BODY_LINES = 50
MAX_FILE_LINES = 500
MIN_FILE_LINES = 40
_PROMISE = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
_IGNORE = re.compile(r"#\s*(noqa|type:\s*ignore|pyright:\s*ignore|mypy:|ruff:)(?P<rest>.*)")
_REASONED = re.compile(r"\s*(:?\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|\[[a-zA-Z, -]+\])\s*(-|#)\s*\w.*")


class Offence(NamedTuple):
    """A broken rule: where (1-based line) and what."""

    line: int
    complaint: str


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a source, which several checks walk and none changes.

    Whoever calls this gives the memory back by `cache_clear`: the collector would go through the trees ever after.
    """
    return ast.parse(source)


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield every statement, at any depth; their expressions are ten times as many nodes."""
    found = [*tree.body]
    for one in found:  # It grows meanwhile.
        yield one
        for part in (one, *getattr(one, "handlers", ()), *getattr(one, "cases", ())):
            for block in ("body", "orelse", "finalbody"):
                found += getattr(part, block, ())


def long_functions(source: str) -> Iterator[Offence]:
    """Yield functions whose body, without its docstring, has more than MAX_BODY_LINES lines."""
    for node in statements(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
            if lines > MAX_BODY_LINES:
                yield Offence(node.lineno, f"{node.name} has {lines} lines of body")


def long_file(source: str) -> Iterator[Offence]:
    """Yield a file of more than MAX_FILE_LINES lines."""
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield Offence(lines, f"{lines} lines")


def fragments(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules below MIN_FILE_LINES lines that one other alone imports, of these sources by dotted name."""
    used: dict[str, set[str]] = {name: set() for name in sources}
    for name, source in sources.items():
        for node in statements(parsed(source)):
            if isinstance(node, ast.ImportFrom) and node.module in used:
                used[node.module].add(name)
    for name, source in sources.items():
        if source.count("\n") < MIN_FILE_LINES and len(used[name]) == 1:
            yield f"{name}, for {used[name].pop()}"


def bare_ignores(source: str) -> Iterator[Offence]:
    """Yield ignores of a linter or type checker that do not name a rule, or do not say why."""
    for number, line in enumerate(source.splitlines(), 1):
        found = _IGNORE.search(line)
        if found and not _REASONED.fullmatch(found["rest"]):
            yield Offence(number, f"no reason: {found.group().strip()}")


def open_promises(source: str) -> Iterator[Offence]:
    """Yield words that put work off."""
    for number, line in enumerate(source.splitlines(), 1):
        if _PROMISE.search(line):
            yield Offence(number, line.strip())


def undocumented_tests(source: str) -> Iterator[Offence]:
    """Yield test functions that do not state, in a docstring, the property that they show."""
    for node in statements(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test_") and not ast.get_docstring(node):
            yield Offence(node.lineno, f"{node.name} has no docstring")


def declared_names(source: str) -> list[str] | None:
    """Return the names in `__all__` as they stand there, or None if the module has none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in _bound(node):
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


def exported_names(source: str) -> set[str]:
    """Return the public names that a module binds at its top: imports, definitions and assignments."""
    names = {name for node in ast.parse(source).body for name in _bound(node)}
    return {name for name in names if not name.startswith("_")}


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in aliases)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.If(body=body):  # Names that only type checkers see, and that are loaded when they are used.
            yield from (name for inner in body for name in _bound(inner))
        case _:
            return
