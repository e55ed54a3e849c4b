"""Web: a page that shows logs, read only. Served by `statelog serve`; needs the extra `[web]`."""

__all__: list[str] = []
