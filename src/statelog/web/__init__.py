"""Web: a read-only page that shows logs, served by `statelog serve`. Needs the extra `[web]`."""

__all__: list[str] = []
