"""Peer access between GPUs, on a fake driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warpwright import UsageError
from warpwright.cuda import peers

OK = SimpleNamespace(value=0, name="CUDA_SUCCESS")


class Driver:
    """A fake driver of GPUs that have peer access or not; ``enabled`` lists (current context, peer context)."""

    def __init__(self, reach: int, status: Any = OK) -> None:
        self.reach, self.status, self.current, self.enabled = reach, status, None, []

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, int]:
        return OK, ordinal

    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> tuple[Any, int]:
        return OK, self.reach

    def cuCtxSetCurrent(self, context: str) -> tuple[Any]:
        self.current = context
        return (OK,)

    def cuCtxEnablePeerAccess(self, peer: str, flags: int) -> tuple[Any]:
        self.enabled.append((self.current, peer))
        return (self.status,)


def gpus(count: int) -> Any:
    return [SimpleNamespace(name=f"cuda:{n}", ordinal=n, context=f"context {n}") for n in range(count)]


@pytest.mark.parametrize("status", [OK, SimpleNamespace(value=704, name=peers.ENABLED_BEFORE)])
def test_every_gpu_gets_access_to_every_other(monkeypatch: pytest.MonkeyPatch, status: Any) -> None:
    driver = Driver(1, status)
    monkeypatch.setattr(peers, "require", lambda: driver)
    peers.enable_peer_access(gpus(3))
    names = [f"context {n}" for n in range(3)]
    assert sorted(driver.enabled) == [(a, b) for a in names for b in names if a != b]


def test_gpus_without_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "require", lambda: Driver(0))
    with pytest.raises(UsageError) as caught:
        peers.enable_peer_access(gpus(2))
    assert str(caught.value) == (
        "given cuda:0 and cuda:1, which have no peer access; expected GPUs of one host that NVLink or PCIe joins: "
        "`nvidia-smi topo -p2p rw` shows them"
    )
