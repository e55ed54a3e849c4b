"""Lake: export a log to a Delta Lake table. Needs deltalake, not Spark."""

from statelog.lake.delta import Exported, export

__all__ = ["Exported", "export"]
