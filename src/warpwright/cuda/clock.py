"""The clock of the SMs while a GPU works, sampled by a kernel of one thread."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright import ptx
from warpwright.cuda.device import Device
from warpwright.cuda.memory import Transfers
from warpwright.ptx import nodes

__all__ = ["SAMPLER", "clock_samples"]

SAMPLE_BYTES = 16  # cycles and nanoseconds, 8 bytes each

# From one tick of the global timer to the first tick 50 µs later: the timer may advance by 1 µs at a time.
SAMPLER = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry sample_clock(.param .u64 out)
{
    .reg .pred %p;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd0, [out];
    mov.u64 %rd1, %globaltimer;
first:
    mov.u64 %rd2, %globaltimer;
    setp.eq.u64 %p, %rd1, %rd2;
    @%p bra first;
    mov.u64 %rd3, %clock64;
    add.u64 %rd4, %rd2, 50000;
last:
    mov.u64 %rd5, %globaltimer;
    setp.lt.u64 %p, %rd5, %rd4;
    @%p bra last;
    mov.u64 %rd6, %clock64;
    sub.u64 %rd7, %rd6, %rd3;
    sub.u64 %rd8, %rd5, %rd2;
    st.global.v2.u64 [%rd0], {%rd7, %rd8};
    ret;
}
"""


@functools.cache
def _module() -> nodes.Module:
    return ptx.parse(SAMPLER)


@contextlib.contextmanager
def clock_samples(
    device: Device, shape: tuple[int, ...], stream: int
) -> Iterator[tuple[Callable[..., None], Callable[[], NDArray[Any]]]]:
    """Yields two functions: one that starts the sample of an index on ``stream``, and one that waits for the samples
    and returns them in MHz, an array of ``shape``."""
    ticks = np.zeros((*shape, 2), np.uint64)
    function = device.function(_module(), "sample_clock", (1, 1, 1))
    with Transfers("samples of the clock", stream, (ticks,)) as transfers:
        first = int(transfers.value(ticks))

        def sample(*index: int) -> None:
            place = int(np.ravel_multi_index(index, shape))
            function((1, 1, 1), [first + SAMPLE_BYTES * place], stream)

        def megahertz() -> NDArray[Any]:
            transfers.download()
            return 1e3 * ticks[..., 0] / ticks[..., 1]

        yield sample, megahertz
