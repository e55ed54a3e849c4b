"""How long the first round of a daemon waits, asked once when the daemon starts."""

from statelog.errors import StatelogError
from statelog.materializer.daemon.schedule import first_delay_s
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.storage.log.log import Log

__all__ = ["ask_first_delay_s"]


def ask_first_delay_s(log: Log, settings: MaterializerSettings) -> float:
    """How long the first round waits, by the age of the newest manifest, or of the log, on the store's clock.

    A store that does not answer changes nothing: the round will tell.
    """
    try:
        listed = log.manifests.listed()
        newest = [listed[max(listed)]] if listed else list(log.store.list(DESCRIPTOR_PATH))
        age_s = log.store.now_s() - max(info.modified_s for info in newest)
    except (StatelogError, ValueError):
        return first_delay_s(log.name, settings)
    wait_s = settings.interval_s if listed else first_delay_s(log.name, settings)
    return first_delay_s(log.name, settings, due_s=wait_s - age_s)
