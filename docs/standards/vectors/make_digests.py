#!/usr/bin/env python3
"""Makes digests.json: values of units and edges. Python and its standard library, SHA-1's and BLAKE3's compression
functions written out from FIPS 180-4 and the BLAKE3 paper, so that nothing of the Rust code is used."""
import hashlib
import hmac
import json
import os

M32 = 0xFFFFFFFF
H0 = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0]


def rol(x, n):
    return (x << n | x >> (32 - n)) & M32


def sha1_compress(state, block):
    w = [int.from_bytes(block[i:i + 4], "big") for i in range(0, 64, 4)]
    for t in range(16, 80):
        w.append(rol(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1))
    a, b, c, d, e = state
    for t in range(80):
        if t < 20:
            f, k = (b & c) | (~b & d), 0x5A827999
        elif t < 40:
            f, k = b ^ c ^ d, 0x6ED9EBA1
        elif t < 60:
            f, k = (b & c) | (b & d) | (c & d), 0x8F1BBCDC
        else:
            f, k = b ^ c ^ d, 0xCA62C1D6
        a, b, c, d, e = (rol(a, 5) + f + e + k + w[t]) & M32, a, rol(b, 30), c, d
    return [(x + y) & M32 for x, y in zip(state, (a, b, c, d, e))]


def number(state):
    return int.from_bytes(b"".join(x.to_bytes(4, "big") for x in state), "big")


def adhash(size, within, data):
    """Sum of the elements; bytes of a cut block go to the front, their number into word 4."""
    total, at = 0, 0
    while at < len(data):
        j = (within + at) // size
        part = data[at:at + size - (within + at) % size]
        at += len(part)
        short = len(part) if len(part) < size else 0
        block = part.ljust(size, b"\0")
        halves = []
        for side in (0, 1):
            state = [H0[0] ^ (2 * j + side)] + H0[1:4] + [H0[4] ^ short]
            half = block[side * size // 2:(side + 1) * size // 2]
            for i in range(0, len(half), 64):
                state = sha1_compress(state, half[i:i + 64])
            halves.append(number(state))
        total += (halves[0] << 96) ^ halves[1]
    return (total % (1 << 256)).to_bytes(32, "big")


IV = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
CHUNK_START, CHUNK_END, PARENT, ROOT, DERIVE_CONTEXT, DERIVE_MATERIAL = 1, 2, 4, 8, 32, 64


def ror(x, n):
    return (x >> n | x << (32 - n)) & M32


def blake3_compress(cv, block, counter, length, flags):
    m = [int.from_bytes(block.ljust(64, b"\0")[i:i + 4], "little") for i in range(0, 64, 4)]
    v = cv + IV[:4] + [counter & M32, counter >> 32, length, flags]

    def g(a, b, c, d, x, y):
        v[a] = (v[a] + v[b] + x) & M32
        v[d] = ror(v[d] ^ v[a], 16)
        v[c] = (v[c] + v[d]) & M32
        v[b] = ror(v[b] ^ v[c], 12)
        v[a] = (v[a] + v[b] + y) & M32
        v[d] = ror(v[d] ^ v[a], 8)
        v[c] = (v[c] + v[d]) & M32
        v[b] = ror(v[b] ^ v[c], 7)

    for _ in range(7):
        g(0, 4, 8, 12, m[0], m[1])
        g(1, 5, 9, 13, m[2], m[3])
        g(2, 6, 10, 14, m[4], m[5])
        g(3, 7, 11, 15, m[6], m[7])
        g(0, 5, 10, 15, m[8], m[9])
        g(1, 6, 11, 12, m[10], m[11])
        g(2, 7, 8, 13, m[12], m[13])
        g(3, 4, 9, 14, m[14], m[15])
        m = [m[i] for i in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def words(cv):
    return b"".join(x.to_bytes(4, "little") for x in cv)


def subtree(key, data, chunk, flags, root):
    """Chaining value of the data as a subtree that starts at this chunk."""
    last = ROOT if root else 0
    if len(data) <= 1024:
        cv, blocks = key, [data[i:i + 64] for i in range(0, len(data), 64)] or [b""]
        for i, block in enumerate(blocks):
            f = flags | (CHUNK_START if i == 0 else 0) | (CHUNK_END | last if i == len(blocks) - 1 else 0)
            cv = blake3_compress(cv, block, chunk, len(block), f)
        return cv
    chunks = (len(data) - 1) // 1024
    left = 1 << (chunks.bit_length() - 1)
    pair = words(subtree(key, data[:left * 1024], chunk, flags, False))
    pair += words(subtree(key, data[left * 1024:], chunk + left, flags, False))
    return blake3_compress(key, pair, 0, 64, flags | PARENT | last)


def derive(context, data):
    key = subtree(IV, context, 0, DERIVE_CONTEXT, True)
    return words(subtree(key, data, 0, DERIVE_MATERIAL, True))


def value(profile, part, start, data):
    if profile == "sha1":
        return hashlib.sha1(data).digest()
    if profile.startswith("adhash"):
        return adhash(int(profile[6:]), start % 8192, data)
    if part == "whole":
        return words(subtree(IV, data, start // 1024, 0, False))
    return derive(b"osd range edge v1", data + start.to_bytes(8, "big"))


# The published vectors of BLAKE3 for inputs of 0 and 1025 bytes hold this program to the paper.
assert words(subtree(IV, b"", 0, 0, True)).hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
assert words(subtree(IV, bytes(i % 251 for i in range(1025)), 0, 0, True)).hex().startswith(
    "d00278ae47eb27b34faecf67b4fe263f")
assert sha1_compress(H0, b"abc\x80".ljust(63, b"\0") + b"\x18")[0] == 0xA9993E36

OBJECT = bytes((7 * i + i // 251) % 256 for i in range(40000))
key = b"\x0b" * 20
RANGES = [("whole", 0, 8192), ("whole", 8192, 8500), ("whole", 8192, 8193), ("edge", 5000, 8192), ("edge", 8192, 8292),
          ("edge", 9000, 9001)]
TREES = [("whole", 0, 16384), ("whole", 16384, 32768), ("whole", 32768, 40000), ("whole", 32768, 32769),
         ("whole", 0, 3000), ("edge", 5000, 16384), ("edge", 16384, 20000), ("edge", 17, 18)]
rows = [{"profile": profile, "part": part, "from": a, "to": b, "value": value(profile, part, a, OBJECT[a:b]).hex()}
        for profile, ranges in [("sha1", RANGES), ("adhash128", RANGES), ("adhash256", RANGES), ("blake3", TREES)]
        for part, a, b in ranges]
# The design's own, as given there; its capability key is that of the OSD-1 vector in given.json.
CAP_KEY = "85f36466f20cd733db4b9a7e9d3d6d3a519790b6"
header = ("4f5344484d00010101010000019b76daabe8aaaaaaaaaaaa00000000000100000000000000010001000000000000138800000000"
          "00002ee00000000000004e200000000000000000000020000000000300000000000000000000000000000000")
digests = [hashlib.sha1(OBJECT[a:b]).hexdigest() for a, b in [(5000, 8192), (8192, 16384), (16384, 17000)]]
icv = hmac.new(bytes.fromhex(CAP_KEY), bytes.fromhex(header + "".join(digests)), "sha1").hexdigest()
assert icv == "5b25bd3bbf12108305ec3653fee1304ae6fa4492", icv
given = {
    "hiermac": {"cap_key": CAP_KEY, "header": header, "digests": digests, "icv": icv},
    "adhash": {"ad128": "253a6551b10bf88b021ceb7127465070ab970c9d48a3591a6d082227c1d99633",
               "ad256": "f221b09d63c1d4216579d93457139224e59c49046689fcb61d5dd8095e254f92"},
}
assert given["adhash"] == {f"ad{size}": adhash(size, 0, OBJECT[:8192]).hex() for size in (128, 256)}
out = {
    "about": "Stored digests. The object's byte i is (7i + floor(i/251)) mod 256. `given` are the design's own: the "
             "read of 12000 bytes at 5000 of an object of 20000 bytes under HierMAC, and the first 8192 bytes under "
             "AdHash. `values`: bytes from..to as a whole unit (that ends with the object) or as an edge.",
    "given": given,
    "values": rows,
}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "digests.json"), "w") as file:
    json.dump(out, file, indent=1)
    file.write("\n")
