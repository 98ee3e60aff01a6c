"""What a training runs on, for the record."""

from __future__ import annotations

import os
import platform

import tensorflow as tf


def name() -> str:
    """The GPU's name, or `2 cores of AMD EPYC` where there is none; several kinds of GPU are joined by " + "."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        kinds = {tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus}
        return " + ".join(sorted(kinds))
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' * (cores > 1)} of {_cpu()}"


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
