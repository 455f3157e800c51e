"""Arguments of NumPy that share memory, and read-only ones, on a real GPU as on a virtual one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.run import test_shared_memory as shared


@pytest.mark.parametrize(
    "test",
    [
        shared.test_a_strided_view_beside_its_base_is_refused,
        shared.test_a_transpose_beside_its_base_is_refused,
        shared.test_a_strided_view_beside_a_tensor_map_of_its_base_is_refused,
        shared.test_equal_views_are_one_memory,
        shared.test_views_of_two_element_types_are_one_memory,
        shared.test_interleaved_views_are_apart,
        shared.test_a_read_only_array_that_is_written_is_an_error_and_the_other_results_stay,
        shared.test_an_array_of_another_library_on_the_host_is_used_in_place,
        shared.test_bfloat16_views_and_odd_addresses,
        shared.test_random_views_are_one_memory_or_an_error,
    ],
    ids=lambda test: test.__name__,
)
def test_a_launch_treats_them_as_a_virtual_gpu_does(test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "DEVICE", "cuda")
    test()
