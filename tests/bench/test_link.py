"""The probes of the link between two GPUs, on fake GPUs whose memory is the host's; ptxas accepts their kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import link
import numpy as np
import pytest
from probes import links

import warpwright as ww
from tests.cuda.host_gpu import OK, Driver
from warpwright import targets
from warpwright.lang import Kernel, bf16
from warpwright.ptx.ptxas import assemble, find_ptxas

SMALL = 128 << 10


class HostGpus(Driver):
    """A fake driver of GPUs in host memory; a launch runs the kernel on a virtual H200."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 30

    def __getattr__(self, name: str) -> Any:
        values: dict[str, tuple[Any, ...]] = {"cuEventCreate": (0,), "cuEventElapsedTime": (1.0,)}
        return lambda *_: (OK, *values.get(name, ()))

    def cuMemsetD32(self, pointer: int, value: int, count: int) -> tuple[Any]:
        self.words(pointer, count)[:] = value
        return (OK,)

    def cuMemcpyPeerAsync(self, target: int, _: Any, source: int, __: Any, count: int, stream: int) -> tuple[Any]:
        self.words(target, count // 4)[:] = self.words(source, count // 4)
        return (OK,)

    def words(self, pointer: int, count: int) -> Any:
        first = next(low for low, buffer in self.held.items() if low <= pointer < low + buffer.size)
        return self.held[first][pointer - first :][: 4 * count].view(np.uint32)

    def tensor_map(self, kernel: Kernel, name: str, pointer: int, nbytes: int, ordinal: int) -> ww.TensorMap:
        use = kernel.trace().maps[name]
        rows = self.words(pointer, nbytes // 4).view(use.dtype.dtype).reshape(-1, links.ROW_BYTES // use.dtype.nbytes)
        return ww.TensorMap(rows, use.box, swizzle=use.swizzle)

    def launch(self, memory: Any, kernel: Kernel, grid: int, values: Any) -> Any:
        buffers = list(self.held.values())
        return lambda: ww.launch(kernel, grid, args=values, memory=buffers, device="h200")


def one_second(run: Any, rounds: int, warmup: int, cold: bool) -> list[float]:
    """Stands for `cuda.measure`: runs once."""
    run()
    return [1.0]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two fake GPUs, their memories, small messages."""
    driver = HostGpus()
    for name in ("launch", "tensor_map"):
        monkeypatch.setattr(link, name, getattr(driver, name))
    monkeypatch.setattr(link, "require", lambda: driver)
    monkeypatch.setattr(link.cuda, "measure", one_second)
    for name, value in {"LARGEST": SMALL, "BY_SMS": SMALL, "SIZES": (SMALL,), "SMS": (1,), "BOTH_ROUNDS": 1}.items():
        monkeypatch.setattr(link, name, value)
    spec = SimpleNamespace(sms=2)
    return [link.Memory(SimpleNamespace(spec=spec, context=None, ordinal=n)) for n in range(2)]


@pytest.mark.parametrize("name", link.PROBES)
def test_a_probe_moves_its_message(pair: Any, name: str) -> None:
    rows = list(link.rates(*pair, name))
    assert [row["sms"] for row in rows] == ([2] if name == "copy engine" else [1, 2])
    assert all(row["gbps"] == SMALL / 1e9 for row in rows)


def test_a_probe_that_moves_too_little(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"stores": (True, lambda own, peer, nbytes, sms: link.write_words(own, peer, nbytes // 2, sms))}
    monkeypatch.setattr(link, "PROBES", half)
    with pytest.raises(AssertionError) as caught:
        list(link.rates(*pair, "stores"))
    assert str(caught.value) == f"stores: a part of {SMALL} bytes did not arrive"


def test_both_ways_and_latencies(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert link.both_ways(*pair, "stores")["gbps"] == 2 * SMALL / 1e-3 / 1e9
    monkeypatch.setattr(link, "flag_seconds", lambda first, second, rounds, base: rounds * 2e-6)
    monkeypatch.setattr(link, "FEW", 1)
    monkeypatch.setattr(link, "MANY", 3)
    rows = list(link.latencies(*pair))
    assert rows[0] == {"probe": "flag and answer", "seconds": pytest.approx(2e-6)}
    assert link.line(rows[0]).split() == ["flag", "and", "answer", "2.00", "µs"]


def test_flags_to_and_fro() -> None:
    """With one flag for both, the leader answers itself."""
    flag, met = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    ww.launch(links.exchange, 1, args=[flag, flag, 5, 10, 1, met], device="h200")
    assert (flag[0], met[0]) == (14, 10)


def test_fewer_than_two_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(link.cuda, "devices", lambda: (SimpleNamespace(spec=targets.device("h200")),))
    monkeypatch.setattr("sys.argv", ["link.py"])
    assert link.main() == 2
    assert capsys.readouterr().out == "given 1 GPU; expected two that NVLink joins: bench/link.py measured nothing\n"


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_ptxas_accepts_the_kernels() -> None:
    kernels: list[Kernel] = [links.write_words, links.read_words, links.read_tiles, links.exchange, links.chase]
    for kernel in (*kernels, links.write_tiles, links.write_tiles.configure(add=True, dtype=bf16)):
        answer = assemble(kernel.ptx(), "sm_90a")
        assert answer.ok, answer.log
