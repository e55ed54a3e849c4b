"""Programs for Spark: a log that stores a stream's results."""
