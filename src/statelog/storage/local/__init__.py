"""The local disk: own directories, local copies, and what goes wrong there."""

__all__: list[str] = []
