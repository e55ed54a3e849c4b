from collections.abc import Callable

import pytest

class LoadScopeScheduling:
    def __init__(self, config: pytest.Config, log: Callable[..., object]) -> None: ...
    def _split_scope(self, nodeid: str) -> str: ...
