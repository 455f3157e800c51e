"""JAX arrays on the CPU: numbers of the operators on virtual GPUs, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import UsageError
from warpwright.ops.attention.backward import gradients

jax = pytest.importorskip("jax")
jnp = jax.numpy
jax.config.update("jax_num_cpu_devices", 2)


def normal(seed: int, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(seed), shape).astype(jnp.bfloat16)


def exact(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array, np.float64)


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_matmul_returns_a_jax_array_of_the_right_numbers(device: str) -> None:
    a, b = normal(0, 200, 136), normal(1, 136, 72)
    for right in (b, normal(2, 72, 136).T):
        d = ww.matmul(a, right, device=device)
        assert isinstance(d, jax.Array) and d.dtype == jnp.bfloat16
        bound = 2**-8 * np.abs(exact(a)) @ np.abs(exact(right))
        assert np.all(np.abs(exact(d) - exact(a) @ exact(right)) <= bound)


def test_arrays_of_keywords_are_of_jax_too() -> None:
    a, b, bias = normal(0, 64, 64), normal(1, 64, 64), normal(2, 64)
    d = ww.matmul(a, b, bias=bias, activation="relu", device="h200")
    expected = np.maximum(exact(a) @ exact(b) + exact(bias), 0)
    assert isinstance(d, jax.Array) and np.allclose(exact(d), expected, atol=0.1, rtol=0.01)


def test_every_result_of_attention_and_its_gradients_is_of_jax() -> None:
    q, k, v, do = (normal(seed, 1, 2, 64, 64) for seed in range(4))
    o, lse = ww.attention(q, k, v, return_lse=True, device="h200")
    scores = exact(q) @ exact(k).swapaxes(-1, -2) / 8
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.allclose(exact(o), weights @ exact(v), atol=0.02)
    assert np.allclose(exact(lse), np.log(np.exp(scores).sum(-1)), atol=1e-3)
    results = (o, lse, *gradients(q, k, v, o, lse, do, device="h200"))
    assert all(isinstance(result, jax.Array) for result in results)


def test_launches_of_a_call_with_jax_arrays() -> None:
    a, b = normal(0, 64, 64), normal(1, 64, 64)
    call = ww.launches(ww.matmul, a, b, device="h200")
    for launch in call:
        ww.launch(launch.kernel, launch.grid, args=launch.args, device=call.device)
    assert isinstance(call.result, jax.Array) and jnp.array_equal(call.result, ww.matmul(a, b, device="h200"))


def test_inside_jit_a_callback_works_and_a_call_is_an_error() -> None:
    a, b = normal(0, 64, 64), normal(1, 64, 64)

    def multiply(a: Any, b: Any) -> Any:
        return ww.matmul(np.asarray(a), np.asarray(b), device="h200")

    shape = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    found = jax.jit(lambda a, b: jax.pure_callback(multiply, shape, a, b))(a, b)
    assert jnp.array_equal(found, ww.matmul(a, b, device="h200"))
    for transformed in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(UsageError) as caught:
            transformed(lambda a: ww.matmul(a, b, device="h200").sum())(a)
        assert str(caught.value) == (
            "given a value that JAX traces; expected an array: call warpwright outside jax.jit, jax.grad and jax.vmap, "
            "or from jax.pure_callback with np.asarray of its arguments"
        )


def test_an_out_or_an_array_of_numpy_beside_jax_is_an_error() -> None:
    a, b = normal(0, 64, 64), normal(1, 64, 64)
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, b, out=jnp.zeros((64, 64), jnp.bfloat16), device="h200")
    assert str(caught.value) == "matmul: out is read-only; expected an array that can be written: leave out= out"
    with pytest.raises(UsageError) as caught:
        ww.matmul(a, np.asarray(b), device="h200")
    assert str(caught.value) == "matmul: a is of jaxlib and b of numpy; expected arrays of one library"


def test_an_array_on_two_devices_is_an_error() -> None:
    mesh = jax.make_mesh((2,), ("rows",))
    rows = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    with pytest.raises(UsageError) as caught:
        ww.matmul(jax.device_put(normal(0, 64, 64), rows), normal(1, 64, 64), device="h200")
    assert str(caught.value) == (
        "given a JAX array on cpu:0, cpu:1; expected one on one CPU: jax.device_put(x, jax.devices('cpu')[0])"
    )
