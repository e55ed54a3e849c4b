"""Lake: a Delta Lake table that is kept equal to a log. Needs deltalake, and no Spark."""

from statelog.lake.delta import Exported, export

__all__ = ["Exported", "export"]
