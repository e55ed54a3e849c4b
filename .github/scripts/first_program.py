"""Install a wheel in an empty environment, and run the first program of README.md there.

    python .github/scripts/first_program.py dist/statelog-*.whl

The program is the first block of Python in the README, so that this follows the README. Where it uses the development
broker, that is installed and started for it; this needs Java 17. Each line that it prints has to be what the comment at
its `print` promises.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMISE = re.compile(r"\bprint\(.*\) {2,}# (.*)$", re.MULTILINE)
_BROKER_ROOT = re.compile(r'Where\.local\("([^"]+)"')


def first_program(readme: str) -> str:
    """Return the first block of Python of a README. Raises SystemExit if it has none."""
    found = _PROGRAM.search(readme)
    if found is None:
        raise SystemExit("README.md has no block of Python")
    return found[1]


def check_output(program: str, output: str) -> None:
    """Raise SystemExit unless the lines of the output are those that the program's comments promise."""
    printed, promised = output.splitlines(), _PROMISE.findall(program)
    agree = len(printed) == len(promised) and all(map(str.startswith, promised, printed))
    if not agree:
        raise SystemExit(f"the program printed {printed}, and its comments promise {promised}")


def run_with(wheel: Path, program: str) -> str:
    """Run the program with the wheel, and nothing else, installed. Return what it prints."""
    broker = _BROKER_ROOT.search(program)
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        commands = Path(directory) / "bin"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

        def run(*command: str) -> str:
            ran = [str(commands / command[0]), *command[1:]]
            return subprocess.run(  # noqa: S603 - programs of the environment that was just made
                ran, cwd=directory, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=900
            ).stdout

        run("pip", "install", "--quiet", f"{wheel.resolve()}[dev]" if broker else str(wheel.resolve()))
        (Path(directory) / "program.py").write_text(program, "utf-8")
        if not broker:
            return run("python", "program.py")
        run("statelog", "dev", "start", "--root", broker[1])
        try:
            return run("python", "program.py")
        finally:
            run("statelog", "dev", "stop")


def main(wheel: str) -> None:
    """Run the README's first program with this wheel, and check what it prints."""
    program = first_program((ROOT / "README.md").read_text("utf-8"))
    output = run_with(Path(wheel), program)
    check_output(program, output)
    sys.stdout.write(f"README.md's first program prints, with {Path(wheel).name}:\n{output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
