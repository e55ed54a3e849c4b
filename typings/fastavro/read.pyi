"""What readers make of logical types, by the type and its logical type."""

from collections.abc import Callable

LOGICAL_READERS: dict[str, Callable[[int, object, object], object]]
