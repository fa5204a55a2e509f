"""Makes block-lazy.json: blocks, headers and unit keys of M-lazy (../block-protection.md).

Written from the description, not from the Rust code. Needs the package cryptography.
"""

import hashlib
import hmac
import json
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

UNIT = bytes([7]) * 16
EPOCHS = [(1, 1, bytes([1]) * 32), (2, 5, bytes([2]) * 32)]
DOMAIN = b"sealstone block protection v1"


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def block(lba, session, count, length):
    generation = session << 32 | count
    epoch, _, key = max(epoch for epoch in EPOCHS if epoch[1] <= session)
    plain = bytes((7 * at + at // 251) % 256 for at in range(length))
    derived = mac(key, b"sealstone M-lazy block v1", struct.pack(">QQ", lba, generation))
    associated = UNIT + struct.pack(">QQI", lba, generation, epoch)
    sealed = AESGCMSIV(derived).encrypt(bytes(12), plain, associated)
    return {
        "lba": lba, "session": session, "count": count, "epoch": epoch, "length": length,
        "key": derived.hex(), "tag": sealed[-16:].hex(),
        "sealed_sha256": hashlib.sha256(sealed[:-16]).hexdigest(),
    }


def unit_keys(session):
    out = struct.pack(">B3xII4x", 1, session, len(EPOCHS)) + UNIT
    return out + b"".join(struct.pack(">II", epoch, first) + key for epoch, first, key in EPOCHS)


def session_keys():
    settings = "".join(
        f"X-org.sealstone.{key}={value}\0"
        for key, value in [("LazyLevel", "M-lazy"), ("LazyBlock", "4096"), ("LazyProfile", "modern"), ("LazyRecord", "None")]
    ).encode()
    initiator_nonce, target_nonce = bytes([2]) * 32, bytes([3]) * 32
    parts = [DOMAIN, b"iqn.i", b"iqn.t", bytes([1]) * 6, settings, initiator_nonce, target_nonce]
    transcript = hashlib.sha256(b"".join(struct.pack(">Q", len(part)) + part for part in parts)).digest()
    chap, exporter = b"a secret of CHAP", bytes([4]) * 32
    lv = b"".join(struct.pack(">Q", len(part)) + part for part in [chap, exporter])
    secret = mac(initiator_nonce + target_nonce, lv)
    return lambda label: mac(secret, DOMAIN, b"\0", label, b"\0", transcript, b"\1")


def headers():
    derive = session_keys()
    cipher_key, mac_key = derive(b"header encryption"), derive(b"header authentication")
    out = []
    for counter, words in [(0, 0), (1, 3)]:
        bhs = bytearray([0x11]) * 48
        bhs[4] = words
        parts = []
        for part, data in [(0, bytes(bhs)), (1, bytes([0x22]) * words * 4)]:
            first = struct.pack(">QBB6x", counter, 1, part)
            parts.append(Cipher(algorithms.AES(cipher_key), modes.CTR(first)).encryptor().update(data))
        covered = struct.pack(">BHQ", 1, 0, counter) + b"".join(parts)
        tag = mac(mac_key, covered)[:16]
        out.append({"counter": counter, "ahs_words": words, "bhs": parts[0].hex(), "ahs": parts[1].hex(), "mac": tag.hex()})
    return {"target_proof": derive(b"proof of target").hex(), "headers": out}


vectors = {
    "about": "M-lazy. Byte i of a plain block is (7i + floor(i/251)) mod 256. Bytes of a plain BHS are 11h but TotalAHSLength, those of AHS 22h.",
    "unit_keys": {"session": 6, "bytes": unit_keys(6).hex()},
    "blocks": [
        block(0, 1, 0, 512), block(0x01020304, 3, 9, 4096), block(0x01020304, 4, 0xFFFFFFFF, 512),
        block(2**40, 5, 0, 4096), block(9, 0xFFFFFFFF, 1, 512),
    ],
    "session": headers(),
}
print(json.dumps(vectors, indent=1))
