"""One round: fold the tail, upload runs, put the manifest, clean up."""

__all__: list[str] = []
