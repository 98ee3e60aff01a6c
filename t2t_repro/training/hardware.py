"""Properties of the machine: devices, memory, native precision, and correctness and speed of matrix products."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.model import int8
from t2t_repro.model.kernels import Linear, narrow_linear
from t2t_repro.system import processor

NVIDIA = "/dev/nvidia0"  # exists if the kernel's driver has found a GPU
SECONDS = 0.05  # minimum duration of one timing, so that launching it does not count
WATCHED = 1.0  # seconds of timings, of which the fastest counts: a shared machine may lose a core for half a second
SIZES = {"CPU": 2_048, "GPU": 8_192}  # of square matrices: launching a product and reading them take little time
DECODING_ROWS, D_MODEL, D_FF = 128, 512, 2_048  # a feed-forward layer of base, on the rows of 32 sentences, beam 4
PRODUCTS = (  # shapes of factors, and whether the second is transposed: linear layers, one row, odd sizes, attention
    ([64, 256], [256, 96], False),
    ([1, 256], [256, 96], False),
    ([37, 129], [129, 65], False),
    ([2, 3, 17, 32], [2, 3, 19, 32], True),
)
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # from 1 to the next larger number
ODD = 1 + 2.0**-12  # TensorFloat-32 and bfloat16 round it to 1; products in float32 must not


def name() -> str:
    """Returns the GPU's name, or `2 cores of AMD EPYC` without one. Several kinds of GPU are joined by " + "."""
    if tf.config.list_physical_devices("GPU"):
        return " + ".join(sorted({gpu["name"] for gpu in gpus()}))
    cores = processor.usable_cores()
    return f"{cores} core{'s' * (cores > 1)} of {processor.name()}"


def gpus() -> list[dict[str, Any]]:
    """Returns "name" and "compute_capability" (major, minor; (0, 0) if unknown) of each GPU that TensorFlow sees."""
    found = []
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability", (0, 0))
        found.append({"name": details.get("device_name", "GPU"), "compute_capability": capability})
    return found


def gpu_names() -> list[str]:
    """Returns the names of the GPUs that TensorFlow sees, such as "GPU:0"."""
    return [gpu.name.partition("physical_device:")[2] for gpu in tf.config.list_physical_devices("GPU")]


def unused_gpu() -> str:
    """Returns a warning if the machine has an NVIDIA GPU that TensorFlow does not see, "" otherwise."""
    if not os.path.exists(NVIDIA) or tf.config.list_physical_devices("GPU"):
        return ""
    return (
        f"warning: there is an NVIDIA GPU ({NVIDIA}), but TensorFlow does not see it, so the CPU computes; "
        "pip install 't2t_repro[gpu]' installs CUDA's libraries"
    )


def gpu_bytes() -> list[int]:
    """Returns the memory that TensorFlow may use on each GPU. Initializes the GPUs."""
    from tensorflow.python.client import device_lib

    return [device.memory_limit for device in device_lib.list_local_devices() if device.device_type == "GPU"]


def tensorflow_build() -> dict[str, Any]:
    """Returns "version", "cuda" (the version of the build, or None) and "onednn" (whether its kernels are in use)."""
    from tensorflow.python.util import _pywrap_util_port

    return {
        "version": tf.__version__,
        "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
        "onednn": _pywrap_util_port.IsMklEnabled(),
    }


def native_precision() -> tuple[str, str]:
    """Returns the precision with the fastest products on these devices, and the reason.

    The answer is needed before TensorFlow runs any operation (strategies come first), so nothing is computed here.
    `product_fault` tests the products.
    """
    if found := gpus():
        least = min(gpu["compute_capability"] for gpu in found)
        capability = f"compute capability {least[0]}.{least[1]}"
        if least >= (8, 0):
            return "bfloat16", f"native from compute capability 8.0 on, here {capability}"
        if least >= (7, 0):
            return "float16", f"{capability}: tensor cores for float16, none for bfloat16"
        return "float32", f"{capability}: no tensor cores"
    if not processor.has_bfloat16():
        limit = processor.onednn_limit()
        limited = f" under ONEDNN_MAX_CPU_ISA={limit}" if limit else ""
        return "float32", f"the processor has no products in bfloat16{limited}"
    if not tensorflow_build()["onednn"]:
        return "float32", "without oneDNN products in bfloat16 are computed in float32"
    if slow := processor.slow_bfloat16():
        return "float32", slow
    return "bfloat16", "the processor has products in bfloat16"


def precision_fault(precision: str) -> str:
    """Returns why a product in `precision` would end the process here; "" if it would not."""
    return "" if gpus() else processor.precision_fault(precision)


def product_fault(precision: str) -> str:
    """Returns the error of matrix products in `precision` ("float32", "bfloat16", "float16"); "" if they are right.

    They are compared with NumPy's in float64. The factors are exact in `precision`. For any order of summation in
    float32 and one rounding of the result, |error| <= (inner eps(float32) + 4 eps(precision)) |a| |b|, where eps is
    twice the largest relative rounding error. A factor of 2, a NaN, or a product in fewer bits than promised exceeds
    this bound.
    """
    dtype, rng = tf.as_dtype(precision), np.random.default_rng(1)
    for shape_a, shape_b, transpose_b in PRODUCTS:
        a, b = (tf.cast(rng.normal(size=shape), dtype) for shape in (shape_a, shape_b))
        rows = tf.range(shape_a[-2])[:, None] % 2 == 0  # every other row, and half of the columns, is positive
        a = tf.where(rows, tf.cast(ODD, dtype), a)
        b = tf.where(tf.range(shape_b[-1]) % 2 == 0, tf.abs(b), b)
        found = tf.function(lambda a, b, transpose_b=transpose_b: tf.matmul(a, b, transpose_b=transpose_b))(a, b)
        found, a, b = (tf.cast(each, tf.float64).numpy() for each in (found, a, b))
        b = np.swapaxes(b, -1, -2) if transpose_b else b
        bound = shape_a[-1] * EPS["float32"] + 4 * EPS[precision]
        if fault := _fault(found, a @ b, bound * (np.abs(a) @ np.abs(b))):
            shapes = (" x ".join(map(str, shape)) for shape in (shape_a, shape_b))
            return f"{fault}, in {' by '.join(shapes)}"
    return ""


def int8_fault() -> str:
    """Returns the error of products by `int8_linear`; "" if they are right.

    Weights have at least 63 steps per sign and rows 127, so the error of a factor is at most half a step of the
    largest. Columns and rows of ones give the largest possible sums.
    """
    rng, inner = np.random.default_rng(1), 256
    weight_IO, x_NI = rng.normal(size=[inner, 96]), rng.normal(size=[33, inner])
    weight_IO[:, ::3] = np.abs(weight_IO[:, ::3])
    weight_IO[:, 0] = x_NI[::2] = 1.0
    found = tf.function(int8.int8_linear(tf.constant(weight_IO, tf.float32)), autograph=False)
    y_NO = found(tf.constant(x_NI, tf.float32)).numpy()
    largest = np.abs(x_NI).max(axis=1, keepdims=True) * np.abs(weight_IO).max(axis=0, keepdims=True)
    steps = 0.5 / 127 + 0.5 / 63
    return _fault(y_NO.astype(np.float64), x_NI @ weight_IO, (steps + 1e-3) * inner * largest)


def _fault(found: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> str:
    """Returns `32.1 instead of 16.1 (tolerance 0.1)` for the element with the largest excess; "" if all are within."""
    if found.shape != exact.shape:
        return f"shape {list(found.shape)} instead of {list(exact.shape)}"
    excess = np.where(np.isfinite(found), np.abs(found - exact) / bound, np.inf)
    at = np.unravel_index(np.argmax(excess), excess.shape)
    return f"{found[at]:.6g} instead of {exact[at]:.6g} (tolerance {bound[at]:.2g})" if excess[at] > 1 else ""


def matrix_rate(precision: str, devices: int = 1, watched: float = WATCHED) -> float:
    """Returns the FLOP/s of large matrix products in `precision` on `devices` devices together.

    `precision` is the name of a float type, or "int8", which includes the quantization of the rows.
    """
    size = SIZES["GPU" if tf.config.list_logical_devices("GPU") else "CPU"]
    weight = _random_matrix(size, size)
    return devices * 2 * size**3 / _seconds(_linear(weight, precision), weight, precision, watched)


def decoding_rate(precision: str, watched: float = WATCHED) -> float:
    """Returns the FLOP/s of the two products of a feed-forward layer of base in a step of beam search.

    `precision` is as for `matrix_rate`.
    """
    up, down = (_linear(_random_matrix(*shape), precision) for shape in ((D_MODEL, D_FF), (D_FF, D_MODEL)))
    x = tf.ones([DECODING_ROWS, D_MODEL])
    return 2 * 2 * DECODING_ROWS * D_MODEL * D_FF / _seconds(lambda x: down(up(x)), x, precision, watched)


def _random_matrix(rows: int, columns: int) -> tf.Tensor:
    return tf.random.stateless_normal([rows, columns], seed=(0, 0)) / rows**0.5


def _linear(weight: tf.Tensor, precision: str) -> Linear:
    return int8.int8_linear(weight) if precision == "int8" else narrow_linear(weight, dtype=precision)


def _seconds(step: Linear, first: tf.Tensor, precision: str, watched: float) -> float:
    """Returns the minimum seconds of one call of `step` over `watched` seconds. `step` maps x to its next argument."""
    first = tf.cast(first, "float32" if precision == "int8" else precision)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
    def steps(number: tf.Tensor) -> tf.Tensor:
        """Applies each call to the result of the previous one, so that none can be optimized away."""
        _, last = tf.while_loop(lambda n, _: n < number, lambda n, x: (n + 1, step(x)), (tf.constant(0), first))
        return last[0, 0]

    def seconds(number: int) -> float:
        start = time.perf_counter()
        steps(tf.constant(number)).numpy()
        return time.perf_counter() - start

    seconds(1)  # also makes the graph
    number = 1
    while (taken := seconds(number)) < SECONDS:
        number *= 2
    end = time.perf_counter() + watched
    while time.perf_counter() < end:
        taken = min(taken, seconds(number))
    return taken / number


def peak_bytes() -> int:
    """Returns the peak memory in bytes: of the fullest GPU, or of this process if there is no GPU."""
    if gpus := gpu_names():
        return max(tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus)
    with open("/proc/self/status", encoding="ascii") as file:  # `ru_maxrss` may be that of the parent process
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def total_bytes() -> int | None:
    """Returns the memory of this machine, or the container's limit; None if GPUs compute (see `gpu_bytes`)."""
    return None if tf.config.list_logical_devices("GPU") else machine_bytes()


def machine_bytes() -> int:
    """Returns the memory of this machine, or the container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))
