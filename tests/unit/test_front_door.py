"""`import statelog` offers a program's first names, and loads nothing before it is used."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

import statelog
from tests.support import style
from tests.support.rooms import SOURCE


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.parametrize("name", statelog.__all__)
def test_every_name_is_there(name: str) -> None:
    """Every promised name of `statelog` exists and is listed."""
    assert getattr(statelog, name) is not None
    assert name in dir(statelog)


def test_types_and_names_agree() -> None:
    """Type checkers and programs see the same names."""
    source = (SOURCE / "__init__.py").read_text(encoding="utf-8")
    assert style.exported_names(source) >= set(statelog.__all__)


@pytest.mark.parametrize(("name", "room"), [("Log", "statelog.log"), ("read", "statelog.recovery")])
def test_a_name_that_moved_says_where_to(name: str, room: str) -> None:
    """The names of 0.1 still work, with a warning at the caller's line."""
    with pytest.warns(DeprecationWarning, match=rf"statelog\.{name} is {room}\.{name} since 0\.2") as warned:
        assert getattr(statelog, name) is getattr(import_module(room), name)
    assert warned[0].filename == __file__
    assert name not in statelog.__all__


def test_the_version_is_that_of_the_distribution() -> None:
    """`statelog.__version__` is the distribution's."""
    assert statelog.__version__ == version("statelog")


def test_importing_it_loads_no_room() -> None:
    """The import loads neither Arrow nor Kafka nor a package of ours."""
    heavy = ("statelog.", "pyarrow", "confluent_kafka")
    code = f"import statelog, sys; print([name for name in sys.modules if name.startswith({heavy})])"
    assert _run("-c", code).stdout.strip() == "[]"


def test_rooms_and_errors_are_attributes() -> None:
    """`statelog.errors.NotFound` works after `import statelog` alone. A missing name is an AttributeError."""
    code = "import statelog; print(statelog.errors.NotFound.__name__, hasattr(statelog, 'elsewhere'))"
    assert _run("-c", code).stdout.split() == ["NotFound", "False"]


def test_the_package_is_the_command() -> None:
    """`python -m statelog` is `statelog`."""
    assert "Usage: " in _run("-m", "statelog", "--help").stdout
