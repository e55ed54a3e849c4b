"""The publisher of a table's outputs: messages that its commits list, sent to their topics once they are history."""

__all__: list[str] = []
