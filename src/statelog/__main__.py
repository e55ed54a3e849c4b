"""`python -m statelog`: the `statelog` command."""

from statelog.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
