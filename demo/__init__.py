"""The demo: statelog's main job on 336,776 real flights. `make demo` runs it; it is not part of the package."""

__all__: list[str] = []
