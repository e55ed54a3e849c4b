"""The local disk: working directories, local copies, and their failures."""

__all__: list[str] = []
