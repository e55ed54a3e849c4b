"""The commands, one file each; the program imports only the one in use."""

__all__: list[str] = []
