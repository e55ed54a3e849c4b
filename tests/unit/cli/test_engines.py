"""The configuration chooses the engine."""

import pytest

from statelog.cli.materialize import engine_for
from statelog.errors import ConfigError
from statelog.log.config import Config, environment_layer, merge
from statelog.materializer.engine import LocalEngine


def test_this_process_works_unless_another_engine_is_named() -> None:
    """Without the key, this process does the work, and nothing of Spark's is loaded."""
    assert engine_for(Config(), "log") is LocalEngine
    assert engine_for(merge([environment_layer({"STATELOG_ENGINE": "local"})]), "log") is LocalEngine


def test_an_unknown_engine_is_refused() -> None:
    """An unknown engine is refused by name, with the known ones."""
    with pytest.raises(ConfigError, match="local, spark"):
        environment_layer({"STATELOG_ENGINE": "flink"})
