"""How runs are opened: through the store, or as local copies that recoveries share."""

__all__: list[str] = []
