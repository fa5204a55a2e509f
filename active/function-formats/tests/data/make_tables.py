"""Writes the tables of the tests: python3 make_tables.py FOLDER (with pyarrow)."""
import datetime as dt
import decimal
import sys

import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1]
count = 60
utc = dt.timezone.utc
start = dt.datetime(2026, 11, 27, 10, 0, tzinfo=utc)
table = pa.table(
    {
        "id": pa.array(range(count), pa.int64()),
        "status": pa.array([None if n % 7 == 3 else 200 + 100 * (n % 4) for n in range(count)], pa.int32()),
        "path": pa.array([f"/page/{n % 5}" if n % 11 else None for n in range(count)], pa.string()),
        "size": pa.array([n * 1000 for n in range(count)], pa.uint32()),
        "big": pa.array([2**64 - 1 - n for n in range(count)], pa.uint64()),
        "ratio": pa.array([n / 4 if n % 13 else float("nan") for n in range(count)], pa.float64()),
        "short": pa.array([n / 10 for n in range(count)], pa.float32()),
        "ok": pa.array([n % 2 == 0 for n in range(count)], pa.bool_()),
        "price": pa.array([decimal.Decimal(n * 199) / 100 for n in range(count)], pa.decimal128(9, 2)),
        "day": pa.array([dt.date(2026, 11, 1) + dt.timedelta(days=n) for n in range(count)], pa.date32()),
        "at": pa.array([start + dt.timedelta(minutes=n) for n in range(count)], pa.timestamp("us", tz="UTC")),
        "local": pa.array([start.replace(tzinfo=None) + dt.timedelta(hours=n) for n in range(count)], pa.timestamp("ns")),
        "clock": pa.array([dt.time(n % 24, n, 5) for n in range(count)], pa.time64("us")),
        "raw": pa.array([bytes([255, n]) for n in range(count)], pa.binary()),
        "tags": pa.array([None if n % 5 == 0 else [f"t{k}" for k in range(n % 4)] for n in range(count)], pa.list_(pa.string())),
        "user": pa.array(
            [None if n % 9 == 8 else {"name": f"u{n % 3}", "roles": [{"role": "r", "level": n}] * (n % 3)} for n in range(count)],
            pa.struct([("name", pa.string()), ("roles", pa.list_(pa.struct([("role", pa.string()), ("level", pa.int32())])))]),
        ),
        "pairs": pa.array([[("a", n)] for n in range(count)], pa.map_(pa.string(), pa.int32())),
    }
)
forms = [
    ("snappy", {"compression": "snappy"}),
    ("gzip", {"compression": "gzip", "data_page_version": "2.0"}),
    ("zstd", {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}),
    ("plain", {"compression": "none", "version": "1.0", "use_deprecated_int96_timestamps": True}),
    ("delta", {
        "compression": "none", "use_dictionary": False, "data_page_version": "2.0",
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "path": "DELTA_BYTE_ARRAY", "ratio": "BYTE_STREAM_SPLIT"},
    }),
    ("lz4", {"compression": "lz4"}),
]
for name, options in forms:
    pq.write_table(table, f"{folder}/{name}.parquet", row_group_size=20, data_page_size=300, **options)
