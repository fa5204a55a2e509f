"""The module ``_sealstone`` on local files, and a runner that tests call.

It refuses what a device refuses, with the same error numbers. It does not confine the function: run
only your own code.
"""

import importlib.util
import os
import sys
import time

_U64_MAX = (1 << 64) - 1
_READ_BYTES_MAX = 64 << 20
_REQUEST_BYTES_MAX = 4 << 20
_BUFFER_BYTES = 1 << 20
_ATTRIBUTE_BYTES_MAX = 65534
_STREAMS_MAX = 8
_LINE_BYTES_MAX = 4096
_FIRST_NUMBER = 0x10000
_LOCAL_BYTES_MAX = 1 << 40


class LocalDevice:
    """Objects in memory, and everything that a function writes."""

    def __init__(self, objects=(), result_bytes_max=16 << 20):
        self.objects = [bytearray(content) for content in objects]
        self.attributes = {}
        #: Handles of members by the handle of their collection.
        self.members = {}
        self.result_bytes = bytearray()
        self.log_lines = []
        self.progress_pair = (0, 0)
        self.result_bytes_max = result_bytes_max
        self.is_cancelled = False
        self._streams = {}
        self._next_stream = 0

    def _error(self, number):
        return OSError(number, os.strerror(number))

    def _number(self, value, highest=_U64_MAX, number=22):
        if not isinstance(value, int):
            raise TypeError("an integer is required")
        if not 0 <= value <= highest:
            raise self._error(22 if not 0 <= value <= _U64_MAX else number)
        return value

    def _object(self, handle):
        handle = self._number(handle, (1 << 32) - 1, 9)
        if handle >= len(self.objects):
            raise self._error(9)
        if self.objects[handle] is None:
            raise self._error(2)
        return self.objects[handle]

    def _range(self, offset, length):
        if self._number(offset) + self._number(length) > _U64_MAX:
            raise self._error(22)

    def read(self, handle, offset, length):
        if self._number(length) > _READ_BYTES_MAX:
            raise self._error(27)
        self._range(offset, length)
        return bytes(self._object(handle)[offset:offset + length])

    def write(self, handle, offset, data):
        self._range(offset, len(data))
        content = self._object(handle)
        if data and offset > len(content):
            if offset > _LOCAL_BYTES_MAX:
                raise self._error(27)
            content.extend(bytes(offset - len(content)))
        content[offset:offset + len(data)] = data
        return len(data)

    def append(self, handle, data):
        if len(data) > _REQUEST_BYTES_MAX:
            raise self._error(27)
        content = self._object(handle)
        content.extend(data)
        return len(content) - len(data)

    def punch(self, handle, offset, length):
        self._range(offset, length)
        content = self._object(handle)
        end = min(len(content), offset + length)
        del content[offset:end]

    def clear(self, handle, offset, length):
        self._range(offset, length)
        content = self._object(handle)
        if not length:
            return
        if offset + length > _LOCAL_BYTES_MAX:
            raise self._error(27)
        if offset + length > len(content):
            content.extend(bytes(offset + length - len(content)))
        content[offset:offset + length] = bytes(length)

    def length(self, handle):
        return len(self._object(handle))

    def _attribute(self, handle, page, number):
        self._object(handle)
        return (handle, self._number(page, (1 << 32) - 1), self._number(number, (1 << 32) - 1))

    def get_attribute(self, handle, page, number):
        key = self._attribute(handle, page, number)
        if key not in self.attributes:
            raise self._error(2)
        return self.attributes[key]

    def set_attribute(self, handle, page, number, value):
        key = self._attribute(handle, page, number)
        if len(value) > _ATTRIBUTE_BYTES_MAX:
            raise self._error(27)
        if value:
            self.attributes[key] = value
        else:
            self.attributes.pop(key, None)

    def list(self, handle, after):
        self._object(handle)
        self._number(after)
        members = self.members.get(handle)
        present = (i for i, content in enumerate(self.objects) if content is not None)
        numbers = (_FIRST_NUMBER + i for i in present if members is None or i in members)
        return tuple(number for number in numbers if number > after)

    def create(self, partition):
        self._object(partition)
        self.objects.append(bytearray())
        return len(self.objects) - 1, _FIRST_NUMBER + len(self.objects) - 1

    def remove(self, handle):
        self._object(handle)
        if handle in self.members:
            raise self._error(22)
        self._remove(handle)

    def _remove(self, handle):
        self.objects[handle] = None
        for members in self.members.values():
            members.discard(handle)

    def create_collection(self, collection):
        handle, number = self.create(collection)
        self.members[handle] = set()
        return handle, number

    def _members(self, collection):
        self._object(collection)
        if collection not in self.members:
            raise self._error(22)
        return self.members[collection]

    def _member(self, handle):
        self._object(handle)
        if handle in self.members:
            raise self._error(22)
        return handle

    def remove_collection(self, collection, force):
        members = self._members(collection)
        if self._number(force) > 1:
            raise self._error(22)
        if members and not force:
            raise self._error(39)
        del self.members[collection]
        self._remove(collection)

    def add_member(self, collection, handle):
        self._members(collection).add(self._member(handle))

    def remove_member(self, collection, handle):
        members = self._members(collection)
        if self._member(handle) not in members:
            raise self._error(2)
        members.remove(handle)

    def is_member(self, collection, handle):
        return self._member(handle) in self._members(collection)

    def flush(self, handle):
        self._object(handle)

    def result(self, data):
        self.result_bytes += data
        if len(self.result_bytes) > self.result_bytes_max:
            raise SystemExit("the result exceeded %d bytes" % self.result_bytes_max)

    def log(self, level, text):
        if level not in (1, 2, 3):
            raise self._error(22)
        self.log_lines.append((level, text[:_LINE_BYTES_MAX].decode("utf-8", "replace")))

    def progress(self, done, total):
        self.progress_pair = (self._number(done), self._number(total))

    def cancelled(self):
        return self.is_cancelled

    def clock(self):
        return int(time.time() * 1000)

    def _open(self, stream):
        if len(self._streams) >= _STREAMS_MAX:
            raise self._error(16)
        self._next_stream += 1
        self._streams[self._next_stream] = stream
        return self._next_stream

    def _stream(self, stream, kind):
        if stream not in self._streams or self._streams[stream][0] != kind:
            raise self._error(9)
        return self._streams[stream]

    def reader_open(self, handle, offset, length):
        self._number(offset)
        self._number(length)
        return self._open(["reader", handle, offset, offset + length])

    def reader_bytes(self, reader):
        stream = self._stream(reader, "reader")
        _, handle, offset, end = stream
        content = self._object(handle)
        chunk = bytes(content[offset:min(end, offset + _BUFFER_BYTES)])
        stream[2] = offset + len(chunk)
        return chunk

    def reader_view(self, reader):
        return memoryview(self.reader_bytes(reader)) if self._has_more(reader) else None

    def _has_more(self, reader):
        _, handle, offset, end = self._stream(reader, "reader")
        return offset < min(end, len(self._object(handle)))

    def reader_close(self, reader):
        self._stream(reader, "reader")
        del self._streams[reader]

    def writer_open(self, handle, offset):
        return self._open(["writer", handle, self._number(offset), 0])

    def writer_commit(self, writer, data):
        stream = self._stream(writer, "writer")
        if len(data) > _BUFFER_BYTES:
            raise self._error(22)
        stream[2] += self.write(stream[1], stream[2], data)

    def writer_close(self, writer):
        self._stream(writer, "writer")
        del self._streams[writer]


class LocalResult:
    """The outcome of a local call."""

    def __init__(self, status, device):
        #: 0, or the status of the function.
        self.status = status
        self.result = bytes(device.result_bytes)
        #: Pairs of level and text.
        self.log = device.log_lines
        self.objects = [None if content is None else bytes(content) for content in device.objects]
        self.progress = device.progress_pair


def _interface(device):
    """Loads the package over a device of its own, so that calls do not share state."""
    name = "sealstone_function"
    previous = sys.modules.get("_sealstone"), sys.modules.get(name)
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["_sealstone"] = device
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _restore(previous)
        raise
    return module, previous


def _restore(previous):
    for name, module in zip(("_sealstone", "sealstone_function"), previous):
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module


def run_function(path, objects=(), arguments=None, method="", secret=False):
    """Runs a function file once over objects in memory; returns a LocalResult.

    An exception without an error number has the status None; the log has its traceback.
    """
    device = LocalDevice(objects)
    with open(path, "rb") as file:
        source = file.read()
    encoded = b"".join(
        ("%s=%s" % (name, value)).encode("utf-8") + b"\0" for name, value in (arguments or {}).items()
    )
    fields = [
        (_FIRST_NUMBER, _FIRST_NUMBER + index, len(content), 0x80, 0xFF)
        for index, content in enumerate(device.objects)
    ]
    streams = sys.stdout, sys.stderr, sys.unraisablehook
    interface, previous = _interface(device)
    try:
        run = interface._load(source, "function", os.path.abspath(path))
        status = interface._run(run, method, encoded, fields, 0, device.result_bytes_max, secret)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        status = None
    finally:
        sys.stdout, sys.stderr, sys.unraisablehook = streams
        sys.modules.pop("function", None)
        _restore(previous)
    return LocalResult(status, device)
