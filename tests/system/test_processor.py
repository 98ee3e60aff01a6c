"""t2t_repro.system.processor: features by the kernel's names, and cores as affinity and control groups grant them."""

from __future__ import annotations

import os

import pytest
from conftest import CHECKOUT

from t2t_repro.system import processor


def put(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, [1.5]),
        (
            {
                "proc/self/cgroup": "0::/user/mine\n",
                "sys/fs/cgroup/user/mine/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user/cpu.max": "400000 100000\n",
            },
            [4.0],
        ),
        (  # a container whose path is the host's
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            [0.5],
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            [],
        ),
    ],
    ids=["none", "v2 without a quota", "v2", "v2 above", "v1 in a container", "v1 without a quota"],
)
def test_granted_cores_are_the_quotas_of_control_groups(tmp_path, files, granted):
    put(tmp_path, files)
    assert list(processor.granted_cores(str(tmp_path))) == granted


@pytest.mark.parametrize(("granted", "cores"), [([], 4), ([1.5], 2), ([0.2], 1), ([8.0], 4), ([3.0, 2.0], 2)])
def test_usable_cores_are_the_fewer_rounded_up(monkeypatch, granted, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(processor, "granted_cores", lambda: iter(granted))
    assert processor.usable_cores() == cores


@pytest.mark.parametrize("folder", ["t2t_repro", "bin", "benchmarks"])
def test_no_module_counts_the_cores_of_the_whole_machine(folder):
    """Those that the process may use are `usable_cores`; more threads than these wait for one another."""
    modules = list((CHECKOUT / folder).rglob("*.py"))
    assert modules and not [path for path in modules if "cpu_count" in path.read_text("utf-8")]


@pytest.mark.parametrize(
    ("features", "limit", "expected"),
    [
        (("avx2", "fma"), "", False),
        (("avx512f", "avx512_vnni"), "", False),
        (("avx512f", "avx512_bf16"), "", True),
        (("avx512f", "avx512_bf16"), "ALL", True),
        (("avx512f", "avx512_bf16"), "avx2", False),
        (("avx512f", "avx512_bf16"), "AVX512_CORE_VNNI", False),
        (("avx512f", "avx512_bf16"), "AVX512_CORE_BF16", True),
        (("amx_tile", "amx_bf16"), "", True),
        (("asimd", "bf16"), "", True),
        ((), "", False),
    ],
)
def test_has_bfloat16_by_features_and_onednn_limit(monkeypatch, features, limit, expected):
    monkeypatch.setattr(processor, "features", lambda: features)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert processor.has_bfloat16() is expected


@pytest.mark.parametrize(
    ("vendor", "features", "limit", "slow"),
    [
        ("GenuineIntel", ("avx512_bf16",), "", True),
        ("GenuineIntel", ("avx512_bf16", "amx_bf16"), "", False),
        ("GenuineIntel", ("avx512_bf16", "amx_bf16"), "AVX512_CORE_FP16", True),
        ("AuthenticAMD", ("avx512_bf16",), "", False),
        ("", ("bf16",), "", False),
    ],
)
def test_bfloat16_is_slow_on_intel_without_amx(monkeypatch, vendor, features, limit, slow):
    monkeypatch.setattr(processor, "features", lambda: features)
    monkeypatch.setattr(processor, "_lines", lambda *keys: iter([vendor]))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert bool(processor.slow_bfloat16()) == slow


@pytest.mark.parametrize(
    ("features", "limit", "onednn", "fault"),
    [
        (("avx512f", "avx512_bf16"), "AVX2", "1", "oneDNN has no products in it under ONEDNN_MAX_CPU_ISA=AVX2"),
        (("avx512f",), "sse41", "", "oneDNN has no products in it under ONEDNN_MAX_CPU_ISA=SSE41"),
        (("avx512f", "avx512_bf16"), "AVX2", "0", ""),
        (("avx512f", "avx512_bf16"), "AVX512_CORE", "1", ""),
        (("avx512f", "avx512_bf16"), "", "1", ""),
        (("avx2", "fma"), "AVX2", "1", ""),
    ],
)
def test_bfloat16_is_rejected_if_onednn_would_abort(monkeypatch, features, limit, onednn, fault):
    monkeypatch.setattr(processor, "features", lambda: features)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    assert processor.precision_fault("bfloat16") == fault
    assert not processor.precision_fault("float32")


@pytest.mark.parametrize(
    ("features", "limit", "aborts"),
    [
        (("avx512f", "avx512_fp16"), "AVX2", True),
        (("avx512f", "avx512_fp16"), "AVX512_CORE_BF16", True),
        (("avx512f", "avx512_fp16"), "AVX512_CORE_FP16", False),
        (("avx512f", "avx512_fp16"), "", False),
        (("avx512f", "avx512_bf16"), "AVX2", False),
    ],
)
def test_float16_is_rejected_if_onednn_would_abort(monkeypatch, features, limit, aborts):
    monkeypatch.setattr(processor, "features", lambda: features)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    assert bool(processor.precision_fault("float16")) == aborts


def test_name_and_features_are_of_this_processor():
    assert processor.name()
    assert set(processor.features()) <= set(processor.FEATURES)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        assert ("avx2" in processor.features()) == (" avx2 " in file.read())
