"""Values: schemas, how they change, and values as Arrow and as Avro. Pure."""

__all__: list[str] = []
