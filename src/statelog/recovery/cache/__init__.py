"""How runs are opened: on the store, or as local copies shared by recoveries."""

__all__: list[str] = []
