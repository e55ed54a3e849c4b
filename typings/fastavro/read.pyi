"""What readers make of logical types, by the type and its logical type."""

from collections.abc import Callable
from typing import Any

LOGICAL_READERS: dict[str, Callable[..., Any]]
