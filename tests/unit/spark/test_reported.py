"""A typed error travels through Spark as text, and is parsed again."""

import logging
import traceback
from pickle import PicklingError

import pytest

from statelog.errors import DataLoss, Fenced, StatelogError
from statelog.spark.reported import error_of, reported, unpicklable


@reported()
def entry() -> None:
    """Call the code as Spark does."""
    deep(3)


def deep(levels: int) -> None:
    """Raise an error far below, while another one is handled."""
    if levels:
        deep(levels - 1)
    try:
        open_nothing()
    except OSError as error:
        raise Fenced('another "writer"\ntook over', writer="job", epoch=7, ratio=0.5, is_late=None) from error


def open_nothing() -> None:
    """Raise the cause of it all."""
    raise OSError("the cause")


def printed() -> str:
    """Return the text that Spark has of an error: the traceback."""
    with pytest.raises(Fenced) as caught:
        entry()
    return "".join(traceback.format_exception(caught.value))


def test_an_error_comes_back_from_text() -> None:
    """An error's class, message, hint and typed facts are parsed from any text that contains its report."""
    text = f"[STREAM_FAILED] Query [id = x] terminated: {printed()}\n\tat org.apache.spark.Here(Here.scala:1)"
    error = error_of(RuntimeError(text))
    assert type(error) is Fenced
    assert (error.message, error.facts) == (
        'another "writer"\ntook over',
        {"writer": "job", "epoch": 7, "ratio": 0.5, "is_late": None},
    )
    assert error.hint == Fenced.default_hint


def test_an_error_is_found_behind_others() -> None:
    """An error is found in a chain of exceptions, as itself or as text. A cyclic chain ends."""
    inner = ValueError(printed())
    outer = RuntimeError("nothing here")
    outer.__cause__ = inner
    assert isinstance(error_of(outer), Fenced)
    own = DataLoss("gone")
    inner.__cause__ = outer
    assert error_of(own) is own
    outer.__cause__, inner.args = inner, ("nothing",)
    assert error_of(outer) is None
    assert error_of(None) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[statelog.Fenced] another",
        '[statelog.Fenced] {"message": "cut o',
        "[statelog.Fenced] {}",
        '[statelog.Fenced] {"message": "m", "hint": "h", "facts": null}',
        '[statelog.Fenced] {"message": "m", "hint": "h", "facts": {"message": "a row of theirs"}}',
    ],
)
def test_text_without_a_report_tells_of_nothing(text: str) -> None:
    """A text with a truncated or imitated report has no error, and parsing it raises nothing."""
    assert error_of(RuntimeError(text)) is None


def test_an_error_that_this_version_lacks_is_still_one() -> None:
    """An error name that this version lacks, as of a newer worker, is parsed as a StatelogError."""
    for name in ("Unheard", "Mapping"):
        error = error_of(RuntimeError(f'[statelog.{name}] {{"message": "m", "hint": "h", "facts": {{"a": 1}}}}'))
        assert type(error) is StatelogError
        assert (error.message, error.hint, error.facts) == ("m", "h", {"a": 1})


def test_the_stack_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """The reported stack ends at Spark's call, without a cause, and carries one report.

    The complete one is logged for debugging.
    """
    with caplog.at_level(logging.DEBUG, logger="statelog.spark"):
        text = printed()
    assert "in deep" not in text
    assert "the cause" not in text
    assert text.count("[statelog.Fenced]") == 1
    assert "the cause" in caplog.text

    with pytest.raises(Fenced) as caught, reported():
        entry()
    assert len(caught.value.__notes__) == 1


def test_other_errors_pass_as_they_are() -> None:
    """An error outside of the tree keeps its stack, its cause and its text."""
    with pytest.raises(ValueError, match="as it is") as caught, reported():
        raise ValueError("as it is") from KeyError("cause")
    assert isinstance(caught.value.__cause__, KeyError)
    assert not hasattr(caught.value, "__notes__")


def test_an_error_while_pickling_is_read_back_as_well() -> None:
    """A PicklingError, which Spark passes through, is parsed as well."""
    error = unpicklable(Fenced("another writer took over", writer="job"))
    assert isinstance(error, PicklingError)
    assert str(error).startswith("Fenced: another writer took over")
    assert isinstance(error_of(error), Fenced)
