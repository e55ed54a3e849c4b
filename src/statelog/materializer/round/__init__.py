"""One round: fold, upload, publish, truncate, clean up."""

__all__: list[str] = []
