"""Sequences in padded arrays as packed sequences: cumulative lengths without a copy of the rows and without waiting."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cumulative_lengths"]


def cumulative_lengths(
    queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], q_len: int, kv_len: int
) -> tuple[Tensor, Tensor]:
    """Returns ``cu_seqlens_q`` and ``cu_seqlens_k`` of a padded batch for `warpwright.attention_varlen`.

    ``queries`` and ``keys`` are the first row and the end of each sequence within its ``q_len`` and ``kv_len`` rows,
    (batch,) of int32. Three packed sequences stand for one of the batch: padding queries without keys, whose output is
    0; padding keys without queries, which no query reads; and the sequence. Two more end the arrays.
    """
    (first_q, end_q), (first_k, end_k) = queries, keys
    batch = first_q.shape[0]
    rows = torch.arange(batch, dtype=torch.int32, device=first_q.device)
    first_q, end_q = first_q + rows * q_len, end_q + rows * q_len
    first_k, end_k = first_k + rows * kv_len, end_k + rows * kv_len
    zero = torch.zeros_like(rows[:1])
    before = torch.cat((zero, end_k[:-1]))  # the end of the keys of the sequence before
    cu_q = torch.cat((zero, torch.stack((first_q, first_q, end_q), 1).flatten(), zero + batch * q_len))
    cu_k = torch.cat((zero, torch.stack((before, first_k, end_k), 1).flatten(), end_k[-1:]))
    return torch.cat((cu_q, cu_q[-1:])).int(), torch.cat((cu_k, zero + batch * kv_len)).int()
