"""What docs/mkdocs_hook.py uses of a page."""

from mkdocs.structure.files import File

class Page:
    file: File
