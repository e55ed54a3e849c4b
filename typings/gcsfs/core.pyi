from fsspec.spec import AbstractFileSystem

class GCSFileSystem(AbstractFileSystem):
    def __init__(self, **storage_options: object) -> None: ...
