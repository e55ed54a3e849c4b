"""Exit codes of the `statelog` command. Scripts may rely on them; `docs/cli.md` has the same table.

0    done
1    anything else
2    misuse: an argument, a setting or an input is wrong, or a topic or store is unsafe
3    not found, or there already
4    unavailable: the world is in the way; the same command may succeed later, and loses nothing
5    fenced: another writer took over
6    DATA LOSS, or damage: what was stored is not what is there; needs a person
7    a key that `get` was asked for is not there
130  interrupted by Ctrl-C
"""

from statelog.errors import (
    AlreadyExists,
    Damaged,
    Fenced,
    Misuse,
    NotFound,
    OutcomeUnknown,
    PersistFailed,
    StatelogError,
    Unavailable,
    Unsafe,
)

OK = 0
OTHER = 1
MISUSE = 2
NOT_FOUND = 3
UNAVAILABLE = 4
FENCED = 5
DAMAGED = 6
ABSENT = 7
INTERRUPTED = 130

_CODES: tuple[tuple[tuple[type[StatelogError], ...], int], ...] = (
    ((Misuse, Unsafe), MISUSE),
    ((NotFound, AlreadyExists), NOT_FOUND),
    ((Unavailable, PersistFailed, OutcomeUnknown), UNAVAILABLE),
    ((Fenced,), FENCED),
    ((Damaged,), DAMAGED),
)


def exit_code(error: StatelogError) -> int:
    """The exit code of an error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), OTHER)
