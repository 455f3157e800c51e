"""The last round of tiles: how narrow its tiles are so that every CTA has one.

Persistent CTAs take a tile each in every round. Where the last round has fewer tiles than CTAs, tiles of fewer columns
let every CTA take part: the round is shorter.
"""

from __future__ import annotations

from dataclasses import replace

from warpwright.kernels.gemm.sm90.configs import Config

__all__ = ["PINGPONG_K", "PINGPONG_TILES", "fit_last", "takes_two_widths", "widths"]

PINGPONG_TILES, PINGPONG_K = 4, 512  # tiles of a CTA and K from which consumers that multiply in turn are faster
SHARES = (1, 1), (2, 1)  # single CTAs, and pairs along M that share B
PAIR = 128  # columns of a warp's two blocks of 16-bit elements
COLUMNS = {"k": 8, "mn": 64}  # N of a wgmma is a multiple of 8; 64 where rows of B in memory, 128 bytes, lie along N


def fit_last(config: Config, m: int, n: int, *, sms: int, batches: int = 1, major: str = "k") -> Config:
    """Returns ``config`` with the columns that tiles of the last round of D (m, n) need, at least ``config.last``.

    It has no narrow tiles where they are no gain, where a CTA would have no wide tile, and in a batch. ``major`` is the
    axis of B that is dense in memory.
    """
    if not config.last:
        return config
    (tile_m, tile_n), share, (wide_m, places) = config.tile, config.share[0], _last_round(config, m, n, sms)
    in_a_row, step = places // (-(-m // (tile_m * share)) - wide_m), COLUMNS[major] * share
    columns = -(-max(-(-n // in_a_row), config.last) // step) * step
    fits = batches == 1 and columns < tile_n and wide_m * -(-n // tile_n) >= sms // share
    return replace(config, last=columns if fits else 0)


def takes_two_widths(config: Config) -> bool:
    """Whether `gemm_pingpong` has a kernel of ``config``, or `gemm_two_widths`, whose tiles are whole pairs of a warp's
    blocks of D."""
    columns, part = config.tile[1], COLUMNS["k"] * config.share[0]
    whole = config.split == config.slices == 1 and config.share in SHARES and columns % part == 0
    roles = config.persistent and config.specialised and config.consumers > 1
    plain = whole and roles and config.early and not config.rotate and not config.rows
    if config.pingpong:
        return plain and config.consumers == 2 and not (config.promoted or config.delayed)
    return plain and columns % PAIR == 0 and config.promoted in (0, columns)


def widths(config: Config, m: int, n: int, *, sms: int) -> tuple[int, int]:
    """Returns the rows of wide tiles, and the narrow tiles in a row, of a configuration that `fit_last` returned."""
    if not config.last:
        return -(-m // config.tile[0]), 0
    return _last_round(config, m, n, sms)[0] * config.share[0], -(-n // config.last)


def _last_round(config: Config, m: int, n: int, sms: int) -> tuple[int, int]:
    """Returns how many rows of clusters have wide tiles, as many as fit into all rounds but the last, and for how many
    clusters there is room after them."""
    (tile_m, tile_n), share = config.tile, config.share[0]
    across, down, clusters = -(-m // (tile_m * share)), -(-n // tile_n), sms // share
    rounds = -(-across * down // clusters)
    wide_m = (rounds - 1) * clusters // down
    return wide_m, rounds * clusters - wide_m * down
