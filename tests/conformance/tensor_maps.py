"""Record the 128 bytes that the CUDA driver writes for some hundred tensor maps, and compare ours with them.

``PYTHONPATH=src python3 tests/conformance/tensor_maps.py FILE.json`` on a machine with a GPU.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warpwright.cuda.driver import call, driver, version
from warpwright.errors import UsageError
from warpwright.layout import tensor_map_bytes
from warpwright.layout.tensor_map_bytes import MapFields, decode, fields_of_driver

# In the order of CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle and so on (cuda.h of CUDA 13.0).
BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 0, 0, 0)
INTERLEAVES, SWIZZLES, PROMOTIONS = 3, 7, 4
Fields = dict[str, Any]


def fields(**changes: Any) -> Fields:
    """The arguments of cuTensorMapEncodeTiled for a map of two dimensions, with some of them changed."""
    base: Fields = {
        "dtype": 9, "address": 0x7F12_3456_7800, "dims": [512, 1024], "strides": [4096], "box": [8, 32],
        "steps": [1, 1], "interleave": 0, "swizzle": 0, "promotion": 0, "fill": 0,
    }  # fmt: skip
    return {**base, **changes}


def of_rank(rank: int, **changes: Any) -> Fields:
    """The arguments for a map of some dimensions, whose entries differ in each of them."""
    dims, strides = [520, 37, 19, 11, 7][:rank], [1 << 12, 1 << 18, 1 << 23, 1 << 27][: rank - 1]
    return fields(dims=dims, strides=strides, box=[8, 5, 4, 3, 2][:rank], steps=[1] * rank, **changes)


def single_changes() -> Iterator[tuple[str, Fields]]:
    """Maps that differ from one in a single field."""
    yield "base", fields()
    for dtype in range(len(BYTES)):
        yield f"dtype {dtype}", fields(dtype=dtype, box=[8, 32] if dtype < 13 else [128, 32], address=0x7F12_3456_7800)
    for swizzle in range(SWIZZLES):
        yield f"swizzle {swizzle}", fields(swizzle=swizzle)
    for promotion in range(PROMOTIONS):
        yield f"promotion {promotion}", fields(promotion=promotion)
    yield "fill", fields(fill=1)
    for rank in range(1, 6):
        yield f"rank {rank}", of_rank(rank)
    for interleave in range(INTERLEAVES):
        yield f"interleave {interleave}", of_rank(3, interleave=interleave, swizzle=interleave // 2)
    for address in (16, 256, 0x1234_5678_9AB0, (1 << 48) - 32, (1 << 57) - 16, 1 << 60):
        yield f"address {address:#x}", fields(address=address)
    for dim in (1, 2, 1 << 31, (1 << 32) - 1, 1 << 32):
        yield f"dim 0 {dim}", fields(dims=[dim, 4])
        yield f"dim 1 {dim}", fields(dims=[4, dim])
    for stride in (0, 16, 1 << 20, (1 << 36) - 16, 1 << 36, (1 << 40) - 16):
        yield f"stride {stride}", fields(strides=[stride])
    for axis in range(5):
        yield f"step {axis}", of_rank(5) | {"steps": [8 if i == axis else 1 for i in range(5)]}
        yield f"dim of axis {axis}", of_rank(5) | {"dims": [0xABCD_EF01 if i == axis else 1 for i in range(5)]}
        box = [(64 if axis == 0 else 251) if i == axis else (8 if i == 0 else 1) for i in range(5)]
        yield f"box {axis}", of_rank(5) | {"box": box}
    for axis in range(4):
        yield (
            f"stride of axis {axis}",
            of_rank(5) | {"strides": [0xFE_DCBA_9870 if i == axis else 16 for i in range(4)]},
        )


def random_map(rng: random.Random) -> Fields:
    """The arguments for a map with every field at random; most are valid."""
    rank, dtype = rng.randint(1, 5), rng.randrange(13)
    size = BYTES[dtype]
    interleave = rng.choice((0, 0, 0, 1, 2)) if rank >= 3 else 0
    unit = 32 if interleave == 2 else 16
    swizzle = 1 if interleave == 2 else rng.randrange(4)
    inner = rng.randint(1, (2, 4, 8)[swizzle - 1] if swizzle else min(16, 16 * size))
    return {
        "dtype": dtype,
        "address": rng.randrange(1 << 47) // unit * unit,
        "dims": [rng.randint(1, 1 << rng.randint(1, 32)) for _ in range(rank)],
        "strides": [rng.randrange(1 << rng.randint(6, 40)) // unit * unit for _ in range(rank - 1)],
        "box": [inner * 16 // size, *(rng.randint(1, 256) for _ in range(rank - 1))],
        "steps": [rng.randint(1, 8) for _ in range(rank)],
        "interleave": interleave,
        "swizzle": swizzle,
        "promotion": rng.randrange(4),
        "fill": rng.randrange(2) if dtype >= 6 else 0,
    }


def cases() -> Iterator[tuple[str, Fields]]:
    """Every map by its name."""
    yield from single_changes()
    rng = random.Random(17)
    for number in range(400):
        yield f"random {number}", random_map(rng)


def im2col_cases() -> Iterator[tuple[str, Fields]]:
    """Arguments of cuTensorMapEncodeIm2col that differ in one field."""

    def of(rank: int, **changes: Any) -> Fields:
        base = of_rank(rank)
        corners = {"lower": [0] * (rank - 2), "upper": [0] * (rank - 2), "channels": 8, "pixels": 32}
        return {**base, **corners, **changes}

    for rank in (3, 4, 5):
        yield f"im2col {rank}", of(rank)
        for value in (-3, 2, 5, -16):
            for name in ("lower", "upper"):
                for axis in range(rank - 2):
                    corner = [value if i == axis else 0 for i in range(rank - 2)]
                    yield f"im2col {rank} {name} {axis} {value}", of(rank, **{name: corner})
    for channels in (16, 64, 256):
        yield f"im2col channels {channels}", of(4, channels=channels)
    for pixels in (1, 2, 256, 1000, 1024):
        yield f"im2col pixels {pixels}", of(4, pixels=pixels)
    for axis in range(4):
        yield f"im2col step {axis}", of(4, steps=[8 if i == axis else 1 for i in range(4)])
    for name, value in (("swizzle", 3), ("promotion", 2), ("fill", 1), ("dtype", 6)):
        yield f"im2col {name}", of(4, **{name: value})


def encode(bindings: Any, given: Fields) -> str:
    """The driver's bytes in hexadecimal, or the status with which it refuses."""
    rank = len(given["dims"])
    wide, narrow = bindings.cuuint64_t, bindings.cuuint32_t
    head = (
        bindings.CUtensorMapDataType(given["dtype"]),
        rank,
        given["address"],
        [wide(n) for n in given["dims"]],
        [wide(n) for n in given["strides"] or (0,)],
    )
    tail = (
        [narrow(n) for n in given["steps"]],
        bindings.CUtensorMapInterleave(given["interleave"]),
        bindings.CUtensorMapSwizzle(given["swizzle"]),
        bindings.CUtensorMapL2promotion(given["promotion"]),
        bindings.CUtensorMapFloatOOBfill(given["fill"]),
    )
    if "pixels" in given:
        middle = (given["lower"], given["upper"], given["channels"], given["pixels"])
        status, found = bindings.cuTensorMapEncodeIm2col(*head, *middle, *tail)
    else:
        status, found = bindings.cuTensorMapEncodeTiled(*head, [narrow(n) for n in given["box"]], *tail)
    if status.value:
        return str(status.name)
    return b"".join(int(word).to_bytes(8, "little") for word in found.opaque).hex()


def expected(given: Fields) -> MapFields:
    """The fields that our encoder is given for the arguments of a case."""
    rank, named = len(given["dims"]), {name: tuple(given[name]) for name in ("dims", "strides", "box", "steps")}
    codes = {"interleave": given["interleave"], "fill": given["fill"], "l2_promotion": given["promotion"]}
    corners: tuple[tuple[int, ...], ...] = ()
    if "pixels" in given:
        corners = tuple(given["lower"]), tuple(given["upper"])
        named["box"] = given["channels"], given["pixels"]
    where = {"address": given["address"], "rank": rank, "corners": corners}
    return fields_of_driver(given["dtype"], given["swizzle"], **where, **named, **codes)


def differences(given: Fields, found: str) -> str:
    """The fields in which the driver's bytes differ from ours, as "name: driver's, ours"; "" if no bit differs."""
    ours = expected(given)
    try:
        if tensor_map_bytes.encode(ours).hex() == found:
            return ""
        theirs = decode(bytes.fromhex(found))
    except UsageError as error:
        return str(error)
    pairs = [(name, getattr(theirs, name), getattr(ours, name)) for name in ours._fields]
    return "; ".join(f"{name}: {a}, {b}" for name, a, b in pairs if a != b) or "bits without a field"


def connect() -> Any:
    """The driver with a current context, without which it encodes nothing."""
    bindings = driver()
    device = call(bindings.cuDeviceGet(0))
    call(bindings.cuCtxSetCurrent(call(bindings.cuDevicePrimaryCtxRetain(device))))
    return bindings


def main(path: Path) -> int:
    """Record every map; prints the single changes as the words that differ from the base's."""
    bindings, rows, bad = connect(), [], 0
    print("driver", version())
    for name, given in (*cases(), *im2col_cases()):
        try:
            found = encode(bindings, given)
        except Exception as error:  # a value that these bindings do not know
            found = f"{type(error).__name__}: {error}"[:80]
        rows.append({"name": name, "fields": given, "bytes": found})
        if name == "base" and len(found) != 256:
            print("the driver refuses every map:", found)
            return 1
        wrong = differences(given, found) if len(found) == 256 else ""
        if wrong or not name.startswith("random"):
            print(f"{name:28}", words(found), wrong and f"DIFFERS {wrong}")
        bad += bool(wrong)
    refused = sum(len(row["bytes"]) != 256 for row in rows)
    print(len(rows), "maps,", refused, "refused,", bad, "differ from ours")
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return int(bad > 0)


def words(found: str) -> str:
    """The bytes as 32-bit words up to the last that is not zero; a status as it is."""
    if len(found) != 256:
        return found
    values = [int.from_bytes(bytes.fromhex(found[i : i + 8]), "little") for i in range(0, 256, 8)]
    last = max(i for i, value in enumerate(values) if value or i == 0)
    return " ".join(f"{value:x}" for value in values[: last + 1])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
