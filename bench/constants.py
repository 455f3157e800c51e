"""The formulas from measurements of ``bench/micro.py`` on an H200 to the constants of ``warpwright.targets.clocks``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from warpwright import targets
from warpwright.targets.timing import UNITS

__all__ = ["FORMULAS", "derive", "lines"]

Results = Mapping[str, float]
SMS, CLOCK, HBM = 132, 1980, 4800.0  # MHz, GB/s
ADDRESS = 8  # cycles of the address in a chain of global loads
COPIED = 66  # cycles of the other instructions of launch.turnover.copy
STEPS, ENTRY = 12, 125  # cycles of the model for what else is in issue.branch.loop, and in start.used
PAIR = 2 * (5.5 + 128 * 1.19) + 40  # cycles of the TMA unit for two boxes of 128 rows, issue and wait
FLOPS = 2 * 128 * 64  # of a k-block, for each column
LATER = 1.5  # of two exponential delays the later, on average


def shared_byte_cost(of: Results, name: str, unique: float, all_of: int, resident: int = 1) -> float:
    """Returns the L2 cost of a shared byte: a k-block has ``all_of`` KB, and its CTA, one of ``resident`` on an SM, is
    the first in its GPC to read ``unique`` KB of them."""
    return (of[name] / resident * of["tma.load.l2.32768x4.132_sms"] / 1024 - unique) / (all_of - unique)


# KB of a k-block of 32 KB, by tiles of y for each of x, that a CTA is the first to read where 2 or 3 share an SM
FIRST_OF_TWO = {16: 9.0, 64: 10.9}
FIRST_OF_THREE = 8.8


def first_waves(of: Results) -> tuple[float, ...]:
    one = fmean(
        shared_byte_cost(of, f"tiles.one.128_{n}x4.down_{down}.used_0.1_ctas", unique, 128 // 8 + n // 8)
        for n, down, unique in ((128, 1, 17), (128, 16, 17), (256, 1, 18), (256, 16, 33))
    )
    return one, *(costs_of_two_and_three(of, "first"))


def later_waves(of: Results) -> tuple[float, ...]:
    names = [f"waves.one.128_128x6.down_{down}.used_0.1_ctas.later" for down in (16, 32, 64)]
    return fmean(shared_byte_cost(of, name, 17, 32) for name in names), *costs_of_two_and_three(of, "later")


def costs_of_two_and_three(of: Results, which: str) -> tuple[float, float]:
    """Returns `joined` for two and for three CTAs an SM; two CTAs wait for device memory if L2 is cold."""
    two = (
        shared_byte_cost(of, f"waves.one.128_128x1.down_{down}.used_512.2_ctas.{which}", unique, 32, 2)
        for down, unique in FIRST_OF_TWO.items()
    )
    three = shared_byte_cost(of, f"waves.cold.one.128_128x1.down_64.used_512.3_ctas.{which}", FIRST_OF_THREE, 32, 3)
    return fmean(two), three


def common_share(of: Results, name: str) -> float:
    """Returns the share of device-memory bandwidth while two CTAs read each of 64 tiles of y, and 64 each of 3 of x."""
    return 67 * 16.384 / of[name] * CLOCK / HBM


# columns of a k-block and bytes that L2 sends an SM for it
SENT = {
    "normal": (256, 0),
    "normal_a": (256, 1 << 14),
    "normal_b": (256, 1 << 15),
    "normal_ab": (256, 3 << 14),
    "pair_ab": (256, 1 << 15),
    "narrow": (128, 0),
    "narrow_a": (128, 1 << 14),
    "narrow_ab": (128, 1 << 15),
    "narrow_pair_ab": (128, 3 << 13),
    "pause_300_ab": (256, 3 << 14),
    "pause_700_ab": (256, 3 << 14),
    "pause_1024_ab": (256, 3 << 14),
}
STEADY = ("normal_a", "normal_b", "normal_ab", "pair_ab")


def energies(of: Results) -> Any:
    """Returns picojoules of a flop and of a byte from L2: least squares of watts below the power limit."""
    rates = {name: SMS * of[f"power.paused.{name}.clock"] / of[f"power.paused.{name}.cycles"] * 1e-6 for name in STEADY}
    work = [[rates[name] * FLOPS * SENT[name][0], rates[name] * SENT[name][1]] for name in STEADY]
    watts = [of[f"power.paused.{name}.watts"] - of["power.idle.watts"] for name in STEADY]
    return np.linalg.lstsq(np.array(work), np.array(watts), rcond=None)[0]


def watts(of: Results, name: str, where: str) -> float:
    """Returns the watts of a load above idle power, at its clock and the maximum voltage."""
    flop, byte = energies(of)
    columns, sent = SENT[name]
    return float(SMS * of[where] / of[f"{where}.cycles"] * 1e-6 * (flop * FLOPS * columns + byte * sent))


def line_of(of: Results) -> Any:
    """Returns the clock at zero power and MHz a watt: a straight line through the loads of `SENT`."""
    powers = [watts(of, name, f"clock.{name}.rounds_256") for name in SENT]
    clocks = [of[f"clock.{name}.rounds_256"] for name in SENT]
    return np.polynomial.polynomial.polyfit(powers, clocks, 1)


def slope(of: Results, name: str) -> float:
    """Returns the exponent with which energy depends on the clock at the power limit."""
    clock = of[f"power.{name}.clock"]
    flop, byte = energies(of)
    full = SMS * clock / of[f"power.{name}.cycles"] * 1e-6 * (flop * FLOPS * SENT[name][0] + byte * SENT[name][1])
    share = (of[f"power.{name}.watts"] - of["power.idle.watts"]) / full
    return float(np.log(share) / np.log(clock / of["clock.zeros.rounds_256"]))


def multicast(of: Results, name: str, own: int, sent: int) -> float:
    return (of[name] * of["tma.load.l2.32768x4.132_sms"] / 1024 - own) / sent


def lost_share(of: Results, arithmetic: str, source: str) -> float:
    """Returns the share of its rate that arithmetic loses during wgmma."""
    return 1 - of[f"beside.{arithmetic}.none"] / of[f"beside.{arithmetic}.{source}"]


FORMULAS: dict[str, Callable[[Results], Any]] = {
    "branch": lambda of: of["issue.branch.loop"] - STEPS,
    "try_wait": lambda of: of["mbarrier.ready"] - of["issue.branch.loop"] + STEPS,
    "wake": lambda of: of["mbarrier.ready"] - 2 * (of["issue.branch.loop"] - STEPS),
    "arrive": lambda of: of["mbarrier.signal"] - of["mbarrier.ready"],
    "arrive_remote": lambda of: of["dsmem.neighbour.latency"] + of["mbarrier.signal"] - of["mbarrier.ready"],
    "bar": lambda of: of["bar.sync.128"] - 4 * FORMULAS["bar_warp"](of),
    "bar_warp": lambda of: (of["bar.sync.512"] - of["bar.sync.128"]) / 12,
    "cluster_barrier": lambda of: of["cluster.sync.2x128.relaxed"],
    "fence_async": lambda of: of["fence.fence_proxy_async"],
    "fence_cluster": lambda of: of["fence.fence_cluster"],
    "ld_l2": lambda of: of["global.l2.latency"] - ADDRESS,
    "ld_hbm": lambda of: of["global.hbm.latency"] - ADDRESS,
    "ld_hbm_mixed": lambda of: of["launch.turnover.copy"] * CLOCK - FORMULAS["cta_start"](of) - COPIED,
    "shared_latency": lambda of: of["shared.load.latency"],
    "shared_bytes": lambda of: 512 / of["shared.load.quad.16_warps"],
    "dsmem_latency": lambda of: of["dsmem.neighbour.latency"],
    "dsmem_bytes": lambda of: of["dsmem.read.2.132_sms"],
    "l1_bytes": lambda of: of["l2.read.1_sms"],
    "sm_bytes": lambda of: of["tma.load.l2.16384x4.1_sms"],
    "pair_bytes": lambda of: 2 * of["tma.load.together_2"],
    "l2_bytes": lambda of: SMS * of["tma.load.l2.32768x4.132_sms"],
    "l2_write_bytes": lambda of: SMS * 8192 / of["tma.store.8192.flight.132_sms"],
    "l2_add_bytes": lambda of: SMS * 16384 / of["tma.add.16384.flight.1_together.132_sms"],
    "hbm_share": lambda of: of["hbm.read"] / HBM,
    "hbm_mixed_share": lambda of: of["hbm.copy"] / HBM,
    "tma_issue": lambda of: of["tma.load.issue"],
    "tma_l2": lambda of: of["tma.load.l2.1024.latency"] - of["tma.load.issue"] - of["mbarrier.ready"],
    "tma_hbm": lambda of: FORMULAS["tma_l2"](of) + of["tma.load.hbm.8192.latency"] - of["tma.load.l2.8192.latency"],
    "tma_fresh": lambda of: (
        of["waits.near.one.128_0x1.down_16.used_0.1_ctas.132_ctas"]
        - of["waits.warm.one.128_0x1.down_16.used_0.1_ctas.132_ctas"]
    ),
    "tma_late_l2": lambda of: (
        (
            of["waits.warm.one.128_128x1.down_16.used_0.1_ctas.132_ctas"]
            - of["waits.warm.one.128_128x1.down_16.used_0.1_ctas.2_ctas"]
        )
        / LATER
    ),
    "tma_late_hbm": lambda of: (
        (of["waits.cold.one.128_128x1.down_16.used_0.1_ctas.132_ctas"] - FORMULAS["tma_hbm"](of) - PAIR) / LATER
    ),
    "tma_store_bytes": lambda of: 16384 / of["tma.store.16384.flight.1_sms"],
    "tma_add_bytes": lambda of: 16384 / of["tma.add.16384.flight.1_together.1_sms"],
    "tma_row": lambda of: (of["tma.box.64_rows"] - of["tma.box.32_rows"]) / 32,
    "tma_first": lambda of: (
        of["start.load.128_128x1.down_16.last"] - FORMULAS["tma_hbm"](of) - LATER * FORMULAS["tma_late_hbm"](of) - PAIR
    ),
    "entry": lambda of: of["start.used.far_0_1.cold"] - ENTRY,
    "merged_cost": first_waves,
    "merged_later": later_waves,
    "multicast_cost": lambda of: fmean(
        (multicast(of, "tma.mixed.64_128.4.1_ctas", 16, 8), multicast(of, "tma.mixed.128_128.4.1_ctas", 16, 16))
    ),
    "hbm_common_share": lambda of: common_share(of, "tiles.cold.one.128_128x6.down_64.used_0.1_ctas"),
    "hbm_common_later": lambda of: common_share(of, "waves.cold.one.128_128x6.down_64.used_512.1_ctas.later"),
    "mma_flops": lambda of: 2 * 64 * 256 * 16 / of["wgmma.n256.shared.2_groups"],
    "mma_least": lambda of: of["wgmma.n8.shared.1_groups"],
    "mma_latency": lambda of: of["wgmma.n128.group_of_1"] - of["wgmma.n128.shared.1_groups"],
    "mma_ports": lambda of: (of["mma.mixed.fma_f32.8.4_warps"] - of["mma.m16n8k16.8_sums.16_warps"]) / 8,
    "mma_half": lambda of: of["mma.mixed.pack_bf16.8.4_warps"] - 8 * 2,
    "wgmma_burst": lambda of: of["beside.max_f32.2.shared"] - 1,
    "wgmma_register_burst": lambda of: of["beside.max_f32.2.registers"] - 1,
    "wgmma_special": lambda of: lost_share(of, "ex2.2", "shared"),
    "cta_start": lambda of: of["launch.smem.wave"] * CLOCK - 4000,
    "cta_rate": lambda of: of["launch.turnover.256_threads.0"] * CLOCK / (8 * SMS),
    "launch_us": lambda of: of["launch.plain"] - of["launch.plain.inside"],
    "tensor_mhz": lambda of: of["clock.zeros.rounds_256"],
    "droop_top": lambda of: float(line_of(of)[0]),
    "droop": lambda of: -float(line_of(of)[1]),
    "flop_pj": lambda of: float(energies(of)[0]),
    "l2_pj": lambda of: float(energies(of)[1]),
    "hbm_pj": lambda of: (
        1e3 * (of["power.hbm_read.watts"] - of["power.idle.watts"]) / of["power.hbm_read.rate"] - energies(of)[1]
    ),
    "volts_slope": lambda of: fmean(slope(of, name) for name in STEADY),
    "idle_watts": lambda of: of["power.idle.watts"],
}


def derive(results: Results) -> dict[str, Any]:
    """Returns the constants whose measurements are all in ``results``."""
    return {name: formula(results) for name, formula in FORMULAS.items() if _has(results, formula)}


def _has(results: Results, formula: Callable[[Results], Any]) -> bool:
    try:
        formula(results)
    except KeyError:
        return False
    return True


def lines(results: Results) -> list[str]:
    """Returns a line for each constant: the new value, the value in ``targets/clocks.py``, the unit."""
    timing = targets.timing_of("h200")
    return [
        f"{name:<16} {_figures(value):>9}  (now {_figures(getattr(timing, name))})  {UNITS[name]}"
        for name, value in derive(results).items()
    ]


def _figures(value: Any) -> str:
    return " ".join(f"{each:.4g}" for each in (value if isinstance(value, tuple) else (value,)))
