"""`statelog.open`: opens a log by name, and creates it first if asked to.

Invariants:
- Any number of processes may open the same name with `create=True` at once: one of them makes the log, all open it.
- An option that is given holds for the log that comes out: one that an existing log contradicts is an error.
"""

import time
from dataclasses import replace

from statelog.errors import AlreadyExists, NotFound
from statelog.storage.log.log import Log
from statelog.storage.log.options import LogOptions
from statelog.storage.log.where import Where, opened_ports

__all__ = ["open"]

_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Between two looks at a log that a rival is making: most of its time goes to Kafka's two topics."""


def open(name: str, where: Where, *, create: bool | LogOptions = False) -> Log:  # noqa: A001 - it is statelog.open, as gzip.open
    """Open a log; with `create`, make it first if there is none.

        with statelog.open("visits", where, create=True) as log:
            print(log.describe())

    `create` may say how: `create=LogOptions(key_type="string")`. An existing log has to agree with each option that is
    given. A `value_schema` agrees if the log has it, as its newest or as an earlier one.

    Raises NotFound without `create`; ConfigError, which names the options that differ; and as `Log.open` and
    `Log.create` do.
    """
    options = create if isinstance(create, LogOptions) else LogOptions()
    with opened_ports(name, where) as (client, store, _):
        here = replace(where, kafka=client, root=store, storage_options={})
        return _open_or_create(name, here, options) if create else Log.open(name, here)


def _open(name: str, where: Where, options: LogOptions) -> Log:
    log = Log.open(name, where)
    options.check(log.descriptor, log.value_schemas.all)
    return log


def _open_or_create(name: str, where: Where, options: LogOptions) -> Log:
    """Open; make what is not there; and look again if a rival makes it at the same moment."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return _open(name, where, options)
        except NotFound:
            pass  # There is none, or one whose create is under way, or died: to create it once more completes it.
        try:
            return Log.create(name, where, options)  # Made by these options: nothing is left to check.
        except AlreadyExists:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")
