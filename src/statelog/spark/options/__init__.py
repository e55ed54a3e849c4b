"""Options of `format("statelog")`: checked once, as frozen values. Pure."""

__all__: list[str] = []
