"""Functions that the tests select by method."""

import sys
import time

print("imported")
COUNT = 0
KEPT = []


def run(osd, call):
    return globals()["do_" + call.method](osd, call)


def do_count(osd, call):
    global COUNT
    COUNT += 1
    return COUNT


def do_raise(osd, call):
    raise ValueError("bad value " + call.arguments.get("key", ""))


def do_exit(osd, call):
    sys.exit(0)


def do_leave(osd, call):
    import os

    os._exit(7)


def do_missing(osd, call):
    return osd.read(9, 0, 1)


def do_wrong(osd, call):
    return 1.5


def do_print(osd, call):
    print("one\ntwo", end="")
    print("three", file=sys.stderr)


def do_partial(osd, call):
    print("partial", end="")
    raise OSError(28, "full")


def do_wait(osd, call):
    while not osd.cancelled():
        time.sleep(0.001)
    return -125


def do_keep(osd, call):
    stream = osd.stream(0)
    next(stream)
    view = next(osd.views(0))
    KEPT.append((osd, stream, view, osd.writer(0)))


def do_kept(osd, call):
    """Uses what the last call left behind."""
    old, stream, view, writer = KEPT.pop()
    errors = []
    for use in (lambda: next(stream), lambda: writer.write(bytes(1 << 20))):
        try:
            use()
        except OSError as error:
            errors.append(error.errno)
    assert errors == [9, 9], errors
    assert old.read(0) == osd.read(0)
    return 0


def do_finalizer(osd, call):
    class Late:
        def __del__(self):
            osd.read(0)

    call.objects.append(Late())
    KEPT.append(Late())


def do_streams(osd, call):
    """Copies an object by streams, in pieces that fit no buffer."""
    data = bytes(range(256)) * 12289
    with osd.writer(0) as writer:
        for start in range(0, len(data), 700001):
            writer.write(data[start:start + 700001])
    assert osd.length(0) == len(data)
    assert b"".join(osd.stream(0)) == data
    assert b"".join(bytes(view) for view in osd.views(0)) == data
    assert osd.read(0) == data
    for _ in range(20):
        next(osd.stream(0))
    # The heap of the tests has buffers for two streams.
    readers = [osd.stream(0) for _ in range(3)]
    try:
        for reader in readers:
            next(reader)
    except OSError as error:
        return error.errno
