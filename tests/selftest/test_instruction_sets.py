"""Instruction sets of the numeric tests: those that a processor has, and whether a limit is in effect."""

from __future__ import annotations

import pytest
from helpers.instruction_sets import (
    KEYWORDS,
    Configuration,
    Report,
    configurations,
    instruction_sets,
    must_hold,
    numeric_files,
    read_report,
)

ZEN_3 = {"sse4_2", "avx", "fma", "avx2"}
ALDER_LAKE = ZEN_3 | {"avx_vnni"}
SKYLAKE = ZEN_3 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
ZEN_4 = SKYLAKE | {"avx512_vnni", "avx512_bf16"}
ZEN_5 = ZEN_4 | {"avx_vnni"}
SAPPHIRE_RAPIDS = ZEN_5 | {"avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}
UP_TO_BF16 = ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"sse4_2"}, []),
        (ZEN_3, ["AVX2"]),
        (ALDER_LAKE, ["AVX2", "AVX2_VNNI"]),
        (SKYLAKE, ["AVX2", "AVX512_CORE"]),
        (SKYLAKE - {"avx512bw"}, ["AVX2"]),
        (ZEN_4, UP_TO_BF16),
        (ZEN_5, UP_TO_BF16),
        (SAPPHIRE_RAPIDS, [*UP_TO_BF16, "AVX512_CORE_FP16", "AVX512_CORE_AMX"]),
    ],
)
def test_instruction_sets_follow_from_the_flags(flags, expected):
    assert instruction_sets(flags) == expected


@pytest.mark.parametrize(
    ("sets", "native_onednn", "expected"),
    [
        (["AVX2"], False, ["AVX2 oneDNN"]),
        (["AVX2"], True, ["AVX2 Eigen"]),
        (["AVX2", "AVX2_VNNI"], True, ["AVX2 Eigen", "AVX2 oneDNN only int8 bfloat16 float16"]),
        (["AVX2", "AVX2_VNNI"], False, ["AVX2 Eigen", "AVX2 oneDNN", "AVX2_VNNI oneDNN only int8"]),
        (["AVX2", "AVX512_CORE"], False, ["AVX2 Eigen", "AVX2 oneDNN no bfloat16", "AVX512_CORE oneDNN"]),
        (
            UP_TO_BF16,
            True,
            [
                "AVX2 Eigen",
                "AVX2 oneDNN no bfloat16",
                "AVX512_CORE oneDNN only int8 bfloat16 float16",
                "AVX512_CORE_VNNI oneDNN only int8",
            ],
        ),
        (
            ["AVX2", "AVX512_CORE", "AVX512_CORE_FP16"],
            True,
            ["AVX2 Eigen", "AVX2 oneDNN no bfloat16 no float16", "AVX512_CORE oneDNN only int8 bfloat16 no float16"],
        ),
    ],
)
def test_configurations_exclude_the_native_one(sets, native_onednn, expected):
    assert [str(each) for each in configurations(sets, native_onednn)] == expected


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (Configuration("AVX2", False), ["plain", "int8", "bfloat16", "float16"]),
        (Configuration("AVX2", True, without=("bfloat16", "float16")), ["plain", "int8"]),
        (Configuration("AVX512_CORE", True, without=("float16",)), ["plain", "int8", "bfloat16"]),
        (Configuration("AVX512_CORE_VNNI", True, without=("float16",), only=("int8",)), ["int8"]),
        (Configuration("AVX512_CORE_FP16", True, only=("float16",)), ["float16"]),
        (Configuration("AVX512_CORE_AMX", True, only=("int8", "bfloat16")), ["int8", "bfloat16"]),
    ],
    ids=str,
)
def test_a_set_that_adds_products_repeats_the_tests_of_their_dtypes(configuration, expected):
    """pytest evaluates such a selection for each test: a name in it is true if the name of the test contains it."""
    names = ("plain", "int8", "bfloat16", "float16")
    chosen = [name for name in names if eval(configuration.selection or "True", {key: key in name for key in KEYWORDS})]
    assert chosen == expected


def test_numeric_files_are_those_with_the_marker():
    names = {path.rpartition("/")[2] for path in numeric_files()}
    assert {"test_loss.py", "test_int8.py", "test_exporter.py"} < names and "test_skips.py" not in names


LOG = """onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX2
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ab:f0,,,64x64:64x64,18.27
"""
SOFTMAX = "onednn_verbose,v1,primitive,exec,cpu,softmax,jit:avx2,forward_inference,src:f32::blocked:ab::f0,,,64x64,3\n"


def test_read_report_finds_the_instruction_set_and_the_softmax():
    assert read_report(LOG) == Report("Intel AVX2", onednn=False)
    assert read_report(LOG + SOFTMAX) == Report("Intel AVX2", onednn=True)
    with pytest.raises(ValueError, match="oneDNN must report its instruction set. Received: ''"):
        read_report("")


def test_must_hold_rejects_a_limit_without_effect():
    reports = {
        Configuration("AVX2", False): Report("Intel AVX2", False),
        Configuration("AVX2", True): Report("Intel AVX2", True),
        Configuration("AVX512_CORE", True): Report("Intel AVX-512", True),
    }
    must_hold(reports)
    with pytest.raises(ValueError, match="different instructions under AVX2 and AVX512_CORE. Received for both: Intel"):
        must_hold(reports | {Configuration("AVX512_CORE", True): Report("Intel AVX2", True)})
    with pytest.raises(ValueError, match="a softmax under AVX2 Eigen must not be oneDNN's. Received the opposite"):
        must_hold(reports | {Configuration("AVX2", False): Report("Intel AVX2", True)})
