"""The one way in which the demo says that it failed."""

__all__ = ["DemoFailed"]


class DemoFailed(Exception):
    """Something that the demo promises did not happen. Its text is for a person."""
