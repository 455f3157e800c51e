"""`kernel`: the decorator that turns a Python function into a `Kernel`, which traces it to PTX."""

from __future__ import annotations

import difflib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, ClassVar

from warpwright.errors import KernelError
from warpwright.lang.context import activate, misuse
from warpwright.lang.module import assemble
from warpwright.lang.params import bind, declare
from warpwright.lang.returns import check_returns
from warpwright.lang.trace import Trace, Traced
from warpwright.targets import ARCHS

__all__ = ["Kernel", "kernel"]

Dim3 = tuple[int, int, int]
Shape = int | Sequence[int]


class Kernel:
    """A kernel: its parameters, its configuration, and its PTX for each target and configuration.

    ``kernel[grid](x, n)`` and ``ww.launch(kernel, …)`` run it; ``kernel.configure(stages=8)`` is the same kernel with
    other configuration values. ``launcher`` computes ``kernel[…]``; `run` sets it.
    """

    launcher: ClassVar[Callable[[Kernel, Any], Any]]

    def __init__(
        self,
        function: Callable[..., Any],
        arch: str | None,
        cluster: Shape,
        threads: Shape,
        params: dict[str, Any],
        config: dict[str, Any],
        ctas_per_sm: int | None = None,
    ) -> None:
        self.function, self.arch = function, arch
        self.cluster, self.threads, self.ctas_per_sm = cluster, threads, ctas_per_sm
        self.params, self.config = params, config
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self._cache: dict[tuple[Any, ...], Traced] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self.params)}) for {self.arch or 'any target'}>"

    def __call__(self, *args: Any, **config: Any) -> None:
        raise misuse(
            f"given {self.name}(…) as a call; a kernel is launched: {self.name}[grid](…) or "
            f"ww.launch({self.name}, grid=…, args=[…]), or read: {self.name}.ptx()"
        )

    def __getitem__(self, key: Any) -> Any:
        """Returns a launch with the grid and block of ``key``: ``kernel[grid, block](x, n)`` runs the kernel."""
        import_module("warpwright.run.launch")  # which sets the launcher, and stands above `lang`
        return Kernel.launcher(self, key)

    def configure(self, **config: Any) -> Kernel:
        """Returns this kernel with other configuration values. Raises KernelError for an unknown name."""
        return self._with(self.params, self._configuration(config))

    def with_params(self, **annotations: Any) -> Kernel:
        """Returns this kernel with more run-time parameters, which its function takes as ``*name``."""
        return self._with({**self.params, **annotations}, self.config)

    def _with(self, params: dict[str, Any], config: dict[str, Any]) -> Kernel:
        return Kernel(self.function, self.arch, self.cluster, self.threads, params, config, self.ctas_per_sm)

    def ptx(self, arch: str | None = None, **config: Any) -> str:
        """Returns the PTX text for target ``arch`` (default: the decorator's) and the given configuration values.

        Raises KernelError for a misuse of the language, an unknown target or an unknown configuration name.
        """
        return self.trace(arch, **config).ptx

    def trace(self, arch: str | None = None, **config: Any) -> Traced:
        """Like `ptx`, with what a launch needs besides the text. Cached for each target and configuration."""
        target = arch or self.arch
        if target is None:
            raise misuse(
                f"given no target for kernel {self.name}; write {self.name}.ptx('sm_100a') or @kernel('sm_100a')"
            )
        if target not in ARCHS:
            raise misuse(f"given target {target!r} for kernel {self.name}; expected one of {', '.join(ARCHS)}")
        config = self._configuration(config)
        key = (target, *((name, type(value), value) for name, value in config.items()))
        try:
            traced = self._cache.get(key)
        except TypeError:  # a configuration value without a hash
            return self._trace(target, config)
        if traced is None:
            traced = self._cache.setdefault(key, self._trace(target, config))  # threads that trace at once: the first
        return traced

    def _trace(self, arch: str, config: dict[str, Any]) -> Traced:
        threads = self._shape("threads", config.get("threads", self.threads), ARCHS[arch].max_threads_per_block)
        cluster = self._shape("cluster", config.get("cluster", self.cluster), ARCHS[arch].max_cluster_size)
        trace = Trace(self.name, arch, threads, cluster, self._ctas_per_sm(arch, config, math.prod(threads)))
        trace.frame = sys._getframe()
        try:
            with activate(trace):
                values = [bind(trace, name, annotation) for name, annotation in self.params.items()]
                check_returns(self.function, self.function(*values, **config))
                if trace.pending_error is not None:
                    raise trace.pending_error
        finally:
            trace.frame = None  # the frame refers to the trace: the cycle would keep the callers' values alive
        text = assemble(trace, tuple(declare(name, annotation) for name, annotation in self.params.items()))
        return Traced(text, self.name, arch, threads, cluster, trace.smem_bytes, list(self.params.items()), trace.maps)

    def _shape(self, name: str, given: Shape, limit: int) -> Dim3:
        values = (given,) if isinstance(given, int) else tuple(given)
        total = math.prod(value if isinstance(value, int) else 0 for value in values)
        if not 1 <= len(values) <= 3 or min(values) < 1 or not 1 <= total <= limit:
            raise misuse(
                f"given {name}={given!r} for kernel {self.name}; expected 1 to {limit} in all, an int or (x, y, z)"
            )
        x, y, z = (*values, 1, 1)[:3]
        return x, y, z

    def _ctas_per_sm(self, arch: str, config: dict[str, Any], threads: int) -> int | None:
        given, most = config.get("ctas_per_sm", self.ctas_per_sm), ARCHS[arch].fitting_ctas(threads, 0)
        if given is not None and not (isinstance(given, int) and 1 <= given <= most):
            raise misuse(
                f"given ctas_per_sm={given!r} for kernel {self.name} of {threads} threads; expected 1 to {most} on "
                f"{arch}, or None for any number"
            )
        return given

    def _configuration(self, changes: dict[str, Any]) -> dict[str, Any]:
        for name in changes:
            if name not in self.config:
                raise misuse(f"given {name}= to kernel {self.name}; {self._expectation(name)}")
        return {**self.config, **changes}

    def _expectation(self, name: str) -> str:
        if name in self.params:
            return f"{name} is a run-time parameter: pass it by position, or in args=[…] of ww.launch"
        close = difflib.get_close_matches(name, self.config, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"its configuration is {', '.join(self.config) or 'empty'}{hint}"


def kernel(
    arch: str | None = None, *, cluster: Shape = 1, threads: Shape = 128, ctas_per_sm: int | None = None
) -> Callable[[Callable[..., None]], Kernel]:
    """Turn the decorated function into a kernel for ``arch`` with ``threads`` a CTA and ``cluster`` CTAs a cluster.

    ``ctas_per_sm``: the assembler gives a thread so few registers that this many CTAs fit on an SM at a time (PTX ISA
    9.1 section 11.4.4, ``.minnctapersm``); None leaves their number to it.

    Positional parameters are run-time values; their annotation is a scalar type, ``Global[T]`` or ``tma.Map[T]``.
    Keyword-only parameters are the configuration, with defaults; one called ``threads``, ``cluster`` or ``ctas_per_sm``
    replaces the decorator's. ``*name`` takes the parameters that `Kernel.with_params` adds. The function runs once for
    each target and configuration, and emits PTX.

    Raises KernelError for a parameter without annotation, a configuration without default, or another bad signature.
    """
    if callable(arch):
        raise misuse("given @kernel without parentheses; write @kernel() or @kernel('sm_100a')")
    if arch is not None and arch not in ARCHS:
        raise misuse(f"given @kernel({arch!r}); expected one of {', '.join(ARCHS)}")
    names = dict(sys._getframe(1).f_locals)

    def decorate(function: Callable[..., None]) -> Kernel:
        params, config = _signature(function, names)
        return Kernel(function, arch, cluster, threads, params, config, ctas_per_sm)

    return decorate


def _signature(function: Callable[..., None], names: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the run-time parameters with their annotations, and the configuration with its defaults."""
    params: dict[str, Any] = {}
    config: dict[str, Any] = {}
    if function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        raise _signature_error(
            function, f"given kernel {function.__name__} with a yield or async; expected a plain def"
        )
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if parameter.default is inspect.Parameter.empty:
                raise _signature_error(function, f"given configuration {name} without a default; write {name}=…")
            config[name] = parameter.default
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise _signature_error(function, f"given parameter **{name}; expected a fixed list of configuration values")
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        elif parameter.annotation is inspect.Parameter.empty:
            raise _signature_error(
                function, f"given parameter {name} without a type; write {name}: u32, Global[T] or tma.Map[T]"
            )
        else:
            params[name] = _annotation(function, name, parameter.annotation, names)
    return params, config


def _annotation(function: Callable[..., None], name: str, annotation: Any, names: dict[str, Any]) -> Any:
    """Returns the annotation, evaluated (under ``from __future__ import annotations`` it is text) and checked."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, function.__globals__, names)
        except NameError as error:
            raise _signature_error(
                function, f"given parameter {name}: {annotation}, and {error}; import the type"
            ) from None
    try:
        declare(name, annotation)
    except KernelError as error:
        raise _signature_error(function, str(error).split(": ", 1)[1]) from None
    return annotation


def _signature_error(function: Callable[..., None], message: str) -> KernelError:
    code = function.__code__
    return misuse(message, f"{code.co_filename}:{code.co_firstlineno}")
