"""Writes the Parquet files of this folder by pyarrow (26.0.1): each type, encoding and codec that is read.

The lines beside them (`all.jsonl` of every `all.*.parquet`) are what arrow-json 60.1 made of them: the reader was held
against it when it was written.
"""

import datetime as dt
import decimal
import random

import pyarrow as pa
import pyarrow.parquet as pq

D = decimal.Decimal
n = 60
r = random.Random(3)
opt = lambda f: [None if r.random() < 0.2 else f(i) for i in range(n)]
us = lambda i: dt.datetime(
    1960 + i % 90, 1 + i % 12, 1 + i % 28, i % 24, i % 60, (i * 7) % 60, r.choice([0, 500000, 123456, 1000])
)
cols = {
    "text": pa.array(opt(lambda i: f'x{i%7}\n"é"')),
    "uniq": pa.array([f"row {i} " + "z" * (i % 50) for i in range(n)]),
    "i8": pa.array(opt(lambda i: i % 256 - 128), pa.int8()),
    "u8": pa.array(opt(lambda i: i % 256), pa.uint8()),
    "i16": pa.array(opt(lambda i: i * 20 - 30000), pa.int16()),
    "u16": pa.array(opt(lambda i: i * 20), pa.uint16()),
    "i32": pa.array(opt(lambda i: r.randrange(-(2**31), 2**31)), pa.int32()),
    "u32": pa.array(opt(lambda i: r.randrange(2**32)), pa.uint32()),
    "i64": pa.array(opt(lambda i: r.randrange(-(2**63), 2**63)), pa.int64()),
    "u64": pa.array(opt(lambda i: r.randrange(2**64)), pa.uint64()),
    "seq": pa.array(list(range(n)), pa.int64()),
    "f16": pa.array(opt(lambda i: i / 16 - 3), pa.float32()).cast(pa.float16()),
    "f32": pa.array(
        opt(lambda i: r.choice([0.1, -1e20, float("nan"), float("inf"), 1e-7, 3.0, r.random()])), pa.float32()
    ),
    "f64": pa.array(
        opt(lambda i: r.choice([0.1, -1e20, float("nan"), -float("inf"), 1e-7, 1e300, -0.0, r.random()])), pa.float64()
    ),
    "bool": pa.array(opt(lambda i: i % 3 == 0)),
    "bin": pa.array(opt(lambda i: r.choice([b"plain", b"\xff\x00", b"", "é".encode()])), pa.binary()),
    "fix": pa.array(opt(lambda i: bytes([i % 256, 1, 2])), pa.binary(3)),
    "d9": pa.array(opt(lambda i: D(i - 1500) / 100), pa.decimal128(9, 2)),
    "d18": pa.array(opt(lambda i: D(r.randrange(-(10**17), 10**17)) / 1000), pa.decimal128(18, 3)),
    "d38": pa.array(opt(lambda i: D(i - 5)), pa.decimal128(38, 0)),
    "d30": pa.array(opt(lambda i: D((i - 3) * 10**12).scaleb(-20)), pa.decimal128(30, 20)),
    "d60": pa.array(opt(lambda i: (D(i - 9)).scaleb(-4)), pa.decimal256(60, 4)),
    "date": pa.array(opt(lambda i: dt.date(1600, 1, 1) + dt.timedelta(days=i * 71)), pa.date32()),
    "time_ms": pa.array(opt(lambda i: dt.time(i % 24, i % 60, 3, r.choice([0, 5000]))), pa.time32("ms")),
    "time_us": pa.array(opt(lambda i: dt.time(i % 24, i % 60, 3, r.choice([0, 5000, 17]))), pa.time64("us")),
    "time_ns": pa.array(opt(lambda i: i * 1_000_000_017), pa.int64()).cast(pa.time64("ns")),
    "ts_s": pa.array(opt(lambda i: i * 100000 - 10**8), pa.int64()).cast(pa.timestamp("ms")),
    "ts_us": pa.array(opt(us), pa.timestamp("us")),
    "ts_tz": pa.array(opt(us), pa.timestamp("us", "UTC")),
    "ts_berlin": pa.array(opt(us), pa.timestamp("us", "Europe/Berlin")),
    "ts_ns": pa.array(opt(lambda i: i * 10**15 + i), pa.int64()).cast(pa.timestamp("ns")),
    "ts_nsz": pa.array(opt(lambda i: -i * 10**15 + i * 1000), pa.int64()).cast(pa.timestamp("ns", "UTC")),
    "dict": pa.array(opt(lambda i: "pq"[i % 2])).dictionary_encode(),
    "null": pa.nulls(n),
    "list": pa.array(opt(lambda i: [None if j % 3 == 0 else j for j in range(i % 5)]), pa.list_(pa.int32())),
    "lol": pa.array(
        opt(lambda i: [None if j == 2 else [f"{j}", None][: j % 3] for j in range(i % 4)]),
        pa.list_(pa.list_(pa.string())),
    ),
    "large": pa.array(opt(lambda i: ["a"] * (i % 3)), pa.large_list(pa.large_string())),
    "fsl": pa.array(opt(lambda i: [i, i + 1]), pa.list_(pa.int16(), 2)),
    "struct": pa.array(
        opt(
            lambda i: {
                "a": None if i % 2 else i,
                "b": {"c": None if i % 5 else [i] * (i % 3), "d": f"{i}"} if i % 7 else None,
            }
        )
    ),
    "los": pa.array(
        opt(lambda i: [{"k": j, "v": [j] * j} if j != 1 else None for j in range(i % 4)]),
        pa.list_(pa.struct([("k", pa.int8()), ("v", pa.list_(pa.int64()))])),
    ),
    "map": pa.array(
        opt(lambda i: [(f"k{j}", None if j == 1 else j) for j in range(i % 4)]), pa.map_(pa.string(), pa.int64())
    ),
    "mom": pa.array(
        opt(lambda i: [(f"k{j}", [("q", [1.5] * j)]) for j in range(i % 3)]),
        pa.map_(pa.string(), pa.map_(pa.string(), pa.list_(pa.float32()))),
    ),
    "dur": pa.array(opt(lambda i: i), pa.int64()).cast(pa.duration("us")),
    "view": pa.array(opt(lambda i: f"view {i} longer than twelve"), pa.string_view()),
}
t = pa.table(cols)


def w(name, t, **kw):
    pq.write_table(t, name + ".parquet", write_statistics=False, store_schema=False, **kw)


for codec, version in [("none", "1.0"), ("snappy", "1.0"), ("gzip", "1.0"), ("zstd", "2.0"), ("lz4", "2.0")]:
    w(f"all.{codec}", t, compression=codec, data_page_version=version, row_group_size=40, data_page_size=200)
w("int96", t.select(["ts_us", "ts_ns", "ts_tz"]), use_deprecated_int96_timestamps=True)
w("version-1", t.select(["u32", "ts_us", "time_ms", "date", "text"]), version="1.0")
ints = t.select(["i8", "u16", "i32", "i64", "u64", "seq", "date", "ts_us", "list"])
w("delta.v1", ints, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED", data_page_size=300)
w("delta.v2", ints, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED", data_page_version="2.0")
txt = t.select(["text", "uniq", "bin", "lol"])
for name, e in [("texts.lengths", "DELTA_LENGTH_BYTE_ARRAY"), ("texts.prefixes", "DELTA_BYTE_ARRAY")]:
    w(name, txt, use_dictionary=False, column_encoding=e, data_page_size=300)
w("fixed-prefixes", t.select(["fix", "d38"]), use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
w(
    "split",
    t.select(["f32", "f64", "i32", "i64", "fix", "f16"]),
    use_dictionary=False,
    column_encoding="BYTE_STREAM_SPLIT",
    data_page_size=300,
)
w(
    "bools.v2",
    t.select(["bool", "i8"]),
    use_dictionary=False,
    column_encoding={"bool": "RLE", "i8": "PLAIN"},
    data_page_version="2.0",
)
w(
    "bools.v1",
    t.select(["bool", "i8"]),
    use_dictionary=False,
    column_encoding={"bool": "RLE", "i8": "PLAIN"},
    data_page_version="1.0",
)
w(
    "odd-years",
    pa.table(
        {
            "ts": pa.array([253402300800 * 1000, -62167219200001], pa.int64()).cast(pa.timestamp("ms")),
            "d": pa.array([2932897, -719529], pa.int32()).cast(pa.date32()),
        }
    ),
)
w("empty", t.slice(0, 0))
w(
    "required",
    pa.table(
        [pa.array([1, 2]), pa.array(["a", "b"]), pa.array([[1], []])],
        schema=pa.schema(
            [
                pa.field("a", pa.int64(), False),
                pa.field("b", pa.string(), False),
                pa.field("c", pa.list_(pa.field("item", pa.int64(), False)), False),
            ]
        ),
    ),
)
# 700 rows with one text, which the file has once: too long to have its lines beside it.
w("shared", pa.table({"document": ["word " * 210_000] * 700}), compression="zstd")
