"""A process's view of a ledger: `History` follows the live one for all, `Replay` folds a past one for one owner."""

from statelog.history.following import Landed, LedgerView
from statelog.history.history import COMPARE_S, IDENTIFY_S, History
from statelog.history.replay import Replay
from statelog.history.source import LedgerSource, append_record, check_reaches, mismatch, records_at
from statelog.history.together import together

__all__ = [
    "COMPARE_S",
    "IDENTIFY_S",
    "History",
    "Landed",
    "LedgerSource",
    "LedgerView",
    "Replay",
    "append_record",
    "check_reaches",
    "mismatch",
    "records_at",
    "together",
]
