"""What the machine can do, measured: the rate of its matrix products, and its memory."""

from __future__ import annotations

import os
import time

import tensorflow as tf

SECONDS = 0.05  # that one timing takes at least, so that starting it does not count
WATCHED = 1.0  # seconds of timings, of which the fastest counts: a shared machine may lack a core for half a second
SIZES = {"CPU": 2_048, "GPU": 8_192}  # of square matrices: what starting a product and reading them takes is little
SHAPES_KEPT = 1_024  # of each kind of product, by TensorFlow
SHAPES_TRIED = 100  # for what one of them costs


def matrix_rate(precision: str, devices: int = 1) -> float:
    """FLOPs per second of large matrix products in that precision, of so many devices together."""
    size = SIZES["GPU" if tf.config.list_logical_devices("GPU") else "CPU"]
    a = tf.cast(tf.random.stateless_normal([size, size], seed=(0, 0)) / size**0.5, precision)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
    def products(number: tf.Tensor) -> tf.Tensor:
        """Each of the one before, so that none can be left out."""
        _, last = tf.while_loop(lambda n, _: n < number, lambda n, x: (n + 1, tf.matmul(x, a)), (tf.constant(0), a))
        return last[0, 0]

    def seconds(number: int) -> float:
        start = time.perf_counter()
        products(tf.constant(number)).numpy()
        return time.perf_counter() - start

    seconds(1)  # also makes the graph
    number = 1
    while (taken := seconds(number)) < SECONDS:
        number *= 2
    end = time.perf_counter() + WATCHED
    while time.perf_counter() < end:
        taken = min(taken, seconds(number))
    return devices * number * 2 * size**3 / taken


def peak_bytes() -> int:
    """The most memory that the training has held at one time: of the fullest GPU, or of this process where there is
    none."""
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        return max(tf.config.experimental.get_memory_info(gpu.name.partition("device:")[2])["peak"] for gpu in gpus)
    return _status("VmHWM")  # `ru_maxrss` may be that of the process it came from


def bytes_per_shape(precision: str) -> float:
    """What a process goes on holding of each shape of a matrix product that it has once computed: the code that oneDNN
    made for it, which TensorFlow keeps of the last `SHAPES_KEPT` of a kind. Nothing on a GPU."""
    if tf.config.list_logical_devices("GPU"):
        return 0.0
    b = tf.ones([128, 512], precision)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 128], precision)])
    def product(a: tf.Tensor) -> tf.Tensor:
        return tf.matmul(a, b)[0, 0]

    def held(rows: range) -> int:
        for number in rows:
            product(tf.ones([number, 128], precision)).numpy()
        return _status("VmRSS")

    first = held(range(1_000, 1_004))
    return max(held(range(1_004, 1_004 + SHAPES_TRIED)) - first, 0) / SHAPES_TRIED


def _status(name: str) -> int:
    """Bytes, of a line of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def total_bytes() -> int | None:
    """The memory of this machine, or what a container is allowed of it. None for GPUs, which do not tell."""
    if tf.config.list_logical_devices("GPU"):
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))
