#!/usr/bin/env python3
"""Makes login.json: whole logins of the paper profile, byte by byte. Written from docs/standards/paper-login.md, with
nothing but Python's standard library (AES and GHASH are below), so that the Rust code and this agree only if both follow
the page."""

import hashlib
import hmac
import ipaddress
import json
import os
import struct
import unicodedata

PI_PRIMES = {
    # number: (bits, shift of pi, constant): 2^n - 2^(n-64) - 1 + 2^64 * (floor(2^shift pi) + constant)
    1: (768, 638, 149686),
    2: (1024, 894, 129093),
    5: (1536, 1406, 741804),
    14: (2048, 1918, 124476),
}


def pi_times_two_to(shift):
    """floor(2^shift * pi), by Machin's formula."""
    guard = 64
    one = 1 << (shift + guard)

    def arctan_inverse(n):
        total = term = one // n
        divisor, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // divisor)
            divisor, sign = divisor + 2, -sign
        return total

    return 4 * (4 * arctan_inverse(5) - arctan_inverse(239)) >> guard


def prime(group):
    bits, shift, constant = PI_PRIMES[group]
    return 2**bits - 2 ** (bits - 64) - 1 + 2**64 * (pi_times_two_to(shift) + constant)


# --- AES and GCM ---

def xtime(a):
    return ((a << 1) ^ 0x1B) & 0xFF if a & 0x80 else a << 1


def gf(a, b):
    out = 0
    while b:
        if b & 1:
            out ^= a
        a, b = xtime(a), b >> 1
    return out


def sbox():
    box = []
    for value in range(256):
        inverse = next((x for x in range(256) if gf(value, x) == 1), 0)
        out = 0x63
        for shift in range(5):
            out ^= (inverse << shift | inverse >> (8 - shift)) & 0xFF
        box.append(out)
    return box


SBOX = sbox()


def expand(key):
    words = [list(key[i : i + 4]) for i in range(0, len(key), 4)]
    n, rounds, rcon = len(words), len(words) + 6, 1
    for i in range(n, 4 * (rounds + 1)):
        word = list(words[-1])
        if i % n == 0:
            word = [SBOX[b] for b in word[1:] + word[:1]]
            word[0] ^= rcon
            rcon = xtime(rcon)
        elif n > 6 and i % n == 4:
            word = [SBOX[b] for b in word]
        words.append([a ^ b for a, b in zip(words[-n], word)])
    return [sum(words[4 * r : 4 * r + 4], []) for r in range(rounds + 1)]


def aes(key, block):
    keys = expand(key)
    state = [a ^ b for a, b in zip(block, keys[0])]
    for r, round_key in enumerate(keys[1:], 1):
        state = [SBOX[b] for b in state]
        state = [state[(i + 4 * (i % 4)) % 16] for i in range(16)]
        if r < len(keys) - 1:
            mixed = []
            for c in range(0, 16, 4):
                a = state[c : c + 4]
                mixed += [gf(a[i], 2) ^ gf(a[(i + 1) % 4], 3) ^ a[(i + 2) % 4] ^ a[(i + 3) % 4] for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, round_key)]
    return bytes(state)


assert aes(bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def cbc(key, iv, text):
    pad = 16 - len(text) % 16
    text, out, last = text + bytes([pad]) * pad, b"", iv
    for i in range(0, len(text), 16):
        last = aes(key, bytes(a ^ b for a, b in zip(text[i : i + 16], last)))
        out += last
    return out


def ghash(h, data):
    h, y = int.from_bytes(h, "big"), 0
    for i in range(0, len(data), 16):
        y ^= int.from_bytes(data[i : i + 16].ljust(16, b"\0"), "big")
        z, v = 0, h
        for bit in range(127, -1, -1):
            if y >> bit & 1:
                z ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        y = z
    return y.to_bytes(16, "big")


def gcm(key, nonce, text, associated):
    def pad(data):
        return data + bytes(-len(data) % 16)

    stream = b"".join(aes(key, nonce + struct.pack(">I", i + 2)) for i in range((len(text) + 15) // 16))
    sealed = bytes(a ^ b for a, b in zip(text, stream))
    lengths = struct.pack(">QQ", 8 * len(associated), 8 * len(sealed))
    tag = ghash(aes(key, bytes(16)), pad(associated) + pad(sealed) + lengths)
    mask = aes(key, nonce + struct.pack(">I", 1))
    return sealed + bytes(a ^ b for a, b in zip(tag, mask))


# --- the protocol ---

TYPES = dict(cookie_req=1, cookie_rsp=2, init=3, resp=4, confirm=5, session_ok=6, logout=7, logout_ok=8, cont=9, cont_ok=10, data=16)


def lv(data):
    return struct.pack(">H", len(data)) + data


def header(kind, length, sequence):
    return b"OSMA" + bytes([1, 0, TYPES[kind], 0]) + struct.pack(">II", length, sequence)


def frame(kind, body, sequence=0):
    return header(kind, len(body), sequence) + body


def address(text):
    return ipaddress.ip_address(text).packed


class Keys:
    def __init__(self, hash_name, skeyid):
        self.hash, self.skeyid = hash_name, skeyid

    def prf(self, key, data):
        return hmac.new(key, data, self.hash).digest()

    def expand(self, label, context, length):
        out, i = b"", 1
        while len(out) < length:
            out += self.prf(self.skeyid, label + context + bytes([i]))
            i += 1
        return out[:length]


class Direction:
    def __init__(self, keys, encryption, name, context):
        self.keys, self.encryption, self.number = keys, encryption, 0
        self.e = keys.expand(b"e " + name, context, 32)
        self.a = keys.expand(b"a " + name, context, len(keys.skeyid))

    def record(self, kind, content, iv):
        self.number += 1
        number = struct.pack(">Q", self.number)
        if self.encryption == 1:
            length = 8 + 16 + len(content) // 16 * 16 + 16 + len(self.a)
            head = header(kind, length, self.number)
            sealed = head + number + iv + cbc(self.e[:16], iv, content)
            return sealed + self.keys.prf(self.a, sealed)
        head = header(kind, 8 + len(content) + 16, self.number)
        return head + number + gcm(self.e, bytes(4) + number, content, head + number)


def login(about, *, user, passphrase, client, server, client_id, server_id, group, offers, choice, n_c, n_m, x, y, time_ms, conservative):
    p, length = prime(group), PI_PRIMES[group][0] // 8
    k = hashlib.sha1(b"OSDK1" + lv(user.encode()) + unicodedata.normalize("NFC", passphrase).encode()).digest()
    cky_c = hashlib.sha1(address(client) + k).digest()[:8]
    cky_m = hashlib.sha1(address(server) + k).digest()[:8]
    k_i = hashlib.sha1(n_c + k).digest()

    def sign(text):
        return hmac.new(k_i, text, "sha1").digest()

    def element(number):
        return number.to_bytes(length, "big")

    x_number, y_number = int.from_bytes(x, "big"), int.from_bytes(y, "big")
    gx, gy = element(pow(2, x_number, p)), element(pow(2, y_number, p))
    gxy = element(pow(2, x_number * y_number, p))
    grp, ts = struct.pack(">I", group), struct.pack(">Q", time_ms)
    uid, idc, idm = user.encode(), client_id.encode(), server_id.encode()
    tbs1 = lv(idc) + lv(idm) + lv(uid) + lv(n_c) + lv(b"") + grp + lv(gx) + lv(b"") + lv(offers)
    tbs2 = lv(idm) + lv(idc) + lv(uid) + lv(n_m) + lv(n_c) + grp + lv(gy) + lv(gx) + lv(choice) + ts
    tbs3 = lv(idc) + lv(idm) + lv(uid) + lv(n_c) + lv(n_m) + grp + lv(gx) + lv(gy) + lv(choice) + ts
    sig1, sig2, sig3 = sign(tbs1), sign(tbs2), sign(tbs3)
    frames = {}
    if conservative:
        frames["cookie_req"] = frame("cookie_req", cky_c + lv(uid))
        frames["cookie_rsp"] = frame("cookie_rsp", cky_c + cky_m)
    first = cky_m if conservative else bytes(8)
    frames["init"] = frame("init", cky_c + first + grp + lv(uid) + lv(idc) + lv(idm) + lv(n_c) + lv(gx) + lv(offers) + lv(sig1))
    frames["resp"] = frame("resp", cky_c + cky_m + grp + lv(uid) + lv(idm) + lv(idc) + lv(n_m) + lv(n_c) + lv(gy) + lv(choice) + ts + lv(sig2))
    frames["confirm"] = frame("confirm", cky_c + cky_m + lv(n_c) + lv(n_m) + lv(sig3))
    encryption, hash_name = choice[1], {2: "sha1", 3: "sha256"}[choice[3]]
    keys = Keys(hash_name, hmac.new(n_c + n_m, gxy + cky_c + cky_m, hash_name).digest())
    c2m, m2c = Direction(keys, encryption, b"c2m", b""), Direction(keys, encryption, b"m2c", b"")
    session, iv = bytes(range(0xA0, 0xB0)), bytes(range(0x40, 0x50))
    terms = session + struct.pack(">QIQ", time_ms + 43_200_000, 1800, 64 << 30)
    question, answer = b"what a client asks", bytes(range(33))
    frames["session_ok"] = m2c.record("session_ok", terms, iv)
    frames["data_to_server"] = c2m.record("data", question, iv)
    frames["data_to_client"] = m2c.record("data", answer, iv)
    frames["logout"] = c2m.record("logout", session, iv)
    frames["logout_ok"] = m2c.record("logout_ok", session, iv)
    # Another connection.
    nonce_c, nonce_m = bytes(range(0x10, 0x20)), bytes(range(0x20, 0x30))
    key = keys.expand(b"continue", b"", len(keys.skeyid))
    frames["continue"] = frame("cont", session + nonce_c + lv(keys.prf(key, b"c" + session + nonce_c)))
    frames["continue_ok"] = frame("cont_ok", nonce_m + ts + lv(keys.prf(key, b"m" + session + nonce_c + nonce_m + ts)))
    again = Direction(keys, encryption, b"c2m", nonce_c + nonce_m)
    frames["continued_data_to_server"] = again.record("data", question, iv)
    back = Direction(keys, encryption, b"m2c", nonce_c + nonce_m)
    frames["continued_data_to_client"] = back.record("data", answer, iv)
    return {
        "about": about,
        "user": user, "passphrase": passphrase, "client_address": client, "server_address": server,
        "client_id": client_id, "server_id": server_id, "group": group, "conservative": conservative,
        "offers": offers.hex(), "choice": choice.hex(), "n_c": n_c.hex(), "n_m": n_m.hex(), "x": x.hex(), "y": y.hex(),
        "time_ms": time_ms, "session": session.hex(), "expires_ms": time_ms + 43_200_000, "idle_s": 1800,
        "rekey_bytes": 64 << 30, "iv": iv.hex(), "question": question.hex(), "answer": answer.hex(),
        "continue_n_c": nonce_c.hex(), "continue_n_m": nonce_m.hex(),
        "k": k.hex(), "cky_c": cky_c.hex(), "cky_m": cky_m.hex(), "k_i": k_i.hex(), "skeyid": keys.skeyid.hex(),
        "gx_sha256": hashlib.sha256(gx).hexdigest(), "gy_sha256": hashlib.sha256(gy).hexdigest(),
        "gxy_sha256": hashlib.sha256(gxy).hexdigest(), "tbs1": tbs1.hex(),
        "sig1": sig1.hex(), "sig2": sig2.hex(), "sig3": sig3.hex(),
        "frames": {name: data.hex() for name, data in frames.items()},
    }


def digest(text):
    return hashlib.sha256(text.encode()).digest()


VECTORS = [
    login(
        "the design's own inputs, security.md 2.2",
        user="alice", passphrase="correct horse battery", client="192.0.2.10", server="192.0.2.1",
        client_id="client1", server_id="mds1", group=2,
        offers=bytes([1, 1, 2, 2, 3, 1]), choice=bytes([1, 1, 2, 2, 3, 1]),
        n_c=bytes(range(16)), n_m=bytes(range(16, 32)), x=digest("x"), y=digest("y"), time_ms=1_170_000_000_000,
        conservative=False,
    ),
    login(
        "group 14, AES-256-GCM, SHA-256, IPv6, a passphrase that is not in form C",
        user="b.o-b@example", passphrase="cafe\u0301 Ångstro\u0308m", client="2001:db8::10", server="2001:db8::1",
        client_id="workstation", server_id="mds1", group=14,
        offers=bytes([1, 9, 1, 1, 2, 3, 2, 2, 3, 1]), choice=bytes([1, 9, 2, 3, 3, 1]),
        n_c=digest("n_c")[:16], n_m=digest("n_m")[:16], x=digest("x2"), y=digest("y2"), time_ms=1_795_000_000_123,
        conservative=True,
    ),
    login(
        "group 5, AES-128-CBC, SHA-256; unknown and withdrawn algorithms in the offer are passed over",
        user="carol", passphrase="x", client="10.0.0.7", server="10.0.0.1", client_id="c", server_id="m", group=5,
        offers=bytes([1, 2, 1, 1, 2, 1, 2, 3, 3, 1, 77, 1]), choice=bytes([1, 1, 2, 3, 3, 1]),
        n_c=digest("n_c3")[:16], n_m=digest("n_m3")[:16], x=digest("x3"), y=digest("y3"), time_ms=1,
        conservative=True,
    ),
    login(
        "group 1 (refused unless the server is told to take it), AES-256-GCM, SHA-1",
        user="dave", passphrase="old", client="::1", server="::1", client_id="c", server_id="m", group=1,
        offers=bytes([1, 9, 2, 2, 3, 1]), choice=bytes([1, 9, 2, 2, 3, 1]),
        n_c=digest("n_c4")[:16], n_m=digest("n_m4")[:16], x=digest("x4"), y=digest("y4"), time_ms=2**63,
        conservative=False,
    ),
]

if __name__ == "__main__":
    given = VECTORS[0]
    assert given["k"] == "77c9d94e3a6678943b39e389dc589a0ea8f5399a"
    assert (given["cky_c"], given["cky_m"]) == ("8aadcecc9891fef2", "6de1e6497ad850bc")
    assert given["k_i"] == "0114686ab10a94c096b71ed31ec412e6ec95c5c0"
    assert given["sig1"] == "fad2b3323f37a3c5513c9e83966e07b7644ef9ba"
    assert given["skeyid"] == "db7f9584208afce8cbff3bc95bc20a2615df0315"
    about = "whole logins of the paper profile, frame by frame: docs/standards/paper-login.md"
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "login.json")
    with open(path, "w", encoding="ascii") as out:
        json.dump({"about": about, "vectors": VECTORS}, out, indent=1)
        out.write("\n")
