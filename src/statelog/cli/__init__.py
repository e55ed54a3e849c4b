"""The command line: the `statelog` command, its configuration, and the development broker. Has no other logic."""

__all__ = ["main"]


def main() -> None:
    """Run the `statelog` command on this process's arguments, and exit. The import is late because it is slow."""
    import sys

    try:
        from statelog.cli.program import program

        program()
    except KeyboardInterrupt:
        sys.exit(130)
