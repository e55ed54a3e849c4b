"""The store port on a local or mounted directory.

Owns the durable write: a temporary file in the same directory, fsync, an exclusive hard link (or a rename, to
replace), and fsync of the directory. Never follows a symbolic link out of the log's directory to delete.

Files and directories below the log's directory get its rights, whatever the umask and the user. These are 0700, and so
0600 for files, unless it was made with another mode, or changed since. So users who share a log need no settings.

Invariant: a call that returned survives a power cut, and no name ever shows a partial file.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from statelog.closing import undone_by_errors
from statelog.errors import AlreadyExists, UnsafeStore
from statelog.schemas.names import check_name
from statelog.store.disk.disk import open_private, sync
from statelog.store.port import FileInfo, RangeReader, Store
from statelog.store.url import check_path, temporary_name

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_COPY_BYTES = 4 << 20


# ---- durable writes


def _make_directory(directory: Path, mode: int) -> None:
    """Make a directory and its missing parents durably."""
    if directory.is_dir():
        return
    _make_directory(directory.parent, mode)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(mode)
    sync(directory.parent)


def _write_temporary(directory: Path, fill: Callable[[BinaryIO], object], mode: int = 0o600) -> Path:
    """Write and sync a file under a name that no listing shows. A failure leaves no file."""
    temporary = directory / temporary_name(uuid4().hex)
    with undone_by_errors(temporary.unlink, missing_ok=True), open(temporary, "xb", opener=open_private) as file:
        fill(file)
        file.flush()
        if mode != 0o600:
            os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    return temporary


def _replace_durably(target: Path, fill: Callable[[BinaryIO], object], mode: int = 0o600) -> None:
    """Write `target` durably, atomically replacing an earlier one. Raises OSError."""
    temporary = _write_temporary(target.parent, fill, mode)
    try:
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync(target.parent)


def _link(temporary: Path, target: Path) -> None:
    """Give a finished file its name, if the name is free."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        # A file server can repeat a request whose answer was lost: if the name is our file's, this call made it.
        if not temporary.samefile(target):
            raise
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise UnsafeStore(
                "The file system has no hard links, so a file cannot be created exclusively",
                hint="Use a POSIX file system, or an object store with conditional writes",
                path=str(target),
            ) from error
        raise


class LocalStore(Store):
    """One log's directory below a local root. Stateless: safe in threads, after a fork, and to pickle."""

    def __init__(self, root: Path, log: str, *, directory_mode: int = 0o700) -> None:
        """Make a store. `directory_mode`: the rights of the log's directory and its parents, if they are made here."""
        self._root = root
        self._directory_mode = directory_mode
        self._directory = root / check_name("log", log)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def url(self) -> str:
        """The directory as a file URL."""
        return f"file://{self._directory}"

    def check(self) -> None:
        """Check as every store does. Raises UnsafeStore, too, if the log's directory is a symbolic link."""
        if self._directory.is_symlink():
            raise UnsafeStore(
                "The log's directory is a symbolic link", hint="Point the root at its target", store=self.url
            )
        super().check()

    def put(self, path: str, data: bytes) -> None:
        """Replace a file by a rename."""
        self._replace("write", check_path(path), lambda file: file.write(data))

    def upload(self, local: Path, path: str) -> None:
        """Copy a local file here durably."""
        check_path(path)
        with self._guard("upload", path, reading=False), local.open("rb") as source:
            self._replace("upload", path, lambda file: shutil.copyfileobj(source, file, _COPY_BYTES))

    def download(self, path: str, local: Path) -> None:
        """Copy a file to `local`, which appears whole or not at all."""
        check_path(path)
        with self._guard("download", path, reading=True):
            source = (self._directory / path).open("rb")
        # From here on, a FileNotFoundError means the target directory, not the file.
        with source, self._guard("make a local copy of", path, reading=False):
            _replace_durably(local, lambda file: shutil.copyfileobj(source, file, _COPY_BYTES))

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a reader whose reads raise statelog's errors."""
        check_path(path)
        with self._guard("open", path, reading=True):
            source = (self._directory / path).open("rb")

        def ask(read: Callable[[], bytes]) -> bytes:
            with self._guard("read", path, reading=True):
                return read()

        return RangeReader.of(source, ask)

    def tidy(self) -> None:
        """Remove empty directories; not through a symbolic link, and never the root."""
        if self._directory.is_symlink():
            return
        for directory, _, _ in os.walk(self._directory, topdown=False):
            with suppress(OSError):  # It is not empty, perhaps because the log is being created again.
                Path(directory).rmdir()

    def siblings(self) -> Sequence[str]:
        """Return the names of the directories in the root."""
        with self._guard("list", "..", reading=False):
            try:
                with os.scandir(self._root) as entries:
                    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return []

    def free_bytes(self) -> int:
        """Return the bytes that the file system has left for this user."""
        with self._guard("ask the free space of", ".", reading=True):
            return shutil.disk_usage(self._directory).free

    def now_s(self) -> float:
        """Return the time that the file system stamps on a file written now. Takes three system calls."""
        with self._guard("ask the time of", ".", reading=False):
            self._make(self._directory)
            probe = _write_temporary(self._directory, lambda file: file.write(b"t"))
            try:
                return probe.stat().st_mtime
            finally:
                probe.unlink()

    def _make(self, directory: Path) -> int:
        """Make a directory of the log if it is missing, and return the rights of the log's own. Raises OSError."""
        _make_directory(self._directory, self._directory_mode)
        mode = stat.S_IMODE(self._directory.stat().st_mode) & 0o2777
        _make_directory(directory, mode)
        return mode

    def _create(self, path: str, data: bytes) -> None:
        """Create by an exclusive hard link, so that exactly one caller wins."""
        target = self._directory / path
        with self._guard("create", path, reading=False):
            mode = self._make(target.parent)
            temporary = _write_temporary(target.parent, lambda file: file.write(data), mode & 0o666)
            try:
                _link(temporary, target)
            except FileExistsError as error:
                raise AlreadyExists(f"{path} is there already", store=self.url, path=path) from error
            finally:
                temporary.unlink(missing_ok=True)
            sync(target.parent)

    def _replace(self, action: str, path: str, fill: Callable[[BinaryIO], object]) -> None:
        target = self._directory / path
        with self._guard(action, path, reading=False):
            mode = self._make(target.parent)
            _replace_durably(target, fill, mode & 0o666)

    def _read(self, path: str) -> bytes:
        with self._guard("read", path, reading=True):
            return (self._directory / path).read_bytes()

    def _delete(self, path: str) -> None:
        """Delete a file, unless a symbolic link leads out of the log's directory."""
        target = self._directory / path
        with self._guard("delete", path, reading=False), suppress(FileNotFoundError):
            # Only the root's own path may contain links: one below it could lead to other users' files.
            if target.parent.resolve(strict=True) != self._root.resolve() / target.parent.relative_to(self._root):
                raise UnsafeStore("A symbolic link leads out of the log's directory", store=self.url, path=path)
            target.unlink()
            sync(target.parent)

    def _files(self, prefix: str) -> Sequence[FileInfo]:
        with self._guard("list", prefix, reading=False):
            found = _walk(self._directory / prefix.rpartition("/")[0])
        above = len(f"{self._directory}/")
        relative = (info._replace(path=info.path[above:]) for info in found)
        return [info for info in relative if info.path.startswith(prefix)]


def _walk(directory: Path) -> list[FileInfo]:
    """Return all regular files below a directory; none if it does not exist. Raises OSError."""
    files: list[FileInfo] = []
    pending = [directory]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # It was deleted since the directory was read.
                        status = entry.stat(follow_symlinks=False)
                        files.append(FileInfo(entry.path, status.st_size, status.st_mtime))
    return files
