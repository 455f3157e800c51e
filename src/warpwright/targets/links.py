"""The links between the GPUs of a node, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LINKS", "MAX_GPUS", "Link"]

MAX_GPUS = 8  # of a node


@dataclass(frozen=True, slots=True)
class Link:
    """What joins a GPU to the others of its node, by NVLink through switches; bandwidths of one direction in 10^9 bytes
    a second.

    ``payload_gbps``: of the data of stores, loads and TMA; ``latency_ns``: of a load from a peer,
    beyond that of a load from the GPU's own L2; a store takes half of it. ``source`` names the source of each figure.
    """

    payload_gbps: float
    latency_ns: float
    source: Mapping[str, str] = field(compare=False, repr=False)


def _link(**figures: tuple[float, str]) -> Link:
    """Returns a link whose figures each stand beside their source."""
    source = {key: text for key, (_, text) in figures.items()}
    return Link(source=source, **{key: value for key, (value, _) in figures.items()})


_NVLINK4 = _link(
    payload_gbps=(372.0, "bench/link.py, two H200s: TMA stores of 256 MB less those of 64 MB; loads run at 376"),
    latency_ns=(740.0, "bench/link.py, two H200s: a dependent load from the peer less one from the GPU's own memory"),
)
_NVLINK5 = _link(
    payload_gbps=(744.0, "assumed: twice NVLink 4, as in the data sheets: 900 GB/s and 1.8 TB/s in both directions"),
    latency_ns=(740.0, "assumed, as of NVLink 4"),
)

# The devices whose boards have NVLink to all GPUs of a node.
LINKS = {
    **dict.fromkeys(("h200", "h100", "h20", "gh200"), _NVLINK4),
    **dict.fromkeys(("b200", "gb200", "b300", "gb300"), _NVLINK5),
}
