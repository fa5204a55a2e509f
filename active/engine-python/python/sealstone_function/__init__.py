"""Interface of Python functions that run beside the data of Sealstone.

A function is a source file with ``def run(osd, call)``. The engine of a device and the local runner
(``python3 -m sealstone_function``) both execute this file; they differ in the module ``_sealstone``
below it, which checks every number and every length.
"""

import sys
from _operator import index as _index

try:
    import _sealstone
except ImportError:
    # On the machine of an author; `sealstone_function.local` executes this file over its own module.
    _sealstone = None

ERROR = 1
WARNING = 2
INFO = 3

#: Maximum bytes of one ``read``; larger objects are read by ``stream``.
READ_BYTES_MAX = 64 << 20
#: Bytes of one buffer of a stream.
BUFFER_BYTES = 1 << 20
#: Lines of a traceback that the log of the job receives.
TRACEBACK_LINES_MAX = 24
#: Maximum number of arguments.
ARGUMENTS_MAX = 256

_ALL = (1 << 63) - 1
_KINDS = {0x02: "partition", 0x40: "collection", 0x80: "user"}
_RIGHTS = (
    (0x80, "read"), (0x40, "write"), (0x20, "get_attribute"), (0x10, "set_attribute"),
    (0x08, "create"), (0x04, "remove"), (0x02, "manage"), (0x01, "append"),
)


class ObjectHandle:
    """An object of a call. Every method of ``Osd`` accepts it, or its number ``handle``."""

    __slots__ = ("handle", "partition", "number", "length", "kind", "rights")

    def __init__(self, handle, partition, number, length, kind, rights):
        self.handle = handle
        self.partition = partition
        self.number = number
        #: Length at the start of the call.
        self.length = length
        self.kind = _KINDS.get(kind, "unknown")
        self.rights = frozenset(name for bit, name in _RIGHTS if rights & bit)

    def __index__(self):
        return self.handle

    def __repr__(self):
        return "<object %d: %#x/%#x, %d bytes>" % (self.handle, self.partition, self.number, self.length)


class Call:
    """The description of a call."""

    __slots__ = ("method", "argument_bytes", "objects", "timeout_ms", "result_bytes_max", "_arguments")

    def __init__(self, method, argument_bytes, objects, timeout_ms, result_bytes_max):
        self.method = method
        self.argument_bytes = argument_bytes
        self.objects = objects
        self.timeout_ms = timeout_ms
        self.result_bytes_max = result_bytes_max
        self._arguments = None

    @property
    def arguments(self):
        """The arguments as a dict of strings; ValueError if they are not ``name=value`` strings."""
        if self._arguments is None:
            self._arguments = parse_arguments(self.argument_bytes)
        return self._arguments


def parse_arguments(encoded):
    """Returns the dict of ``name=value`` strings that end with a zero byte each."""
    if not encoded:
        return {}
    if encoded[-1]:
        raise ValueError("the last argument has no zero byte at its end")
    arguments = {}
    for position, item in enumerate(encoded[:-1].split(b"\0")):
        name, equals, value = item.decode("utf-8").partition("=")
        if position >= ARGUMENTS_MAX or not equals or not name or name in arguments:
            raise ValueError("argument %d is not a new name=value string" % position)
        arguments[name] = value
    return arguments


class Writer:
    """A stream that writes behind. ``close``, or the end of a ``with`` block, reports errors."""

    def __init__(self, stream):
        self._stream = stream
        self._pending = bytearray()

    def write(self, data):
        """Writes bytes at the position of the stream; returns their number."""
        if self._stream is None:
            raise ValueError("the stream is closed")
        rest = memoryview(data).cast("B")
        length = len(rest)
        while rest:
            part = rest[:BUFFER_BYTES - len(self._pending)]
            rest = rest[len(part):]
            if len(part) < BUFFER_BYTES:
                self._pending += part
                if len(self._pending) < BUFFER_BYTES:
                    break
                part, self._pending = self._pending, bytearray()
            _sealstone.writer_commit(self._stream, bytes(part))
        return length

    def close(self):
        """Writes the rest and waits for all writes."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            if self._pending:
                _sealstone.writer_commit(stream, bytes(self._pending))
        finally:
            self._pending = bytearray()
            _sealstone.writer_close(stream)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()


class Osd:
    """The calls of a function. A refused call raises OSError with the number of ``errno``."""

    ERROR = ERROR
    WARNING = WARNING
    INFO = INFO

    def __init__(self, call):
        self._call = call

    @property
    def arguments(self):
        """The arguments of the call as a dict of strings."""
        return self._call.arguments

    def read(self, handle, offset=0, length=None):
        """Returns bytes of an object, fewer than ``length`` only at its end; at most 64 MiB.

        Without a length, all bytes up to the end of the object.
        """
        handle = _index(handle)
        if length is None:
            length = max(0, _sealstone.length(handle) - _index(offset))
        return _sealstone.read(handle, _index(offset), _index(length))

    def write(self, handle, offset, data):
        """Writes all bytes at an offset; returns their number."""
        return _sealstone.write(_index(handle), _index(offset), _bytes(data))

    def append(self, handle, data):
        """Appends at most 4 MiB in one step; returns the offset of the first byte."""
        return _sealstone.append(_index(handle), _bytes(data))

    def punch(self, handle, offset, length):
        """Removes a range of bytes."""
        _sealstone.punch(_index(handle), _index(offset), _index(length))

    def clear(self, handle, offset, length):
        """Writes zeros to a range of bytes; the object is extended if it ends before."""
        _sealstone.clear(_index(handle), _index(offset), _index(length))

    def length(self, handle):
        """Returns the length of an object in bytes."""
        return _sealstone.length(_index(handle))

    def attribute(self, handle, page, number):
        """Returns the value of an attribute; FileNotFoundError if it is absent."""
        return _sealstone.get_attribute(_index(handle), _index(page), _index(number))

    def set_attribute(self, handle, page, number, value):
        """Sets an attribute to a value of at most 65534 bytes; no bytes remove it."""
        _sealstone.set_attribute(_index(handle), _index(page), _index(number), _bytes(value))

    def list(self, handle, after=0):
        """Returns an iterator over the numbers of the objects of a partition or collection."""
        handle, after = _index(handle), _index(after)
        while True:
            numbers = _sealstone.list(handle, after)
            if not numbers:
                return
            yield from numbers
            after = numbers[-1]

    def create(self, partition):
        """Creates an object in a partition; returns its handle and its number."""
        return _sealstone.create(_index(partition))

    def remove(self, handle):
        """Removes an object."""
        _sealstone.remove(_index(handle))

    def create_collection(self, collection):
        """Creates a collection; returns its handle and its number."""
        return _sealstone.create_collection(_index(collection))

    def remove_collection(self, collection, force=False):
        """Removes a collection; its members stay. Unless ``force`` is true, it must be empty."""
        _sealstone.remove_collection(_index(collection), 1 if force else 0)

    def add_member(self, collection, handle):
        """Makes an object a member of a collection."""
        _sealstone.add_member(_index(collection), _index(handle))

    def remove_member(self, collection, handle):
        """Ends the membership of an object in a collection."""
        _sealstone.remove_member(_index(collection), _index(handle))

    def is_member(self, collection, handle):
        """Whether an object is a member of a collection."""
        return _sealstone.is_member(_index(collection), _index(handle))

    def flush(self, handle):
        """Returns when the written bytes of an object survive a loss of power."""
        _sealstone.flush(_index(handle))

    def result(self, data):
        """Appends bytes, or a string as UTF-8, to the result of the call."""
        _sealstone.result(data.encode("utf-8") if isinstance(data, str) else _bytes(data))

    def log(self, text, level=INFO):
        """Writes lines to the log of the job; bytes of a line beyond 4096 are dropped."""
        for line in str(text).splitlines():
            _sealstone.log(_index(level), line.encode("utf-8", "backslashreplace"))

    def progress(self, done, total=0):
        """Reports progress: so many units of a total, which is 0 if it is unknown."""
        _sealstone.progress(_index(done), _index(total))

    def cancelled(self):
        """Whether the job was cancelled; the function then returns soon, or is killed."""
        return _sealstone.cancelled()

    def clock(self):
        """Returns the time of the device in milliseconds since 1970."""
        return _sealstone.clock()

    def views(self, handle, offset=0, length=None):
        """Returns an iterator over a range, as memoryviews of at most 1 MiB without a copy.

        A view is valid until the next one is requested. The device reads ahead meanwhile.
        """
        reader = _sealstone.reader_open(_index(handle), _index(offset), _range_length(length))
        try:
            while True:
                view = _sealstone.reader_view(reader)
                if view is None:
                    return
                try:
                    yield view
                finally:
                    view.release()
        finally:
            _sealstone.reader_close(reader)

    def stream(self, handle, offset=0, length=None):
        """Returns an iterator over a range, as bytes of at most 1 MiB; the device reads ahead."""
        reader = _sealstone.reader_open(_index(handle), _index(offset), _range_length(length))
        try:
            while True:
                chunk = _sealstone.reader_bytes(reader)
                if not chunk:
                    return
                yield chunk
        finally:
            _sealstone.reader_close(reader)

    def lines(self, handle, offset=0, length=None, limit=BUFFER_BYTES):
        """Returns an iterator over lines without their line feed.

        A line above the limit raises OSError (EFBIG).
        """
        rest = b""
        for chunk in self.stream(handle, offset, length):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if len(line) > limit:
                    raise _line_too_long(limit)
                yield line
            if len(rest) > limit:
                raise _line_too_long(limit)
        if rest:
            yield rest

    def writer(self, handle, offset=0):
        """Opens a stream that writes behind: a Writer."""
        return Writer(_sealstone.writer_open(_index(handle), _index(offset)))


def _bytes(data):
    """Returns the bytes of a buffer; TypeError for a number or a string."""
    return data if type(data) is bytes else memoryview(data).tobytes()


def _line_too_long(limit):
    return OSError(27, "a line has more than %d bytes" % limit)


def _range_length(length):
    return _ALL if length is None else _index(length)


class _LogStream:
    """Standard output and error of a function: lines of the log."""

    encoding = "utf-8"
    errors = "backslashreplace"
    closed = False

    def __init__(self, level):
        self._level = level
        self._line = ""

    def write(self, text):
        *lines, rest = (self._line + text).split("\n")
        for line in lines:
            _sealstone.log(self._level, line.encode("utf-8", "backslashreplace"))
        self._line = rest
        if len(rest) > 4096:
            self.flush()
        return len(text)

    def flush(self):
        if self._line:
            line, self._line = self._line, ""
            _sealstone.log(self._level, line.encode("utf-8", "backslashreplace"))

    def isatty(self):
        return False

    def writable(self):
        return True


def _trace_lines(error, secret):
    """Returns the last lines of the traceback. With secret arguments it has no message."""
    import traceback

    summary = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    name = type(error).__name__
    if secret:
        lines = traceback.format_list(summary) + [name + " (message omitted: the arguments are secret)"]
    elif isinstance(error, SyntaxError):
        lines = traceback.format_list(summary) + traceback.format_exception_only(type(error), error)
    else:
        lines = traceback.format_list(summary) + ["%s: %s" % (name, error) if str(error) else name]
        if error.__cause__ is not None:
            lines.append("caused by %s: %s" % (type(error.__cause__).__name__, error.__cause__))
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines).splitlines()


def _report(error, secret):
    """Writes an exception to the log of the job."""
    for line in _trace_lines(error, secret)[-TRACEBACK_LINES_MAX:]:
        _sealstone.log(ERROR, line.encode("utf-8", "backslashreplace"))


def _status_of(error):
    """Returns the status of an exception that has one, or None."""
    if isinstance(error, MemoryError):
        return -12
    if isinstance(error, OSError) and type(error.errno) is int and 0 < error.errno < 4096:
        return -error.errno
    return None


def _report_unraisable(unraisable):
    _sealstone.log(WARNING, b"exception ignored: " + unraisable.exc_type.__name__.encode())


def _flush_output():
    """Writes lines without a line feed to the log of the call that printed them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _LogStream):
            stream.flush()


def _load(source, name, path):
    """Compiles and executes a source file as a module; returns its ``run``."""
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    sys.stdout, sys.stderr = _LogStream(INFO), _LogStream(WARNING)
    sys.unraisablehook = _report_unraisable
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        run = module.__dict__.get("run")
        if not callable(run):
            raise TypeError("the module defines no function run(osd, call)")
    except BaseException as error:
        _report(error, False)
        raise
    return run


def _run(run, method, argument_bytes, objects, timeout_ms, result_bytes_max, secret):
    """Runs a call; returns its status. An exception without an error number is reported and raised."""
    handles = [ObjectHandle(handle, *fields) for handle, fields in enumerate(objects)]
    call = Call(method, argument_bytes, handles, timeout_ms, result_bytes_max)
    osd = Osd(call)
    try:
        status = run(osd, call)
        if status is None:
            status = 0
        elif isinstance(status, (bytes, bytearray, memoryview, str)):
            osd.result(status)
            status = 0
        elif not isinstance(status, int) or not -(1 << 63) <= status < 1 << 63:
            raise TypeError("run returned %s, not a status, bytes, str or None" % type(status).__name__)
        _flush_output()
        return int(status)
    except BaseException as error:
        _flush_output()
        _report(error, secret)
        status = _status_of(error)
        if status is None:
            raise
        return status
