"""The picture of the command in a terminal: real commands on a real broker, as a terminal shows them.

`python docs/terminal.py` writes `docs/screens/terminal.svg`. It needs the broker that the STATELOG_* variables name, as
`statelog dev start` prints them, and makes a log `visits` there.
"""

import os
import pty
import re
import sys
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

__all__ = ["COMMANDS", "main"]

COLUMNS = 80
PICTURE = Path(__file__).parent / "screens" / "terminal.svg"
_BEFORE = ("statelog init visits --key-type string", "statelog append visits visits.jsonl --writer web")
COMMANDS = (
    "statelog append visits visits.jsonl --writer web",
    "statelog get visits home",
    "statelog follow visits --from oldest --once docs",
)
_ROWS = '{"key": "home", "value": "17"}\n{"key": "docs", "value": "4"}\n{"key": "home", "value": "18"}\n'
_MORE = '{"key": "home", "value": "19"}\n{"key": "faq", "value": "1"}\n'


def shown(command: str, folder: str) -> str:
    """What the command prints on a terminal of that width."""
    parts: list[bytes] = []

    def keep(terminal: int) -> bytes:
        parts.append(os.read(terminal, 1 << 16))
        return parts[-1]

    script = f"stty cols {COLUMNS} rows 40; cd {folder}; {sys.executable} -m {command}"
    here, there = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(there, 1)
    try:
        pty.spawn(["/bin/sh", "-c", script], keep)
    finally:
        os.dup2(here, 1)
        os.close(here)
        os.close(there)
    text = b"".join(parts).decode().replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]  # a bar of progress draws over itself
    return "\n".join(line for line in lines if re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip())


def main() -> None:
    """Write the picture."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    with TemporaryDirectory() as folder:
        rows = Path(folder, "visits.jsonl")
        rows.write_text(_ROWS, encoding="utf-8")
        for command in _BEFORE:
            shown(command, folder)
        rows.write_text(_ROWS + _MORE, encoding="utf-8")
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(shown(command, folder)))
            console.print()
    svg = console.export_svg(title="statelog", unique_id="statelog")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a page asks no other host for anything
    PICTURE.write_text(svg.replace("Fira Code, monospace", "monospace"), encoding="utf-8")


if __name__ == "__main__":
    main()
