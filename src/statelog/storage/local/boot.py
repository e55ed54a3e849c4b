"""The boot of the machine: as long as it lasts, what was written is whole without a sync, whatever is killed."""

from pathlib import Path

__all__ = ["boot_id"]

_LINUX = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Names the present boot, on no other machine and at no other time the same; empty where the system names none."""
    try:
        return _LINUX.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
