"""The demo's error."""

__all__ = ["DemoFailed"]


class DemoFailed(Exception):
    """A promise of the demo was broken. Its text is for people."""
