"""The ledger: its records, the fold that says which of them are valid, and what is folded. Pure."""

__all__: list[str] = []
