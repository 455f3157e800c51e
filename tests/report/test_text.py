"""The tables of a profile."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.timelines import profile
from warpwright.report.advice import advice
from warpwright.report.format import base_name, clause, gain_text, headline, percent
from warpwright.report.tables import HEADINGS, table
from warpwright.report.text import main_stall, profile_tables
from warpwright.vgpu.timing import Role


def printed(given, hints=()):
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        for part in profile_tables(given, hints):
            console.print(part, soft_wrap=isinstance(part, str))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.406, "41 %"), (0.0, "0 %"), (1.0, "100 %"), (0.0123, "1.2 %"), (0.0996, "10 %"), (0.05, "5 %")],
)
def test_percent(share, text) -> None:
    assert percent(share) == text


def test_a_place_is_file_and_line() -> None:
    assert base_name("/a/b/gemm.py:12") == "gemm.py:12" and base_name("") == ""


def test_the_clause_of_role_and_stall() -> None:
    assert clause("mma", "waits ab.full") == "mma waits ab.full"
    assert clause("all warps", "waits ab.full") == "all warps wait ab.full"
    assert clause("all warps", "shared memory") == "all warps shared memory"


def test_headline_names_kernel_and_device() -> None:
    assert headline(profile()) == "gemm_level3 on b200, predicted"


def test_every_number_stands_in_a_table() -> None:
    lines = printed(profile(wasted=0.5))
    assert "gemm_level3 on b200, predicted (one representative wave)" in lines
    assert "464 856,000 1,850 2.5 296.2 13 % 50 %" in lines
    assert "29 % 40 % 5 % 30 % 4 % 95 % 3200 140" in lines
    assert "2048 128 2 1 13.84 1.2 %" in lines
    assert "61.1 184.8 123.7 0 49.6 36.6 5.5 2.5" in lines
    assert "mma 1 22 % waits ab.full 78 % gemm.py:50" in lines
    assert "load 1 32 % waits ab.empty 68 % gemm.py:38" in lines


def test_short_roles_are_left_out() -> None:
    short = Role("init", 1, 90.0, 1.0, ())
    assert not any(line.startswith("init") for line in printed(replace(profile(), roles=(*profile().roles, short))))


def test_a_kernel_without_products_has_no_rate() -> None:
    lines = printed(replace(profile(), flops=0, wasted_flops=0, tflops=0.0, fast=False, grid=(4, 3, 1)))
    assert "464 856,000 1,850 2.5" in lines
    assert "gemm_level3 on b200, predicted (every CTA)" in lines
    assert any(line.startswith("4 × 3 128 2") for line in lines)


def test_advice_is_numbered_with_its_gain_and_its_place() -> None:
    given = profile(wasted=0.5)
    lines = printed(given, advice(given))
    assert any(line.startswith("1. wasted work (up to 2.0 times as fast): 50 % of tensor-core work") for line in lines)
    assert any(line.endswith("(gemm.py:52)") for line in lines)
    assert "Advice: none." in printed(given)


@pytest.mark.parametrize(
    ("gain", "text"),
    [(1.2, "+1 %"), (99, "+99 %"), (100, "up to 2.0 times as fast"), (7300, "up to 74 times as fast")],
)
def test_a_gain_is_said_as_people_say_it(gain: float, text: str) -> None:
    assert gain_text(gain) == text


@pytest.mark.parametrize("width", [80, 120])
def test_headings_are_words_and_whole_at_every_width(width: int) -> None:
    """Of a table as wide as the list of devices."""
    keys = "name", "target", *HEADINGS
    console = Console(width=width, file=io.StringIO())
    console.print(table([dict.fromkeys(keys[:10], 123)]))
    shown = console.file.getvalue()
    assert "…" not in shown and "_" not in shown and shown.count("123") == 10
    assert {"GB/s", "MHz", "TFLOPS", "cosine"} <= set(shown.split())


def test_the_main_stall_is_that_of_the_role_that_multiplies() -> None:
    assert main_stall(profile()) == "mma waits ab.full 78 %"
    assert main_stall(replace(profile(), roles=())) == ""
