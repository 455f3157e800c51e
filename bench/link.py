"""The link between two GPUs: ``PYTHONPATH=src python bench/link.py [--write bench/measured/h200_link.json]``.

One process uses the first two GPUs of the machine, with peer access. It measures, from one GPU to the memory of the
other:

- stores and loads of 16 bytes, TMA stores, loads and reductions through tensor maps over the peer's memory, and the
  copy engine: GB/s (10^9 bytes a second) by the number of SMs, one CTA on each, and by the size of the message
- stores, TMA stores and copies of both GPUs at once: the sum of both directions
- the time of a dependent load from the peer and from the GPU's own memory, and of a flag to the peer and back
  (``st.release.sys``, ``ld.acquire.sys``)

A time is the median of CUDA events around one kernel, so a small message includes the start and the end of a kernel.
Every probe checks the data that arrived.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from probes import links

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import DeviceArray
from warpwright.cuda.driver import call, require, version
from warpwright.cuda.peers import enable_peer_access
from warpwright.lang import Kernel, bf16
from warpwright.run.launch import entry_point

LARGEST = 256 << 20
SIZES = tuple(64 << 10 << 2 * step for step in range(7))  # 64 KB to 256 MB
BY_SMS = 64 << 20  # bytes of a message, for the table by SMs
SMS = (1, 2, 4, 8, 16, 32, 64, 128)
ROUNDS = 9
FEW, MANY = 200, 1200  # rounds of flags and of dependent loads
BOTH_ROUNDS = 5
Run = Callable[[], object]
Row = dict[str, Any]


class Memory:
    """Buffers of one GPU: ``data`` of the largest message, ``sums`` of the kernels, ``flags``."""

    def __init__(self, device: cuda.Device) -> None:
        self.device = device
        self.enter()
        self.data, self.sums, self.flags = (
            int(call(require().cuMemAlloc(nbytes), "buffers")) for nbytes in (LARGEST, links.THREADS * 1024 * 4, 4096)
        )

    def enter(self) -> None:
        """Make the GPU's context current."""
        call(require().cuCtxSetCurrent(self.device.context))

    def wait(self) -> None:
        self.enter()
        call(require().cuCtxSynchronize())

    def fill(self, pointer: int, nbytes: int, value: int) -> None:
        self.enter()
        call(require().cuMemsetD32(pointer, value, nbytes // 4))
        call(require().cuCtxSynchronize())

    def read(self, pointer: int, count: int) -> Any:
        """Returns ``count`` words at ``pointer``."""
        self.enter()
        words = np.zeros(count, np.uint32)
        call(require().cuMemcpyDtoH(words.ctypes.data, pointer, words.nbytes))
        return words


def launch(memory: Memory, kernel: Kernel, grid: int, values: Sequence[Any]) -> Run:
    """Returns a call that starts ``kernel`` on the GPU of ``memory``."""
    traced = kernel.trace()
    entry = entry_point(traced)
    memory.enter()
    function = memory.device.function(entry.module, entry.name, traced.threads, traced.cluster, traced.smem_bytes)
    return function.at((grid, 1, 1), values)


def tensor_map(kernel: Kernel, name: str, pointer: int, nbytes: int, ordinal: int) -> bytes:
    """Returns the tensor map over a message as rows of 128 bytes."""
    use = kernel.trace().maps[name]
    item = use.dtype.nbytes
    shape, strides = (nbytes // links.ROW_BYTES, links.ROW_BYTES // item), (links.ROW_BYTES, item)
    array = DeviceArray(pointer, shape, strides, np.dtype(use.dtype.dtype), ordinal, None)
    return cuda.encode(ww.TensorMap(array, use.box, swizzle=use.swizzle), pointer)


def write_words(own: Memory, peer: Memory, nbytes: int, sms: int) -> Run:
    chunks = nbytes // links.CHUNK
    return launch(own, links.write_words, min(sms, chunks), [peer.data, chunks, 1])


def read_words(own: Memory, peer: Memory, nbytes: int, sms: int) -> Run:
    chunks = nbytes // links.CHUNK
    return launch(own, links.read_words, min(sms, chunks), [peer.data, chunks, own.sums])


def tile_writer(**config: Any) -> Callable[[Memory, Memory, int, int], Run]:
    """Returns the maker of launches of `links.write_tiles` with this configuration."""
    kernel = links.write_tiles.configure(**config)

    def make(own: Memory, peer: Memory, nbytes: int, sms: int) -> Run:
        tiles = nbytes // links.TILE
        target = tensor_map(kernel, "target", peer.data, nbytes, peer.device.ordinal)
        return launch(own, kernel, min(sms, tiles), [target, tiles])

    return make


def read_tiles(own: Memory, peer: Memory, nbytes: int, sms: int) -> Run:
    tiles = nbytes // links.TILE
    source = tensor_map(links.read_tiles, "source", peer.data, nbytes, peer.device.ordinal)
    return launch(own, links.read_tiles, min(sms, tiles), [source, tiles, own.sums])


def copy(own: Memory, peer: Memory, nbytes: int, sms: int) -> Run:
    """Returns a call that starts the copy engine: from the GPU's memory to the peer's."""

    def run() -> None:
        arguments = peer.data, peer.device.context, own.data, own.device.context, nbytes, 0
        call(require().cuMemcpyPeerAsync(*arguments), "copy to the peer")

    return run


# Whether the probe writes the peer's memory, and the launch of a message on so many SMs.
PROBES: dict[str, tuple[bool, Callable[[Memory, Memory, int, int], Run]]] = {
    "stores": (True, write_words),
    "loads": (False, read_words),
    "TMA stores": (True, tile_writer()),
    "TMA loads": (False, read_tiles),
    "TMA reduce f32": (True, tile_writer(add=True)),
    "TMA reduce bf16": (True, tile_writer(add=True, dtype=bf16)),
    "copy engine": (True, copy),
}


def check(name: str, own: Memory, peer: Memory, nbytes: int, run: Run) -> None:
    """Run a probe once and raise AssertionError if its data did not arrive."""
    writes, _ = PROBES[name]
    own.fill(own.data, nbytes, 1)
    own.fill(own.sums, links.THREADS * 1024 * 4, 0)
    peer.fill(peer.data, nbytes, 0 if writes else 1)
    own.enter()
    run()
    own.wait()
    if writes:
        assert peer.read(peer.data, nbytes // 4).all(), f"{name}: a part of {nbytes} bytes did not arrive"
        return
    total, expected = int(own.read(own.sums, links.THREADS * 1024).sum(dtype=np.uint64)), nbytes // 4
    expected = nbytes // links.TILE if name == "TMA loads" else expected
    assert total == expected, f"{name}: given a sum of {total}; expected {expected}"


def rates(own: Memory, peer: Memory, name: str) -> Iterator[Row]:
    """Yields the rates of a probe by SMs and by size."""
    _, make = PROBES[name]
    most = own.device.spec.sms
    counts = [] if name == "copy engine" else [count for count in SMS if count < most]
    for nbytes, sms in [*((BY_SMS, count) for count in counts), *((nbytes, most) for nbytes in SIZES)]:
        run = make(own, peer, nbytes, sms)
        if (nbytes, sms) in ((BY_SMS, 1), (SIZES[0], most), (LARGEST, most)):
            check(name, own, peer, nbytes, run)
        own.enter()
        seconds = statistics.median(cuda.measure(run, rounds=ROUNDS, warmup=2, cold=False))
        yield {"probe": name, "sms": sms, "bytes": nbytes, "seconds": seconds, "gbps": nbytes / seconds / 1e9}


def both_ways(first: Memory, second: Memory, name: str) -> Row:
    """Returns the sum of the rates of both GPUs at once: the longer of the two times counts."""
    pairs = (first, second), (second, first)
    runs = [PROBES[name][1](own, peer, LARGEST, own.device.spec.sms) for own, peer in pairs]
    found = [max(together(pairs, runs)) for _ in range(BOTH_ROUNDS + 1)][1:]
    seconds = statistics.median(found)
    row = {"probe": f"{name}, both ways", "sms": first.device.spec.sms, "bytes": 2 * LARGEST, "seconds": seconds}
    return row | {"gbps": 2 * LARGEST / seconds / 1e9}


def together(pairs: Sequence[tuple[Memory, Memory]], runs: Sequence[Run]) -> list[float]:
    """Start one call on each GPU, wait for all, and return the seconds of each on its GPU."""
    bindings, events = require(), []
    for (own, _), run in zip(pairs, runs, strict=True):
        own.enter()
        start, end = (call(bindings.cuEventCreate(0)) for _ in range(2))
        call(bindings.cuEventRecord(start, 0))
        run()
        call(bindings.cuEventRecord(end, 0))
        events.append((start, end))
    found = []
    for (own, _), pair in zip(pairs, events, strict=True):
        own.wait()
        found.append(float(call(bindings.cuEventElapsedTime(*pair))) / 1e3)
    return found


def flag_seconds(first: Memory, second: Memory, rounds: int, base: int) -> float:
    """Returns the seconds of ``rounds`` flags from the first GPU to the second and back."""
    pairs = (second, first), (first, second)  # the GPU that answers starts first
    runs = [
        launch(own, links.exchange, 1, [own.flags, peer.flags, base, rounds, int(own is first), own.flags + 1024])
        for own, peer in pairs
    ]
    seconds = together(pairs, runs)[1]
    met = [int(each.read(each.flags + 1024, 1)[0]) for each in (first, second)]
    assert met == [rounds, rounds], f"given {met} flags that arrived; expected {rounds} on each GPU"
    return seconds


def slope(seconds: Callable[[int], float]) -> float:
    """Returns the time of one round: the median of slopes between few and many rounds."""
    return statistics.median((seconds(MANY) - seconds(FEW)) / (MANY - FEW) for _ in range(BOTH_ROUNDS))


def latencies(first: Memory, second: Memory) -> Iterator[Row]:
    for memory in (first, second):
        memory.fill(memory.flags, 4096, 0)
        memory.fill(memory.data, 4096, 0)
    bases = iter(range(1, 1 << 30, MANY))
    flag_seconds(first, second, FEW, next(bases))
    yield {"probe": "flag and answer", "seconds": slope(lambda n: flag_seconds(first, second, n, next(bases)))}
    for name, memory in (("load from the peer", second), ("load from own memory", first)):

        def chase(rounds: int, data: int = memory.data) -> float:
            run = launch(first, links.chase, 1, [data, rounds, first.sums])
            return statistics.median(cuda.measure(run, rounds=3, warmup=1, cold=False))

        yield {"probe": name, "seconds": slope(chase)}


def measure(first: Memory, second: Memory) -> Iterator[Row]:
    for name in PROBES:
        yield from rates(first, second, name)
    for name in ("stores", "TMA stores", "copy engine"):
        yield both_ways(first, second, name)
    yield from latencies(first, second)


def line(row: Row) -> str:
    time = f"{row['seconds'] * 1e6:10.2f} µs"
    if "gbps" not in row:
        return f"{row['probe']:<26} {'':>17} {time}"
    return f"{row['probe']:<26} {row['sms']:>4} {row['bytes'] >> 10:>8} KiB {time} {row['gbps']:8.1f} GB/s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    devices = cuda.devices()
    if len(devices) < 2:
        print(f"given {len(devices)} GPU; expected two that NVLink joins: bench/link.py measured nothing")
        return 2
    enable_peer_access(devices[:2])
    names = [device.spec.name for device in devices[:2]]
    print(
        f"{' and '.join(names)}, driver {version()}\n{'probe':<26} {'SMs':>4} {'message':>12} {'time':>13} {'rate':>12}"
    )
    rows = []
    for row in measure(*map(Memory, devices[:2])):
        print(line(row), flush=True)
        rows.append(row)
        if options.write:
            content = {"devices": names, "driver": version(), "command": "python bench/link.py", "results": rows}
            options.write.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
