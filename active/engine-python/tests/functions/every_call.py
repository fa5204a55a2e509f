"""Uses every call of the interface."""

import errno

from sealstone_function import INFO, Osd


def expect_error(number, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == number, (error.errno, number)
    else:
        raise AssertionError("no error")


def run(osd: Osd, call):
    assert call.method == "every" and osd.arguments == {"a": "1"} == call.arguments
    first, second = call.objects
    assert (first.length, first.kind, first.handle) == (5, "user", 0) and "read" in first.rights
    assert osd.read(first, 1, 3) == b"ell" and osd.read(0) == b"hello" and osd.read(0, 9, 4) == b""
    assert osd.write(second, 0, bytearray(b"abcdef")) == 6
    osd.punch(1, 0, 1)
    assert osd.append(1, memoryview(b" end")) == 5
    assert osd.length(second) == 9
    osd.set_attribute(0, 0x10000, 7, b"value")
    assert osd.attribute(first, 0x10000, 7) == b"value"
    expect_error(errno.ENOENT, osd.attribute, 0, 0x10000, 8)
    assert list(osd.list(0)) == [0x10000, 0x10001]
    handle, number = osd.create(0)
    assert (handle, number) == (2, 0x10002)
    osd.remove(handle)
    osd.flush(0)
    osd.clear(first, 5, 2)
    assert osd.read(0) == b"hello\0\0"
    osd.punch(0, 5, 2)
    expect_error(errno.EINVAL, osd.clear, 0, (1 << 64) - 1, 1)
    collection, number = osd.create_collection(0)
    assert (collection, number) == (3, 0x10003) and osd.is_member(3, second) is False
    osd.add_member(collection, second)
    assert osd.is_member(3, 1) is True and list(osd.list(3)) == [0x10001]
    expect_error(errno.ENOTEMPTY, osd.remove_collection, 3)
    osd.remove_member(3, 1)
    expect_error(errno.ENOENT, osd.remove_member, 3, 1)
    expect_error(errno.EINVAL, osd.add_member, 1, 0)
    osd.add_member(3, 1)
    osd.remove_collection(3, force=True)
    expect_error(errno.ENOENT, osd.is_member, 3, 1)
    osd.progress(1, 2)
    assert osd.cancelled() is False and osd.clock() > 0
    assert b"".join(osd.stream(0)) == b"hello" and [bytes(v) for v in osd.views(0, 1, 2)] == [b"el"]
    assert list(osd.lines(1)) == [b"bcdef end"]

    expect_error(errno.EBADF, osd.read, 7, 0, 1)
    expect_error(errno.EBADF, osd.read, 1 << 40, 0, 1)
    expect_error(errno.EINVAL, osd.read, -1, 0, 1)
    expect_error(errno.EINVAL, osd.read, 0, 1 << 64, 1)
    expect_error(errno.EINVAL, osd.read, 0, (1 << 64) - 1, 2)
    expect_error(errno.EFBIG, osd.read, 0, 0, (64 << 20) + 1)
    expect_error(errno.EFBIG, osd.append, 1, bytes((4 << 20) + 1))
    expect_error(errno.EINVAL, osd.attribute, 0, 1 << 32, 0)
    expect_error(errno.EINVAL, osd.log, "text", 4)
    expect_error(errno.EFBIG, lambda: list(osd.lines(0, limit=3)))
    for wrong in ("0", None, 1.5):
        try:
            osd.read(wrong, 0, 1)
        except TypeError:
            pass
        else:
            raise AssertionError(wrong)
    try:
        osd.write(1, 0, 10)
    except TypeError:
        pass
    else:
        raise AssertionError("a number is no data")

    osd.log("checked", INFO)
    osd.result("a")
    return b"ll"
