"""Questions about a log outside its rounds: when the first one is due, and whether damage is the log's own deletion."""

from collections.abc import Callable

from statelog.errors import Damaged, IdentityChanged, NotFound, StatelogError
from statelog.log import Log
from statelog.materializer.schedule import first_delay_s
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.schemas.topic_policy import ROUND

_DELETE_CHECKS, _DELETE_CHECK_S = 20, 0.5


def ask_first_delay_s(log: Log, settings: MaterializerSettings) -> float:
    """Return how long the first round waits, by the age of the newest manifest, or of the log, on the store's clock.

    A store that does not answer is ignored: the round will report it.
    """
    try:
        listed = log.manifests.listed()
        newest = [listed[max(listed)]] if listed else list(log.store.list(DESCRIPTOR_PATH))
        age_s = log.store.now_s() - max(info.modified_s for info in newest)
    except (StatelogError, ValueError):
        return first_delay_s(log.name, settings)
    wait_s = settings.interval_s if listed else first_delay_s(log.name, settings)
    return first_delay_s(log.name, settings, due_s=wait_s - age_s)


def final_error(log: Log, error: StatelogError, wait: Callable[[float], object]) -> StatelogError:
    """Return the error that rounds ended with, or NotFound if the log is being deleted.

    Such a log looks damaged until its descriptor, the last file, is deleted. So the log is checked for some seconds.
    """
    for _ in range(_DELETE_CHECKS if isinstance(error, Damaged) else 0):
        try:
            log.verify_now(ROUND)
        except NotFound as deleted:
            return deleted
        except IdentityChanged:
            wait(_DELETE_CHECK_S)
        except StatelogError:
            break
        else:
            break
    return error
