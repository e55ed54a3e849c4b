"""The command line: the `statelog` command, its configuration, and the development broker. Holds no other logic."""

__all__ = ["main"]


def main() -> None:
    """Run the `statelog` command on this process's arguments, and exit. Imports it only now, for its cost."""
    import sys

    try:
        from statelog.cli.program import program

        program()
    except KeyboardInterrupt:
        sys.exit(130)
