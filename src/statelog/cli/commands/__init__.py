"""The commands, one file each; the program imports the one that is asked for."""

__all__: list[str] = []
