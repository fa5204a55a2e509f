"""A client: files by path, and open files."""

import io
import os
import stat as stat_module
from dataclasses import dataclass
from typing import IO, Any, Optional, Union

from . import _native
from ._file import OpenMode, RawFile, content_of

PathLike = Union[str, bytes, "os.PathLike[str]"]

_FORMATS = {
    "file": stat_module.S_IFREG,
    "directory": stat_module.S_IFDIR,
    "symlink": stat_module.S_IFLNK,
    "fifo": stat_module.S_IFIFO,
    "socket": stat_module.S_IFSOCK,
    "character_device": stat_module.S_IFCHR,
    "block_device": stat_module.S_IFBLK,
}


@dataclass(frozen=True)
class Stat:
    """Attributes of a file or directory. Times are nanoseconds since 1970."""

    kind: str
    permissions: int
    owner: str
    group: Optional[str]
    links: int
    size: int
    inode: int
    version: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    birth_ns: int

    @property
    def mode(self) -> int:
        """Type and permission bits, as ``os.stat`` returns them."""
        return _FORMATS[self.kind] | self.permissions

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"


@dataclass(frozen=True)
class DirEntry:
    """An entry of a directory."""

    name: str
    kind: str
    stat: Optional[Stat]
    """Attributes; ``None`` in a directory that the user may list but not search."""


def range_of(start: int, end: Optional[int]) -> Optional[tuple[int, int]]:
    """Return a range of a file; ``None`` for the whole file."""
    if start < 0 or (end is not None and end < start):
        raise ValueError("start must not be negative, and end must not be below it")
    return None if start == 0 and end is None else (start, 2**63 - 1 if end is None else end)


def entries_of(entries: "list[_native._Entry]") -> list[DirEntry]:
    """Return the entries of a native listing."""
    return [
        DirEntry(os.fsdecode(name), kind, None if stat is None else Stat(*stat))
        for name, kind, stat in entries
    ]


class Client:
    """A user's connection to a cluster. Threads may share it."""

    def __init__(self, native: "_native.NativeClient") -> None:
        self._native: Optional[_native.NativeClient] = native

    def _open_native(self) -> "_native.NativeClient":
        if self._native is None:
            raise ValueError("the client is closed")
        return self._native

    def put(self, path: PathLike, data: Any, *, replace: bool = True, mode: int = 0o644) -> Stat:
        """Store bytes as one file: other clients see all of them or none.

        With ``replace=False``, an existing file is an error.
        """
        native, content = self._open_native(), content_of(data)
        return Stat(*native.put(os.fsencode(path), content, replace, mode).wait())

    def put_file(
        self, path: PathLike, local: PathLike, *, replace: bool = True, mode: int = 0o644
    ) -> Stat:
        """Store a local file with its modification time and holes."""
        native = self._open_native()
        return Stat(*native.put_file(os.fsencode(path), os.fsdecode(local), replace, mode).wait())

    def get(self, path: PathLike, *, start: int = 0, end: Optional[int] = None) -> bytes:
        """Return the bytes of a file, or those from ``start`` up to ``end``.

        A whole file is compared with the checksum that its writer recorded.
        """
        return self._open_native().get(os.fsencode(path), range_of(start, end)).wait()

    def list(self, path: PathLike = "/") -> "list[DirEntry]":
        """Return the entries of a directory, in byte order of their names."""
        return entries_of(self._open_native().list(os.fsencode(path)).wait())

    def stat(self, path: PathLike, *, follow_symlinks: bool = True) -> Stat:
        """Return the attributes of a file or directory."""
        return Stat(*self._open_native().stat(os.fsencode(path), follow_symlinks).wait())

    def exists(self, path: PathLike) -> bool:
        """Whether a path exists. Errors other than a missing name are raised."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def remove(self, path: PathLike, *, recursive: bool = False) -> int:
        """Remove a file or an empty directory, or a tree; return the number of removed nodes."""
        return self._open_native().remove(os.fsencode(path), recursive).wait()

    def mkdir(self, path: PathLike, *, parents: bool = False, mode: int = 0o755) -> None:
        """Create a directory. With ``parents``, missing parents too, and it may exist."""
        self._open_native().mkdir(os.fsencode(path), parents, mode).wait()

    def rename(self, source: PathLike, target: PathLike, *, replace: bool = True) -> None:
        """Rename a file or directory."""
        self._open_native().rename(os.fsencode(source), os.fsencode(target), replace).wait()

    def open(
        self,
        path: PathLike,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Open a file in place, as the built-in ``open`` does, with the same modes."""
        how = OpenMode.parse(mode)
        if how.binary and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode has no encoding, errors or newline")
        if buffering == 0 and not how.binary:
            raise ValueError("text mode needs a buffer")
        native = self._open_native().open(os.fsencode(path), *how.flags()).wait()
        raw = RawFile(native, os.fsdecode(path), mode, how)
        if buffering == 0:
            return raw  # type: ignore[return-value]
        size = buffering if buffering > 1 else BUFFER_BYTES
        buffer: Any
        if how.readable and how.writable:
            buffer = io.BufferedRandom(raw, size)
        elif how.writable:
            buffer = io.BufferedWriter(raw, size)
        else:
            buffer = io.BufferedReader(raw, size)
        if how.binary:
            return buffer  # type: ignore[no-any-return]
        line_buffering = buffering == 1
        return io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering)

    @property
    def user(self) -> str:
        """Name of the user."""
        return self._open_native().user().wait()

    def close(self) -> None:
        """Make written bytes of open files durable and end the session.

        Files that are still open cannot be read or written any more: close them first.
        """
        native, self._native = self._native, None
        if native is not None:
            native.logout().wait()

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._native is None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        try:
            self.close()
        except OSError:
            # The exception of the block is the cause, and a session ends by its time as well.
            if kind is None:
                raise


BUFFER_BYTES = 1 << 20
"""Size of the buffer of an open file unless set."""


def connect(
    cluster: PathLike,
    *,
    user: Optional[str] = None,
    password: Optional[Union[str, bytes]] = None,
    key_file: Optional[PathLike] = None,
) -> Client:
    """Log in to the cluster of a cluster file, with a password or with a service's key file."""
    return Client(login_of(cluster, user, password, key_file).wait())


def login_of(
    cluster: PathLike,
    user: Optional[str],
    password: Optional[Union[str, bytes]],
    key_file: Optional[PathLike],
) -> "_native.NativeOperation[_native.NativeClient]":
    """Return the login with a password or a key file."""
    server, pin = _native.read_cluster_file(os.fsdecode(cluster))
    if key_file is not None:
        if user is not None or password is not None:
            raise ValueError("a key file has the name of its user: give no user and no password")
        return _native.connect_with_key(server, pin, os.fsdecode(key_file))
    if user is None or password is None:
        raise ValueError("give user and password, or key_file")
    secret = password.encode() if isinstance(password, str) else password
    return _native.connect_with_password(server, pin, user, secret)
