"""The ledger: its records, the fold that decides which of them are valid, and the folded state. Pure."""

__all__: list[str] = []
