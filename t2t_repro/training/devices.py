"""What a training runs on, for the record."""

from __future__ import annotations

import os
import platform

import tensorflow as tf

NVIDIA = "/dev/nvidia0"  # there if the kernel's driver has found a GPU


def name() -> str:
    """The GPU's name, or `2 cores of AMD EPYC` where there is none; several kinds of GPU are joined by " + "."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        kinds = {tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus}
        return " + ".join(sorted(kinds))
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' * (cores > 1)} of {_cpu()}"


def unused_gpu() -> str:
    """Returns a warning if the machine has an NVIDIA GPU that TensorFlow does not see, "" otherwise."""
    if not os.path.exists(NVIDIA) or tf.config.list_physical_devices("GPU"):
        return ""
    return (
        f"warning: there is an NVIDIA GPU ({NVIDIA}), but TensorFlow does not see it, so the CPU computes; "
        "pip install 't2t_repro[gpu]' installs CUDA's libraries"
    )


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
