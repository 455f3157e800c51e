"""Peer access: kernels of one GPU use the memory of another GPU of the host by its address."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from warpwright.cuda.device import Device
from warpwright.cuda.driver import call, require
from warpwright.errors import UsageError

__all__ = ["enable_peer_access"]

ENABLED_BEFORE = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"


def enable_peer_access(devices: Sequence[Device]) -> None:
    """Let the kernels of each of ``devices`` read and write the memory of all others that ``cuMemAlloc`` allocated.

    Tensor maps over the memory of a peer work too. Raises UsageError for two GPUs without peer access.
    """
    bindings = require()
    for device, peer in permutations(devices, 2):
        pair = [call(bindings.cuDeviceGet(each.ordinal)) for each in (device, peer)]
        if not call(bindings.cuDeviceCanAccessPeer(*pair)):
            raise UsageError(
                f"given {device.name} and {peer.name}, which have no peer access; expected GPUs of one host that "
                "NVLink or PCIe joins: `nvidia-smi topo -p2p rw` shows them"
            )
        call(bindings.cuCtxSetCurrent(device.context))
        answer = bindings.cuCtxEnablePeerAccess(peer.context, 0)
        if answer[0].name != ENABLED_BEFORE:
            call(answer, f"peer access from {device.name} to {peer.name}")
