"""Changes: in bulk, as chunks of the data topic, in key order, and as a plan of what to replay. Pure."""

__all__: list[str] = []
