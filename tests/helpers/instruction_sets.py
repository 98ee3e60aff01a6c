"""Runs the numeric tests as the processors compute that have fewer instruction sets than this one.

    python tests/helpers/instruction_sets.py

oneDNN obeys ONEDNN_MAX_CPU_ISA. TF_ENABLE_ONEDNN_OPTS=0 makes TensorFlow compute with Eigen, as it does by default on
processors without AVX512-VNNI; the products of Eigen are oneDNN's too and obey the same limit. oneDNN reports which set
it uses, and nothing is tested before the report of every run shows that its limit took hold.

A set that only adds products in narrow dtypes to the one before it has the same kernels for products in float32, as
oneDNN's log shows. Under it, only the tests of these dtypes are repeated. If that is this processor's own set, so are
under the set before it only the tests of narrow dtypes: the default tests have computed its products in float32.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT, ONEDNN = "ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS"
NUMERIC = ("-m", "numeric and not slow")
FLAGS = {  # of /proc/cpuinfo: what each set, as oneDNN names it, adds to those before it
    "AVX2": {"avx2"},
    "AVX2_VNNI": {"avx_vnni"},
    "AVX512_CORE": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "AVX512_CORE_VNNI": {"avx512_vnni"},
    "AVX512_CORE_BF16": {"avx512_bf16"},
    "AVX512_CORE_FP16": {"avx512_fp16"},
    "AVX512_CORE_AMX": {"amx_tile", "amx_int8", "amx_bf16"},
}
ADDS = {  # the dtypes of those products
    "AVX2_VNNI": ("int8",),
    "AVX512_CORE_VNNI": ("int8",),
    "AVX512_CORE_BF16": ("bfloat16",),
    "AVX512_CORE_FP16": ("float16",),
    "AVX512_CORE_AMX": ("int8", "bfloat16"),
}
KEYWORDS = {  # of the tests of a dtype, which have it in their name or as a marker; bfloat16 contains "float16"
    "int8": "int8",
    "bfloat16": "bfloat16",
    "float16": "(float16 and not bfloat16)",
}
PROBE = """
import t2t_repro  # before TensorFlow, as in the tests: it turns oneDNN on
import tensorflow as tf
tf.function(tf.nn.softmax)(tf.matmul(tf.ones([64, 64]), tf.ones([64, 64])))
"""


class Configuration(NamedTuple):
    """The configuration of one run of the tests."""

    instruction_set: str  # the highest that oneDNN may use
    onednn: bool  # whether TensorFlow's operations are oneDNN's; else they are Eigen's
    without: tuple[str, ...] = ()  # the narrow dtypes whose tests are not run
    only: tuple[str, ...] = ()  # the narrow dtypes whose tests alone are run; none: all tests

    def __str__(self) -> str:
        lacks = "".join(f" no {dtype}" for dtype in self.without)
        alone = f" only {' '.join(self.only)}" if self.only else ""
        return f"{self.instruction_set} {'oneDNN' if self.onednn else 'Eigen'}{alone}{lacks}"

    @property
    def selection(self) -> str:
        """The argument of pytest's -k."""
        wanted = " or ".join(KEYWORDS[dtype] for dtype in self.only)
        return " and ".join([f"({wanted})"] * bool(wanted) + [f"not {KEYWORDS[dtype]}" for dtype in self.without])

    @property
    def environment(self) -> dict[str, str]:
        return {LIMIT: self.instruction_set, ONEDNN: str(int(self.onednn))}


class Report(NamedTuple):
    """oneDNN's log of a product and a softmax."""

    instruction_set: str  # in oneDNN's words
    onednn: bool  # whether the softmax was oneDNN's


class Result(NamedTuple):
    """The result of one run of the tests."""

    code: int
    output: str
    seconds: float


def cpu_flags() -> set[str]:
    """Returns every word of /proc/cpuinfo, the processor's flags among them, or nothing if there is no such file."""
    file = Path("/proc/cpuinfo")
    return set(file.read_text("utf-8").split()) if file.exists() else set()


def instruction_sets(flags: set[str]) -> list[str]:
    """Returns oneDNN's names of the sets that a processor with these flags has, lowest first."""
    found = []
    for name, needed in FLAGS.items():
        if needed <= flags:
            found.append(name)
        elif name != "AVX2_VNNI":  # AVX-512 does not imply it
            break
    if "AVX512_CORE" in found and "AVX2_VNNI" in found:
        found.remove("AVX2_VNNI")  # its products are exact as those of AVX512_CORE_VNNI are
    return found


def configurations(sets: list[str], native_onednn: bool) -> list[Configuration]:
    """Returns what a processor with these sets can imitate: all but what it computes with by itself.

    TensorFlow leaves bfloat16 to oneDNN if the processor has AVX-512, and float16 if it has AVX512-FP16, whatever
    oneDNN is limited to; oneDNN without these instructions ends the process. No real processor does that: on one
    without them, TensorFlow uses Eigen.
    """

    def without(name: str) -> tuple[str, ...]:
        higher = sets[sets.index(name) + 1 :]
        first = {"bfloat16": "AVX512_CORE", "float16": "AVX512_CORE_FP16"}
        return tuple(dtype for dtype, needed in first.items() if needed in higher)

    def only(name: str) -> tuple[str, ...]:
        if name == whole and native_onednn and name != sets[-1]:
            return tuple(dtype for dtype in KEYWORDS if dtype not in without(name))
        return ADDS.get(name, ())

    whole = [name for name in sets if name not in ADDS][-1]  # the last that has products in float32 of its own
    everything = [Configuration(sets[0], False)]
    everything += [Configuration(name, True, without(name), only(name)) for name in sets]
    return [each for each in everything if (each.instruction_set, each.onednn) != (sets[-1], native_onednn)]


def read_report(log: str) -> Report:
    """Reads the log that ONEDNN_VERBOSE=1 makes of PROBE."""
    used = re.search(r"^onednn_verbose,.*info,cpu,isa:(.+)$", log, re.MULTILINE)
    if not used:
        raise ValueError(
            f"oneDNN must report its instruction set. Received: {log!r}. Does TensorFlow have oneDNN here?"
        )
    return Report(used[1], bool(re.search(r"^onednn_verbose,.*exec,cpu,softmax,", log, re.MULTILINE)))


def must_hold(reports: Mapping[Configuration, Report]) -> None:
    """Raises ValueError unless oneDNN computes as each configuration demands. They include the native one."""
    words: dict[str, str] = {}
    for configuration, report in reports.items():
        if report.onednn != configuration.onednn:
            raise ValueError(
                f"a softmax under {configuration} must{'' if configuration.onednn else ' not'} be oneDNN's. "
                f"Received the opposite: this TensorFlow does not obey {ONEDNN}."
            )
        name = words.setdefault(report.instruction_set, configuration.instruction_set)
        if name != configuration.instruction_set:
            raise ValueError(
                f"oneDNN must use different instructions under {name} and {configuration.instruction_set}. "
                f"Received for both: {report.instruction_set}. It does not obey {LIMIT}, or its names have changed."
            )


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment with `changes` and no other limit."""
    kept = {name: value for name, value in os.environ.items() if name not in (LIMIT, ONEDNN)}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", **changes}


def probe(changes: Mapping[str, str]) -> Report:
    argv = [sys.executable, "-c", PROBE]
    variables = environment({**changes, "ONEDNN_VERBOSE": "1"})
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"TensorFlow must multiply two matrices under {dict(changes)}. Received: {done.stderr}")
    return read_report(done.stdout)


def numeric_files() -> list[str]:
    """Returns the test modules that name the marker; collecting the others would take time for nothing."""
    return [str(path) for path in sorted(CHECKOUT.glob("tests/**/test_*.py")) if "numeric" in path.read_text("utf-8")]


def run_tests(configuration: Configuration, arguments: Iterable[str]) -> Result:
    selection = [*NUMERIC, *(["-k", configuration.selection] if configuration.selection else []), *numeric_files()]
    argv = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *selection, *arguments]
    start = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=CHECKOUT,
        env=environment(configuration.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Result(done.returncode, done.stdout, time.monotonic() - start)


def pool(most: int) -> ThreadPoolExecutor:
    """Returns at most `most` threads that share out the cores, and so do the processes that each of them starts.

    Two processes of one core each do more than one process of two cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    count = min(most, len(cores))
    for index in range(count):
        shares.put(cores[index::count])
    return ThreadPoolExecutor(count, initializer=lambda: os.sched_setaffinity(0, shares.get()))


def run_all(rows: list[Configuration], reports: Path | None) -> bool:
    """Runs the tests under each of `rows`, prints how each ended, and returns whether all passed."""

    def run(row: Configuration) -> Result:
        name = str(row).replace(" ", "-")
        return run_tests(row, [f"--junitxml={reports / name}.xml"] if reports else [])

    with pool(len(rows)) as threads:
        results = list(threads.map(run, rows))
    for row, result in zip(rows, results, strict=True):
        if result.code != 0:
            print(f"\n-- {row}: exit code {result.code}\n{result.output}")
    for row, result in zip(rows, results, strict=True):
        verdict = result.output.rstrip().rpartition("\n")[2] if result.code in (0, 1) else "FAILED"
        print(f"{row!s:<26} {result.seconds:4.0f} s  {verdict}")
    return not any(result.code for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reports", type=Path, help="an existing folder: JUnit's report of each run is written there")
    reports = parser.parse_args().reports
    sets = instruction_sets(cpu_flags())
    if not sets:
        print("not tested: other instruction sets, because /proc/cpuinfo lists no AVX2")
        return 0
    try:
        native = probe({})
        rows = configurations(sets, native.onednn)
        with pool(len(rows)) as threads:
            found = dict(zip(rows, threads.map(lambda row: probe(row.environment), rows), strict=True))
        must_hold(found | {Configuration(sets[-1], native.onednn): native})
    except ValueError as error:
        print(f"instruction_sets: {error}", file=sys.stderr)
        return 1
    print(f"native: {native.instruction_set}, {'oneDNN' if native.onednn else 'Eigen'}; the others:", flush=True)
    return 0 if run_all(rows, reports) else 1


if __name__ == "__main__":
    sys.exit(main())
