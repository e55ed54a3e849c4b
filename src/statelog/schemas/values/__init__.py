"""Values: their schemas, schema evolution, and values as Arrow and as Avro. Pure."""

__all__: list[str] = []
