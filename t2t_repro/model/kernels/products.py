"""Products with weights that no longer change, prepared once by decoding.

Shapes: T rows, I inputs and O outputs of a linear layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from t2t_repro.model.kernels.context import setting
from t2t_repro.model.kernels.onednn import matmul

Linear = Callable[[Any], Any]  # x [T, I] to x W + b [T, O]


def prepared(
    product: Linear,
    *tensors: Any,
    activated: Mapping[Callable[[Any], Any], Linear] | None = None,
    rows: Callable[[Any], Any] | None = None,
) -> Linear:
    """Returns `product` for `prepared_products`, with the `tensors` that it reads; None among them is left out.

    `linear` takes activated[f] in place of f(x W + b), and `table_rows` takes `rows`.
    """
    product.tensors = tuple(each for each in tensors if each is not None)  # type: ignore[attr-defined]
    product.activated = activated or {}  # type: ignore[attr-defined]
    product.rows = rows  # type: ignore[attr-defined]
    return product


def tensors_read_by(product: Linear) -> tuple[Any, ...]:
    """Returns the tensors of `prepared`."""
    return product.tensors  # type: ignore[attr-defined]


def rows_of(product: Linear) -> Callable[[Any], Any] | None:
    """Returns the `rows` of `prepared`."""
    return product.rows  # type: ignore[attr-defined]


def product_key(weight: Any, bias: Any = None) -> tuple[int, int]:
    """Returns the key of x W + b in `prepared_products`."""
    return id(weight), id(bias)


def narrow_linear(weight_IO: Any, bias_O: Any = None, result: Any = None, *, dtype: Any) -> Linear:
    """Returns x -> x W + b, computed in `dtype` with weights cast here, and returned as `result` if that is given."""
    weight_IO = tf.cast(tf.convert_to_tensor(weight_IO), dtype)
    bias_O = None if bias_O is None else tf.cast(tf.convert_to_tensor(bias_O), dtype)

    def apply(x_TI: Any) -> Any:
        y_TO = matmul(x_TI, weight_IO)
        return tf.cast(y_TO if bias_O is None else y_TO + bias_O, result or dtype)

    return prepared(apply, weight_IO, bias_O)


_PREPARED: ContextVar[Mapping[tuple[int, int], Linear] | None] = ContextVar("prepared", default=None)


@contextlib.contextmanager
def prepared_products(products: Mapping[tuple[int, int], Linear]) -> Iterator[None]:
    """Replaces x W + b by products[product_key(W, b)](x), without a gradient, inside the context: decoding casts W
    once.

    This is for products what `keras.StatelessScope` is for the values of variables.
    """
    with setting(_PREPARED, products):
        yield


def in_prepared_products() -> bool:
    """Returns whether this is inside `prepared_products`: nothing needs a gradient."""
    return _PREPARED.get() is not None


def prepared_product(weight: Any, bias: Any = None) -> Linear | None:
    """Returns the product of `prepared_products` for x W + b, if there is one."""
    return (_PREPARED.get() or {}).get(product_key(weight, bias))


def joined_products(weights_IO: tuple[Any, ...], product: Linear) -> dict[tuple[int, int], Linear]:
    """Returns x W_1, x W_2, ... for `prepared_products`, as slices of one `product` with the concatenated matrices.

    The product is computed once for consecutive calls with the same x.
    """
    widths = [weight_IO.shape[1] for weight_IO in weights_IO]
    latest: list[tuple[Any, list[Any]]] = [(None, [])]

    def part(number: int) -> Linear:
        def apply(x_TI: Any) -> Any:
            if latest[0][0] is not x_TI:
                latest[0] = x_TI, tf.split(product(x_TI), widths, axis=-1)
            return latest[0][1][number]

        return apply

    return {product_key(weight_IO): part(number) for number, weight_IO in enumerate(weights_IO)}


def with_gradient(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the first result of `function`, with the second as its gradient; inside `prepared_products` without."""
    return function(*arguments)[0] if in_prepared_products() else tf.custom_gradient(function)(*arguments)
