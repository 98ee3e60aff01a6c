"""A call of a TensorFlow function that another thread can end, between two steps of any loop in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import cancellation, context, execute


class Cancelled(Exception):  # noqa: N818
    """The call was ended, as `Cancellation.cancel` asked."""


class Cancellation:
    """Ends the calls that it was given to. One that has not started ends as soon as it does."""

    def __init__(self) -> None:
        self._manager = cancellation.CancellationManager()

    @property
    def is_cancelled(self) -> bool:
        return bool(self._manager.is_cancelled)

    def cancel(self) -> None:
        self._manager.start_cancel()

    def call(self, function: Any, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`function(**inputs)` for a signature of a SavedModel. Raises `Cancelled`.

        TensorFlow has a function for this, `CancellationManager.get_cancelable_function`, but that one keeps the
        manager in a global of the process: of two threads, one would end the other's call.
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
