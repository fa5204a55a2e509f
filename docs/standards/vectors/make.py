#!/usr/bin/env python3
"""Makes the vectors beside this file, from docs/standards/security.md and Python's own hmac.

Written apart from the Rust code: where both agree, the description is complete. Run it after a pinned choice
changed; `cargo test -p sealstone-seal --test all vectors` then says what the code thinks of it.
"""

import hashlib
import hmac
import json
import pathlib
import struct

import make_digests as digests

HERE = pathlib.Path(__file__).parent
HASHES = {"01": "sha1", "f0": "sha256", "f1": "sha256", "f3": "sha256", "f4": "sha1", "f5": "sha1"}
LABELS = {
    "request": b"sealstone osd req v1",
    "response": b"sealstone osd rsp v1",
    "data_in": b"sealstone osd din v1",
    "data_out": b"sealstone osd dout v1",
}
SIZES = {1: dict(cdb=200, capability=80, icv=20), 2: dict(cdb=236, capability=104, icv=32)}
METHODS = {"NOSEC": 0, "CAPKEY": 1, "CMDRSP": 2, "ALLDATA": 3}

SYSTEM_ID = bytes.fromhex("f1000000000102030405060708090a0b0c0d0e0f")
NONCE = bytes.fromhex("019b76daabe8aaaaaaaaaaaa")
TOKEN = bytes(range(0x20, 0x40))
PARTITION, OBJECT = 0x10000, 0x10001


def mac(hash_name, key, *parts):
    return hmac.new(key, b"".join(parts), hash_name).digest()


def purpose_key(code, cap_key, purpose):
    """F1h, F3h: HKDF-Expand (RFC 5869) to 32 bytes, one block. Otherwise one key for everything."""
    return mac("sha256", cap_key, LABELS[purpose], b"\x01") if code in ("f1", "f3") else cap_key


def capability(generation, slot, method, key_version=0):
    head = bytearray(56)
    head[0] = generation
    head[1] = key_version << 4 | slot
    head[2] = METHODS[method]
    head[4:10] = (0x01B8DAC5B400).to_bytes(6, "big")
    head[10:30] = b"audit-vector-0000001"
    head[30:42] = bytes(range(12))
    head[42:48] = (0x019B76DAA800).to_bytes(6, "big")
    head[48] = 0x80
    head[49] = 0xC0
    head[55] = 0x10
    if generation == 1:
        return bytes(head) + struct.pack(">IQQI", 7, PARTITION, OBJECT, 0)
    return bytes(head) + struct.pack(">IIH6xQQQQ", 0, 7, 0, PARTITION, OBJECT, 2**64 - 1, 0)


def cdb(generation, cap, nonce, write, continuation=0):
    """READ, or WRITE, of 8192 bytes at 0; list format without lists, all offsets unused; request ICV zero."""
    sizes = SIZES[generation]
    out = bytearray(sizes["cdb"])
    out[0] = 0x7F
    out[7] = sizes["cdb"] - 8
    out[8:10] = struct.pack(">H", {1: 0x8805, 2: 0x8885}[generation] + write)
    out[11] = 0x30
    out[16:32] = struct.pack(">QQ", PARTITION, OBJECT)
    if generation == 1:
        out[36:52] = struct.pack(">QQ", 8192, 0)
    else:
        out[32:52] = struct.pack(">QQI", 8192, 0, continuation)
    for at in (56, 64, 72):
        out[at : at + 4] = b"\xff" * 4
    icv = 80 + sizes["capability"]
    out[80:icv] = cap
    out[icv + sizes["icv"] : icv + sizes["icv"] + 12] = nonce
    out[-8:] = b"\xff" * 8
    return bytes(out)


# Hash and MAC, by code: profile of the digests, its number and that of the digest of lists in the header, unit.
COVERS = {"f3": ("blake3", 4, 4, 16384), "f4": ("sha1", 1, 1, 8192), "f5": ("adhash256", 3, 1, 8192)}


def list_digest(code, part):
    if COVERS[code][2] == 1:
        return hashlib.sha1(part).digest()
    return digests.words(digests.subtree(digests.IV, part, 0, 0, True))


def cover(code, start, data, object_length):
    """One value for each unit that the data touch; `whole` where they are all that the object has of it."""
    profile, _, _, unit = COVERS[code]
    values, at = [], start
    while at < start + len(data):
        first = at - at % unit
        stop = min(first + unit, start + len(data))
        part = "whole" if at == first and stop == min(first + unit, object_length) else "edge"
        values.append(digests.value(profile, part, at, data[at - start : stop - start]))
        at = stop
    return values


def hash_and_mac(code, key, inward, start, data, object_length, set_list, get_list):
    """Digest values and check value. Outward the end of the object is not known."""
    _, number, list_number, unit = COVERS[code]
    values = cover(code, start or 0, data, object_length if inward else 2**64 - 1)
    header = b"OSDHM\0" + bytes([1, number, 1 if inward else 2, list_number, 0, 0]) + NONCE
    header += struct.pack(">QQQQ", PARTITION, OBJECT, start or 0, len(data))
    header += struct.pack(">QQIIQQ", object_length if inward else 0, 0, unit, len(values), len(set_list), len(get_list))
    lists = [list_digest(code, part) for part in (set_list, get_list) if part]
    return values, mac(HASHES[code], key, header, *values, *lists)


def field(tag, generation):
    """A tag in a wire field: left aligned, then zeros."""
    return tag + bytes(SIZES[generation]["icv"] - len(tag))


def sense(generation, icv, good):
    """QUOTA ERROR with a field pointer, or the carrier of GOOD; the response ICV descriptor is the last one."""
    body = b"" if good else bytes.fromhex("02060000c0002000")
    body += bytes([7, SIZES[generation]["icv"]]) + icv
    head = [0x72, 0, 0, 0, 0, 0, 0, len(body)] if good else [0x72, 7, 0x55, 0x07, 0, 0, 0, len(body)]
    return bytes(head) + body


def combinations():
    for generation in (1, 2):
        for slot, code in enumerate(("01", "f1", "f0")):
            if len(mac(HASHES[code], b"")) <= SIZES[generation]["icv"]:
                yield generation, slot, code


def hexed(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: hexed(entry) for key, entry in value.items()}
    return [hexed(entry) for entry in value] if isinstance(value, list) else value


def store(name, about, vectors):
    text = json.dumps({"about": about, "vectors": hexed(vectors)}, indent=1)
    (HERE / name).write_text(text + "\n")


def keys():
    vectors = []
    for hash_name in ("sha1", "sha256"):
        pair = lambda parent, seed, suffix=b"": {
            "generation": mac(hash_name, parent, seed[:-1] + bytes([seed[-1] & 0xFE]), suffix),
            "authentication": mac(hash_name, parent, seed[:-1] + bytes([seed[-1] | 1]), suffix),
        }
        seed = lambda level, version, partition: b"sealstone" + struct.pack(">BBQB", level, version, partition, 0)
        initial = bytes([0xA5]) * hashlib.new(hash_name).digest_size
        master = pair(initial, seed(1, 0, 0), SYSTEM_ID)
        root = pair(master["generation"], seed(2, 0, 0))
        entry = {"hash": hash_name, "initial_key": initial, "system_id": SYSTEM_ID, "master": master, "root": root}
        entry["partitions"] = []
        for partition in (0, PARTITION):
            keys = pair(root["generation"], seed(3, 0, partition))
            working = pair(keys["generation"], seed(4, 0, partition))["authentication"]
            entry["partitions"].append({"partition": partition, **keys, "working_0": working})
        set_seed = bytes(range(1, 21))
        entry["set_key_seed"] = set_seed
        entry["set_key_root"] = pair(master["generation"], set_seed)
        entry["set_key_working"] = pair(keys["generation"], set_seed)["authentication"]
        vectors.append(entry)
    store(
        "keys.json",
        "Factory hierarchy of an initial key; then SET KEY root under the factory's master, and SET KEY working "
        "under the factory's keys of partition 10000h, both with set_key_seed.",
        vectors,
    )


def credentials_and_messages():
    credentials, requests, responses, data, continuations = [], [], [], [], []
    content = bytes(at * 7 % 251 for at in range(8192))
    set_list, get_list, retrieved = b"set attributes list", b"get attributes list.", b"retrieved attributes, 40 bytes long: end"
    for generation, slot, code in combinations():
        hash_name = HASHES[code]
        working = b"\x0b" * hashlib.new(hash_name).digest_size
        base = {"generation": generation, "slot": slot, "algorithm": code}
        for method in METHODS:
            if method == "NOSEC":
                continue
            cap = capability(generation, slot, method)
            cap_key = mac(hash_name, working, cap, SYSTEM_ID)
            key = lambda purpose: purpose_key(code, cap_key, purpose)
            common = {**base, "method": method, "capability": cap, "capability_key": cap_key}
            purposes = {purpose: key(purpose) for purpose in LABELS}
            credentials.append({**common, "working_key": working, "system_id": SYSTEM_ID, "purpose_keys": purposes})
            if method == "CAPKEY":
                tag = mac(hash_name, key("request"), TOKEN)
                requests.append({**common, "security_token": TOKEN, "request_icv": field(tag, generation)})
                continue
            for write in (0, 1):
                wire = cdb(generation, cap, NONCE, write)
                tag = mac(hash_name, key("request"), wire)
                requests.append({**common, "cdb": wire, "request_icv": field(tag, generation)})
            for good in (True, False):
                status = 0 if good else 2
                zeroed = sense(generation, bytes(SIZES[generation]["icv"]), good)
                covered = b"" if good else zeroed
                tag = mac(
                    hash_name, key("response"), b"OSDRSP01", NONCE, bytes([status]), struct.pack(">H", len(covered)), covered
                )
                icv = field(tag, generation)
                responses.append(
                    {**common, "nonce": NONCE, "status": status, "response_icv": icv, "sense": sense(generation, icv, good)}
                )
            if generation == 2:
                segment = bytearray(56)
                segment[0] = 1
                segment[2:4] = struct.pack(">H", 0x8885)
                segment[40:56] = struct.pack(">HBBIQ", 1, 0, 0, 8, 0)
                tag = mac(hash_name, key("request"), b"OSDCNT01", NONCE, bytes(segment))
                segment[8:40] = field(tag, 2)
                continuations.append({**common, "nonce": NONCE, "segment": bytes(segment)})
            if method == "ALLDATA":
                for part in (content, b""):
                    counts = struct.pack(">QQQ", len(part), len(set_list), len(get_list))
                    tag = mac(hash_name, key("data_out"), b"OSDDOU01", NONCE, counts, set_list, get_list, part)
                    out = counts + field(tag, generation)
                    counts = struct.pack(">QQ", len(part), len(retrieved))
                    tag = mac(hash_name, key("data_in"), b"OSDDIN01", NONCE, counts, part, retrieved)
                    data.append(
                        {
                            **common,
                            "nonce": NONCE,
                            "data_len": len(part),
                            "data_sha256": hashlib.sha256(part).digest(),
                            "set_attributes": set_list,
                            "get_attributes": get_list,
                            "data_out_integrity": out,
                            "retrieved_attributes": retrieved,
                            "data_in_integrity": counts + field(tag, generation),
                        }
                    )
    store("credentials.json", "Capability keys, and the keys per purpose that algorithm F1h makes of them.", credentials)
    store("requests.json", "Request check values. The CDB is given with its request ICV field zero.", requests)
    store("responses.json", "Response check values; sense is what is sent, with the value in its 07h descriptor.", responses)
    store(
        "data.json",
        "Integrity information of both buffers: counts and check value. Byte i of the data is 7 * i mod 251.",
        data,
    )
    store("continuations.json", "CDB continuation segments with their check value in bytes 8 to 39.", continuations)


def pages():
    """GET ATTRIBUTES of one page as a whole: the digest of the page stands for the retrieved list."""
    vectors = []
    page, entries = 0x10005, ((0, b"SEALSTON" + b"Vectors".ljust(32, b"\0")), (7, b"x"), (0x1234, bytes(range(200))))
    record = struct.pack(">I", page)
    for number, value in entries:
        record += struct.pack(">II", number, len(value)) + value
    for generation, slot, code in ((2, 2, "f3"), (2, 3, "f4"), (1, 3, "f4")):
        body = b""
        for number, value in entries:
            if generation == 1:
                body += struct.pack(">IIH", page, number, len(value)) + value
            else:
                entry = struct.pack(">II6xH", page, number, len(value)) + value
                body += entry + bytes(-len(entry) % 8)
        head = struct.pack(">BxH", 9, len(body)) if generation == 1 else struct.pack(">B3xI", 9, len(body))
        retrieved = head + body
        sha1 = COVERS[code][2] == 1
        digest = hashlib.sha1(b"OSDPAGE01" + record).digest() if sha1 else digests.derive(b"sealstone attribute page v1", record)
        hash_name = HASHES[code]
        cap = capability(generation, slot, "ALLDATA")
        cap_key = mac(hash_name, b"\x0b" * hashlib.new(hash_name).digest_size, cap, SYSTEM_ID)
        _, number, list_number, unit = COVERS[code]
        header = b"OSDHM\0" + bytes([1, number, 1, list_number, 0, 0]) + NONCE
        header += struct.pack(">QQQQQQIIQQ", PARTITION, OBJECT, 0, 0, 0, 0, unit, 0, 0, len(retrieved))
        tag = mac(hash_name, purpose_key(code, cap_key, "data_in"), header, digest)
        integrity = struct.pack(">QQQQ", 0, len(retrieved), 0, 0) + field(tag, generation)
        vectors.append(
            {
                "generation": generation,
                "slot": slot,
                "algorithm": code,
                "method": "ALLDATA",
                "capability_key": cap_key,
                "nonce": NONCE,
                "partition": PARTITION,
                "object": OBJECT,
                "page": page,
                "retrieved_attributes": retrieved,
                "page_digest": digest,
                "data_in_integrity": integrity,
            }
        )
    store("pages.json", "Hash and MAC: one page of attributes retrieved as a whole.", vectors)


def covers():
    vectors = []
    content = lambda start, length: bytes((7 * at + at // 251) % 256 for at in range(start, start + length))
    set_list, get_list, retrieved = b"set attributes list", b"get attributes list.", b"retrieved attributes"
    for generation, slot, code in ((2, 2, "f3"), (2, 3, "f4"), (2, 4, "f5"), (1, 3, "f4"), (1, 4, "f5")):
        hash_name = HASHES[code]
        cap = capability(generation, slot, "ALLDATA")
        cap_key = mac(hash_name, b"\x0b" * hashlib.new(hash_name).digest_size, cap, SYSTEM_ID)
        # start, length, end of the object: nothing, an edge, whole units, both, a short last unit, and no range at all.
        for start, length, object_length in (
            (0, 0, 0),
            (5000, 100, 20000),
            (0, 32768, 40000),
            (5000, 12000, 20000),
            (16384, 3616, 20000),
            (None, 5000, 5000),
        ):
            data = content(start or 0, length)
            common = {"generation": generation, "slot": slot, "algorithm": code, "method": "ALLDATA"}
            common |= {"capability_key": cap_key, "nonce": NONCE, "partition": PARTITION, "object": OBJECT}
            common |= {"start": start, "data_len": length, "object_length": object_length}
            key = purpose_key(code, cap_key, "data_in")
            values, tag = hash_and_mac(code, key, True, start, data, object_length, b"", retrieved)
            inward = struct.pack(">QQQQ", length, len(retrieved), object_length, 0) + field(tag, generation)
            common |= {"retrieved_attributes": retrieved, "values_in": values, "data_in_integrity": inward}
            key = purpose_key(code, cap_key, "data_out")
            values, tag = hash_and_mac(code, key, False, start, data, object_length, set_list, get_list)
            out = struct.pack(">QQQ", length, len(set_list), len(get_list)) + field(tag, generation)
            common |= {"set_attributes": set_list, "get_attributes": get_list}
            vectors.append({**common, "values_out": values, "data_out_integrity": out})
    store(
        "covers.json",
        "Hash and MAC: digest values of data and integrity information over them. Byte i of the object is "
        "7 * i + floor(i / 251) mod 256; start null: the data are no range of the object, and begin at 0.",
        vectors,
    )


covers()
pages()
keys()
credentials_and_messages()
