"""Programs for Spark: a log as the place where a stream's results live."""
