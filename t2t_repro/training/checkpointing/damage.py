"""Damaged checkpoints: whether one can be read, and why not."""

from __future__ import annotations

import tensorflow as tf

from t2t_repro.io import without_wildcards

_DAMAGE = (tf.errors.OpError, LookupError, RuntimeError, ValueError)  # raised by reading a damaged checkpoint


def must_be_intact(path: str) -> None:
    """Raises ValueError if a checkpoint cannot be read."""
    if reason := damage(path):
        raise ValueError(f"{path} is damaged ({reason}); take another checkpoint of its run")


def damage(path: str) -> str:
    """Returns why a checkpoint cannot be read; "" if its checksums match."""
    try:
        with without_wildcards(path) as plain:
            reader = tf.train.load_checkpoint(plain)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except _DAMAGE as error:
        return reason_of(error)
    except MemoryError:  # a damaged index may contain any size
        return "it asks for more memory than there is"
    return ""


def reason_of(error: Exception) -> str:
    """Returns a short reason for an error of TensorFlow that reads a checkpoint."""
    message = str(error).partition("\n")[0]
    for pattern, reason in (
        ("No such file", "a file of it is missing"),
        ("Failed to find any", "a file of it is missing"),
        ("Is a directory", "a file of it is a directory"),
        ("Checksum does not match", "a checksum differs"),
        ("checksum mismatch", "a checksum differs"),
        ("Read less bytes", "it is cut off"),
        ("too short", "it is cut off"),
        ("bad magic number", "it is cut off"),
    ):
        if pattern in message:
            return reason
    return message
