"""Tasks that describe the machine and check its matrix products."""

from __future__ import annotations

import platform
from typing import Any

import tensorflow as tf

from t2t_repro.model import int8
from t2t_repro.system import processor
from t2t_repro.training import hardware
from t2t_repro.training import precision as precisions

WATCHED = 0.4  # seconds of each timing: the rates are informative and need not be exact


def describe() -> dict[str, Any]:
    """Returns processor, cores, memory, GPUs, TensorFlow's build, and the precision that "auto" stands for."""
    memory = hardware.gpu_bytes()
    return {
        "system": platform.platform(),
        "processor": processor.name(),
        "features": processor.features(),
        "cores": processor.usable_cores(),
        "memory_bytes": hardware.machine_bytes(),
        "gpus": [gpu | {"memory_bytes": each} for gpu, each in zip(hardware.gpus(), memory, strict=True)],
        "tensorflow": hardware.tensorflow_build(),
        "onednn_limit": processor.onednn_limit(),
        "auto_precision": precisions.resolve("auto"),
        "auto_reason": hardware.native_precision()[1],
    }


def product(precision: str) -> dict[str, Any]:
    """Checks products in `precision` (or "int8") on every device, and measures their rates.

    "fault" describes a wrong product. "missing" is the reason if there are no such products. "rate" and "decoding_rate"
    are the FLOP/s of all devices together, for large matrices and for those of decoding.
    """
    if precision == "int8":
        return _int8()
    precisions.allow_tf32(False)  # float32 itself is tested
    found: dict[str, Any] = {"fault": "", "rate": 0.0, "decoding_rate": 0.0}
    for device in [gpu.name for gpu in tf.config.list_logical_devices("GPU")] or ["CPU:0"]:
        with tf.device(device):
            if fault := hardware.product_fault(precision):
                return {"fault": f"{fault}, on {device}"}
            found["rate"] += hardware.matrix_rate(precision, watched=WATCHED)
            found["decoding_rate"] += hardware.decoding_rate(precision, WATCHED)
    return found


def _int8() -> dict[str, Any]:
    if hardware.gpus():
        return {"missing": "a GPU computes; these products are for processors"}
    try:
        if fault := hardware.int8_fault():
            return {"fault": fault}
        int8.must_have_int8()
    except (tf.errors.OpError, ValueError) as error:
        return {"missing": str(error).partition("\n")[0]}
    rate, decoding_rate = hardware.matrix_rate("int8", watched=WATCHED), hardware.decoding_rate("int8", WATCHED)
    return {"fault": "", "rate": rate, "decoding_rate": decoding_rate}
