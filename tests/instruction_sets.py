"""oneDNN's instruction sets that this machine has: `ONEDNN_MAX_CPU_ISA` holds oneDNN to one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NEEDS = {
    "AVX2": {"avx2"},
    "AVX512_CORE": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "AVX512_CORE_VNNI": {"avx512_vnni"},
    "AVX512_CORE_BF16": {"avx512_bf16"},
}


def present() -> list[str]:
    """The names of `NEEDS` whose flags /proc/cpuinfo lists, the oldest first; none if there is no such file."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return [name for name, needed in NEEDS.items() if needed <= flags]


def run_under(name: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program with oneDNN held to an instruction set."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": name}
    argv = [sys.executable, "-c", program, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
