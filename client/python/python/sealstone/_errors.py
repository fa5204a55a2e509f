"""Exceptions. Each is an ``OSError`` with an error number; some also have the class that ``open`` raises."""

import errno
import os
from typing import Optional


class Error(OSError):
    """A failed operation. ``errno`` and ``filename`` are those of ``OSError``."""


class NotFoundError(Error, FileNotFoundError):
    """No such file or directory."""


class ExistsError(Error, FileExistsError):
    """The name exists already."""


class NotDirectoryError(Error, NotADirectoryError):
    """The operation needs a directory."""


class IsDirectoryError(Error, IsADirectoryError):
    """The operation needs a file."""


class DeniedError(Error, PermissionError):
    """The user may not do that, or a device refused the credential."""


class LoginError(DeniedError):
    """Wrong name, password or key, another certificate, or the session has ended."""


class LoginThrottledError(Error, BlockingIOError):
    """Too many login attempts; the message has the time to wait (``EAGAIN``)."""


class TimedOutError(Error, TimeoutError):
    """A server or a device did not respond in time."""


class ConnectionLostError(Error, ConnectionError):
    """No connection to the metadata server. The outcome of a change is unknown."""


class QuotaError(Error):
    """A quota is exceeded (``EDQUOT``)."""


class DamagedError(Error):
    """A device cannot read back what it stored, or a checksum differs (``EIO``)."""


class ClusterError(Error):
    """A cluster cannot start or stop, or its file is wrong; the message has the next step."""


_OF_KIND: dict[str, type[Error]] = {
    "connection": ConnectionLostError,
    "damaged": DamagedError,
    "login": LoginError,
    "throttled": LoginThrottledError,
}

_OF_ERRNO: dict[int, type[Error]] = {
    errno.ENOENT: NotFoundError,
    errno.EEXIST: ExistsError,
    errno.ENOTDIR: NotDirectoryError,
    errno.EISDIR: IsDirectoryError,
    errno.EACCES: DeniedError,
    errno.EPERM: DeniedError,
    errno.ETIMEDOUT: TimedOutError,
    errno.EDQUOT: QuotaError,
}


def from_native(kind: str, number: int, message: str, path: Optional[bytes]) -> Error:
    """Return the exception of an error of the native half."""
    if kind == "cluster":
        # Missing files and permissions of this machine have the classes of `open`.
        local: dict[int, type[Error]] = {errno.EACCES: DeniedError, errno.ENOENT: NotFoundError}
        made = local.get(number, ClusterError)
    else:
        made = _OF_KIND.get(kind) or _OF_ERRNO.get(number, Error)
    return made(number, message) if path is None else made(number, message, os.fsdecode(path))
