"""How the constants of ``warpwright.targets.timing`` follow from what ``bench/micro.py`` measures on an H200."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warpwright import targets
from warpwright.targets.timing import UNITS

__all__ = ["FORMULAS", "derived", "lines"]

Results = Mapping[str, float]
SMS, CLOCK, HBM = 132, 1980, 4800.0  # MHz, GB/s
ADDRESS = 8  # cycles of the address in a chain of global loads

FORMULAS: dict[str, Callable[[Results], float]] = {
    "try_wait": lambda of: of["mbarrier.ready"],
    "wake": lambda of: of["mbarrier.ready"],
    "arrive": lambda of: of["mbarrier.signal"] - of["mbarrier.ready"],
    "arrive_remote": lambda of: of["mbarrier.remote_signal.cta"] - of["mbarrier.ready"],
    "bar": lambda of: of["bar.sync.128"],
    "cluster_barrier": lambda of: of["cluster.sync.2x128.relaxed"],
    "fence_async": lambda of: of["fence.fence_proxy_async"],
    "fence_cluster": lambda of: of["fence.fence_cluster"],
    "ld_l1": lambda of: of["global.l1.latency"] - ADDRESS,
    "ld_l2": lambda of: of["global.l2.latency"] - ADDRESS,
    "ld_hbm": lambda of: of["global.hbm.latency"] - ADDRESS,
    "shared_latency": lambda of: of["shared.load.latency"],
    "shared_bytes": lambda of: 512 / of["shared.load.quad.16_warps"],
    "dsmem_latency": lambda of: of["dsmem.neighbour.latency"],
    "dsmem_bytes": lambda of: of["dsmem.read.2.132_sms"],
    "l1_bytes": lambda of: of["l2.read.1_sms"],
    "sm_bytes": lambda of: of["tma.load.l2.16384x4.1_sms"],
    "pair_bytes": lambda of: 2 * of["tma.load.together_2"],
    "l2_bytes": lambda of: SMS * of["tma.load.l2.32768x4.132_sms"],
    "l2_write_bytes": lambda of: SMS * 8192 / of["tma.store.8192.flight.132_sms"],
    "hbm_share": lambda of: of["hbm.read"] / HBM,
    "hbm_mixed_share": lambda of: of["hbm.copy"] / HBM,
    "tma_issue": lambda of: of["tma.load.issue"],
    "tma_l2": lambda of: of["tma.load.l2.1024.latency"] - of["tma.load.issue"] - of["mbarrier.ready"],
    "tma_hbm": lambda of: of["tma.load.hbm.1024.latency"] - of["tma.load.issue"] - of["mbarrier.ready"],
    "tma_row": lambda of: (of["tma.box.64_rows"] - of["tma.box.32_rows"]) / 32,
    "tma_first": lambda of: of["tma.load.first.132_sms"] - of["tma.load.hbm.1024.latency"],
    "mma_flops": lambda of: 2 * 64 * 256 * 16 / of["wgmma.n256.shared.2_groups"],
    "mma_least": lambda of: of["wgmma.n8.shared.1_groups"],
    "mma_latency": lambda of: of["wgmma.n128.group_of_1"] - of["wgmma.n128.shared.1_groups"],
    "cta_start": lambda of: of["launch.smem.wave"] * CLOCK - 4000,
    "cta_rate": lambda of: of["launch.turnover.256_threads.0"] * CLOCK / (8 * SMS),
    "launch_us": lambda of: of["launch.plain"] - of["launch.plain.inside"],
    "tensor_mhz": lambda of: of["clock.zeros.rounds_256.30_ms"],
    "idle_watts": lambda of: of["power.idle.watts"],
}


def derived(results: Results) -> dict[str, float]:
    """The constants whose measurements are all among ``results``."""
    return {name: formula(results) for name, formula in FORMULAS.items() if _has(results, formula)}


def _has(results: Results, formula: Callable[[Results], float]) -> bool:
    try:
        formula(results)
    except KeyError:
        return False
    return True


def lines(results: Results) -> list[str]:
    """A line for each constant: measured now, in ``targets/timing.py``, unit."""
    timing = targets.timing_of("h200")
    return [
        f"{name:<16} {value:>9.4g}  (now {getattr(timing, name):g})  {UNITS[name]}"
        for name, value in derived(results).items()
    ]
