"""Imports what functions use, and looks for what they must not find."""

import base64, bisect, collections, csv, dataclasses, datetime, decimal, enum, functools, hashlib, heapq
import io, itertools, json, math, os, random, re, statistics, string, struct, sys, time, typing, unicodedata
import zlib
from xml.etree import ElementTree


def run(osd, call):
    assert json.loads("[1, 2]") == [1, 2] and re.sub("a", "b", "aa") == "bb"
    assert hashlib.sha256(b"").hexdigest().startswith("e3b0c442")
    assert zlib.decompress(zlib.compress(b"data")) == b"data"
    assert ElementTree.fromstring("<a><b/></a>").tag == "a"
    assert decimal.Decimal("0.1") + decimal.Decimal("0.2") == decimal.Decimal("0.3")
    assert datetime.datetime(2024, 2, 29).isoformat() and math.isqrt(49) == 7
    assert list(csv.reader(io.StringIO("a,b\n"))) == [["a", "b"]]
    # Only the standard library and the function itself are in the root.
    assert all("python3" in path for path in sys.path), sys.path
    assert "site" not in sys.modules and sys.flags.isolated == 1 and sys.flags.no_site == 1
    try:
        os.listdir("/")
    except PermissionError:
        pass
    for path in ("/proc", "/etc/passwd", "/dev/null", "/usr/bin/python3", "/tmp"):
        assert not os.path.exists(path), path
    assert not os.environ.get("HOME")
    return 0
