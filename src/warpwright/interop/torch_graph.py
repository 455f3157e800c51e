"""CUDA graphs of torch on a virtual GPU: calls of torch's operators and launches of kernels, recorded and repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warpwright.run.session import Session

__all__ = ["CUDAGraph", "graph"]


class CUDAGraph:
    """A graph whose nodes repeat an operator or a launch. As on a GPU, what is captured is not executed: kernels are
    not launched, and operators leave the tensors that they were given as they are."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.nodes: list[Callable[[], Any]] = []
        self._capture = contextlib.ExitStack()

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Record what follows instead of what the graph has."""
        self.reset()
        launch = Session.launch

        def record(session: Session, *args: Any, **how: Any) -> None:
            self.nodes.append(lambda: launch(session, *args, **how))

        self._capture.enter_context(mock.patch.object(Session, "launch", record))
        self._capture.enter_context(_CaptureMode(self.nodes))

    def capture_end(self) -> None:
        """Record no more."""
        self._capture.close()

    def replay(self) -> None:
        """Execute the nodes; results go to the tensors of the capture."""
        for node in self.nodes:
            node()

    def reset(self) -> None:
        """Remove the nodes."""
        self.nodes.clear()

    def pool(self) -> tuple[int, int]:
        """Returns a number for the graph's memory, which other graphs may take."""
        return 0, 0


@contextlib.contextmanager
def graph(cuda_graph: CUDAGraph, *_: Any, **__: Any) -> Iterator[CUDAGraph]:
    """Capture the context as ``cuda_graph``."""
    cuda_graph.capture_begin()
    try:
        yield cuda_graph
    finally:
        cuda_graph.capture_end()


class _CaptureMode(TorchDispatchMode):  # type: ignore[misc]
    """Records torch's operators. A result has the shape that its later value will have, and any value."""

    def __init__(self, nodes: list[Callable[[], Any]]) -> None:
        super().__init__()
        self.nodes = nodes

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        before = [(tensor, tensor.clone()) for tensor in _written(operator, args, given)]
        results = operator(*args, **given)
        for tensor, value in before:
            tensor.copy_(value)
        self.nodes.append(lambda: _assign(results, operator(*args, **given)))
        return results


def _written(operator: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the tensors that an operator writes."""
    parameters = operator._schema.arguments
    given = {parameter.name: value for parameter, value in zip(parameters, args, strict=False)} | kwargs
    return [
        tensor
        for parameter in parameters
        if parameter.alias_info is not None and parameter.alias_info.is_write
        for tensor in tree_leaves(given.get(parameter.name))
        if isinstance(tensor, torch.Tensor)
    ]


def _assign(results: Any, values: Any) -> None:
    """Copy values to the tensors of a capture, except to a tensor that has them already."""
    for result, value in zip(tree_leaves(results), tree_leaves(values), strict=True):
        if isinstance(result, torch.Tensor) and result.data_ptr() != value.data_ptr():
            result.copy_(value)
