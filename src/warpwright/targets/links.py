"""The links between the GPUs of a node, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LINKS", "MAX_GPUS", "Link"]

MAX_GPUS = 8  # of a node


@dataclass(frozen=True, slots=True)
class Link:
    """What joins a GPU to the others of its node, by NVLink through switches. ``gbps``: the nominal bandwidth of one
    direction in 10^9 bytes a second. ``source`` names the source of each figure."""

    gbps: float
    source: Mapping[str, str] = field(compare=False, repr=False)


def _link(**figures: tuple[float, str]) -> Link:
    """Returns a link whose figures each stand beside their source."""
    source = {key: text for key, (_, text) in figures.items()}
    return Link(source=source, **{key: value for key, (value, _) in figures.items()})


_NVLINK4 = _link(gbps=(450.0, "NVIDIA H100 and H200 data sheets: NVLink 4, 900 GB/s in both directions"))
_NVLINK5 = _link(gbps=(900.0, "NVIDIA B200 data sheet: NVLink 5, 1.8 TB/s in both directions"))

# The devices whose boards have NVLink to all GPUs of a node.
LINKS = {
    **dict.fromkeys(("h200", "h100", "h20", "gh200"), _NVLINK4),
    **dict.fromkeys(("b200", "gb200", "b300", "gb300"), _NVLINK5),
}
