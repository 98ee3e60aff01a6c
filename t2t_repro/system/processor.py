"""The processor: its name, its features, and how many of its cores this process may use. Linux, standard library."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Features that decide how fast a matrix product is, as /proc/cpuinfo names them: x86-64, then ARM64.
FEATURES = tuple(
    "avx2 fma avx_vnni avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 amx_fp16 "
    "asimd asimdhp asimddp fphp i8mm bf16 sve sve2 svebf16 svei8mm sme".split()
)
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
# Values of ONEDNN_MAX_CPU_ISA that limit oneDNN to instructions without bfloat16 products. With AVX-512, oneDNN
# computes them in another way. Without AVX-512, TensorFlow 2.21.0 still calls oneDNN on a processor that has AVX-512,
# and the process aborts.
_WITHOUT_AVX512 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"}
_WITHOUT_BFLOAT16 = _WITHOUT_AVX512 | {"AVX512_CORE", "AVX512_CORE_VNNI"}
_WITHOUT_AMX = _WITHOUT_BFLOAT16 | {"AVX512_CORE_BF16", "AVX512_CORE_FP16"}
# By precision: the feature with which TensorFlow 2.21.0 calls oneDNN, and the limits under which that ends the process.
_CRASHES = {
    "bfloat16": ("avx512f", _WITHOUT_AVX512),
    "float16": ("avx512_fp16", _WITHOUT_BFLOAT16 | {"AVX512_CORE_BF16"}),
}


def name() -> str:
    """Returns the model name that the kernel reports, or the architecture if there is none (ARM64)."""
    return next(_lines("model name"), "") or platform.machine()


def features() -> tuple[str, ...]:
    """Returns the `FEATURES` that the processor has."""
    flags = set(next(_lines("flags", "Features"), "").split())
    return tuple(feature for feature in FEATURES if feature in flags)


def onednn_limit() -> str:
    """Returns the instruction set that the environment limits oneDNN to, such as "AVX2"; "" without a limit."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return "" if limit in ("ALL", "DEFAULT") else limit


def onednn_is_off() -> bool:
    """Returns whether the environment tells TensorFlow not to use oneDNN."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"


def onednn_uses_avx512() -> bool:
    """Returns whether the processor has AVX-512, and oneDNN may use it."""
    return "avx512f" in features() and onednn_limit() not in _WITHOUT_AVX512


def has_bfloat16() -> bool:
    """Returns whether the processor computes products in bfloat16, and oneDNN may use the instructions for them."""
    return not _BFLOAT16.isdisjoint(features()) and onednn_limit() not in _WITHOUT_BFLOAT16


def slow_bfloat16() -> str:
    """Returns why products in bfloat16 are slower than in float32, although the processor has them; "" if they are not.

    Measured on a Xeon of model 207 whose AMX is hidden: 83 GFLOP/s per core in bfloat16, and 153 in float32. All of
    Intel's processors without AMX are taken to be alike. On an AMD EPYC with AVX512-BF16, bfloat16 is the faster one.
    """
    intel = next(_lines("vendor_id"), "") == "GenuineIntel"
    if not intel or ("amx_bf16" in features() and onednn_limit() not in _WITHOUT_AMX):
        return ""
    return "without AMX, products in bfloat16 are slower than in float32"


def precision_fault(precision: str) -> str:
    """Returns why TensorFlow's products in `precision` would end the process on this processor; "" if they would not.

    TensorFlow passes products in bfloat16 and float16 to oneDNN if the processor has the instructions, also if oneDNN
    is limited to others. oneDNN then ends the process.
    """
    feature, without = _CRASHES.get(precision, ("", set()))
    if feature not in features() or onednn_is_off() or onednn_limit() not in without:
        return ""
    return f"oneDNN has no products in it under ONEDNN_MAX_CPU_ISA={onednn_limit()}"


def usable_cores() -> int:
    """Returns the number of cores in the affinity mask, or the number that the control groups grant if it is smaller.

    Fractions are rounded up: 1.5 cores are used by two threads.
    """
    granted = min(granted_cores(), default=math.inf)
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), granted)))


def granted_cores(root: str = "/") -> Iterator[float]:
    """Yields the cores granted by each control group with a quota, of this process and of the groups above.

    In a container, /proc/self/cgroup may name a path of the host that is not mounted. The top of the mount is then the
    container's own group, and is read like every group above.
    """
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            if not controllers:
                quota, _, period = _text(Path(root, "sys/fs/cgroup", each, "cpu.max")).partition(" ")
            elif "cpu" in controllers.split(","):
                folder = Path(root, "sys/fs/cgroup/cpu", each)
                quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            else:
                break
            if quota.strip().isdigit() and int(period) > 0:  # "max" and -1 grant all
                yield int(quota) / int(period)


def _lines(*keys: str) -> Iterator[str]:
    """Yields the values of the lines of /proc/cpuinfo with one of these keys, one for each core."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            yield value.strip()


def _text(path: Path) -> str:
    """Returns the content of a kernel file; "" if it does not exist."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
