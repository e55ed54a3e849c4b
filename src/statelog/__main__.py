"""`python -m statelog`: the `statelog` command."""

from statelog.cli import main

if __name__ == "__main__":
    main()
