"""Calls of a TensorFlow function that another thread can cancel, between two steps of any loop in the function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import cancellation, context, execute


class Cancelled(Exception):  # noqa: N818
    """The call was canceled by `Cancellation.cancel`."""


class Cancellation:
    """Cancels the calls made through it. A call that has not started is canceled when it starts."""

    def __init__(self) -> None:
        self._manager = cancellation.CancellationManager()

    @property
    def is_cancelled(self) -> bool:
        return bool(self._manager.is_cancelled)

    def cancel(self) -> None:
        self._manager.start_cancel()

    def call(self, function: Any, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns `function(**inputs)` for a signature of a SavedModel. Raises `Cancelled`.

        TensorFlow's `CancellationManager.get_cancelable_function` keeps the manager in a global of the process, so that
        one of two threads would cancel the call of the other.
        """
        ctx = context.context()
        ctx.ensure_initialized()
        attributes = [part for both in ctx.function_call_options.as_attrs().items() for part in both]
        try:
            found = execute.execute_with_cancellation(
                function.inference_fn.name.decode(),
                num_outputs=len(function.outputs),
                inputs=[*tf.nest.flatten(dict(inputs)), *function.captured_inputs],
                attrs=tuple(attributes),
                ctx=ctx,
                cancellation_manager=self._manager,
            )
        except tf.errors.CancelledError:
            raise Cancelled from None
        return dict(tf.nest.pack_sequence_as(function.structured_outputs, found))
