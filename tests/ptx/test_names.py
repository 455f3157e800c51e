"""Names of kernels as people read them."""

from __future__ import annotations

import pytest

from warpwright.ptx.names import demangle, kernel_name, shorten_name


@pytest.mark.parametrize(
    ("mangled", "name", "short"),
    [
        ("saxpy", "saxpy", "saxpy"),
        ("_Z5saxpyifPKfPf", "saxpy(int, float, float const*, float*)", "saxpy"),
        ("_ZN2ns4gemmILi4EfEEvPT0_", "void ns::gemm<4, float>(float*)", "ns::gemm<4, float>"),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()", "(anonymous namespace)::f"),
        ("_Z", "_Z", "_Z"),
    ],
)
def test_names_of_kernels(mangled: str, name: str, short: str) -> None:
    assert demangle(mangled) == name
    assert shorten_name(name) == kernel_name(mangled) == short


def test_a_long_name_is_cut() -> None:
    assert shorten_name(f"kernel<{'int, ' * 30}int>()") == f"kernel<{'int, ' * 10}in…"


def test_a_title_is_not_cut() -> None:
    assert kernel_name(f"gemm, {'4096 × ' * 20}4096") == f"gemm, {'4096 × ' * 20}4096"
