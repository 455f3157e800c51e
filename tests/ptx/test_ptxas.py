"""The call of ptxas."""

from __future__ import annotations

import pytest

from warpwright.errors import UsageError
from warpwright.ptx.ptxas import assemble, find_ptxas

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is an extra: pip install nvidia-cuda-nvcc")


def test_a_ptxas_that_does_not_end_is_stopped() -> None:
    with pytest.raises(
        UsageError, match=r"^ptxas has not ended after 0\.001 s; give it a smaller kernel, or more time$"
    ):
        assemble(".version 8.6\n.target sm_90a\n.address_size 64\n", "sm_90a", seconds=0.001)
