"""t2t-selftest: the results on a correct machine, and the report of each fault."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from conftest import CHECKOUT

from t2t_repro.cli.selftest_table import table
from t2t_repro.selftest import child, selftest, timing
from t2t_repro.selftest.child import Child, Outcome
from t2t_repro.selftest.recommend import recommendations

FAULTY = CHECKOUT / "tests/helpers/faulty_selftest.py"
CPU = {
    "system": "Linux",
    "processor": "AMD EPYC",
    "features": ["avx2", "avx512_bf16"],
    "cores": 2,
    "memory_bytes": 8 * 2**30,
    "gpus": [],
    "tensorflow": {"version": "2.21.0", "cuda": "12.5.1", "onednn": True},
    "onednn_limit": "",
    "auto_precision": "bfloat16",
    "auto_reason": "the processor has products in bfloat16",
}
H100 = {"name": "NVIDIA H100", "compute_capability": [9, 0], "memory_bytes": 80 * 2**30}
PRODUCTS = {
    "float32": {"fault": "", "rate": 2e11, "decoding_rate": 2e11},
    "bfloat16": {"fault": "", "rate": 4e11, "decoding_rate": 3e11},
    "float16": {"fault": "", "rate": 1e11, "decoding_rate": 1e11},
    "int8": {"fault": "", "rate": 8e11, "decoding_rate": 6e11},
}
STEP = {"seconds": 0.5, "tokens_per_second": 6_250.0, "peak_bytes": 2**30, "startup_seconds": 3.0, "micro_batches": 8}


@pytest.fixture
def fault(monkeypatch):
    """Returns `fault("double")`, which makes children run `faulty_selftest`."""

    def put(name: str) -> None:
        monkeypatch.setattr(child, "COMMAND", (sys.executable, str(FAULTY)))
        monkeypatch.setenv("FAULT", name)

    return put


def timed(set_name, precision, xla, seconds, **more):
    return (
        {"set": set_name, "precision": precision, "xla": xla, "estimated": False} | STEP | {"seconds": seconds} | more
    )


def answers(monkeypatch, **outcomes):
    """Replaces children: each task returns the argument with its name (_ for the dot), or {}."""

    class Answering(Child):
        def do(self, function, **arguments):
            if function == "machine.product":
                return Outcome(PRODUCTS[arguments["precision"]])
            if arguments.get("kill"):
                return Outcome(error="the process was ended by SIGKILL", ended_by=9)
            key = function.replace(".", "_") + "_" * ("at" in arguments) + arguments.get("at", "")
            return outcomes.get(key, Outcome(CPU if function == "machine.describe" else {"fault": ""}))

    monkeypatch.setattr(selftest, "Child", Answering)
    monkeypatch.setattr(timing, "Child", Answering)


# A correct machine


@pytest.mark.slow
def test_selftest_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_selftest"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    titles = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert titles[:-1] == ["Machine", "Products of matrices", "Checks", "Speed of training", "Recommended options"]
    assert titles[-1].startswith("9 of 9 checks passed in ") and not os.listdir(tmp_path)


def test_json_is_one_object_without_importing_tensorflow(monkeypatch, program):
    answers(monkeypatch)
    code, out, err = program("t2t-selftest", "--json", "--seconds=0")
    found = json.loads(out)
    assert code == 0 and found["failed"] == [] and found["speed"] == [] and found["machine"] == CPU
    assert [check["name"] for check in found["checks"]] == [
        "machine",
        *(f"products in {precision}" for precision in PRODUCTS),
        "one and two replicas",
        "same seed twice",
        "checkpoint after SIGKILL",
        "export in another process",
    ]
    assert all(line.startswith("[") for line in err.splitlines())
    source = (
        "from t2t_repro.cli import selftest_table; from t2t_repro.selftest import selftest; "
        "import sys; print('tensorflow' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    assert subprocess.check_output([sys.executable, "-c", source], env=environment, text=True) == "False\n"


# Faults


def test_a_doubled_product_is_reported(monkeypatch, program, fault):
    fault("double")
    monkeypatch.setattr(selftest, "_training_checks", lambda folder, say: [])
    code, out, err = program("t2t-selftest", "--seconds=0")
    names = "products in float32, products in bfloat16, products in float16"
    last = out.splitlines()[-2:]
    assert code == 1 and " ".join(last).startswith("2 of 5 checks passed in ") and " ".join(last).endswith(names)
    assert err.splitlines()[-1] == f"t2t-selftest: 3 of 5 checks failed: {names}"
    assert "WRONG: " in out and "in 64 x 256 by 256 x 96" in out.replace("\n", "").replace(" " * 17, " ")


@pytest.mark.slow
def test_a_crashing_kernel_is_one_failed_check(monkeypatch, program, fault):
    fault("crash")
    monkeypatch.setattr(selftest, "_training_checks", lambda folder, say: [])
    code, out, err = program("t2t-selftest", "--seconds=0", "--json")
    found = json.loads(out)
    assert code == 1 and found["failed"] == ["products in bfloat16"]
    reason = "the process was ended by SIGILL (illegal hardware instruction)"
    assert found["products"]["bfloat16"] == {"fault": reason}
    assert found["products"]["float16"]["rate"] > 0  # afterwards
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "failed", "detail"),
    [  # unseeded weights differ between the models of one and two replicas, and also at the end
        ("seed", "same seed twice, one and two replicas, checkpoint after SIGKILL", "variables differ, such as "),
        ("checkpoint", "checkpoint after SIGKILL", "variables differ, such as "),
        ("replica", "one and two replicas", "gradients differ by "),
        ("export", "export in another process", "and by the run "),
    ],
)
def test_faults_of_training_are_reported(fault, monkeypatch, tmp_path, name, failed, detail):
    fault(name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "folder").mkdir()
    checks = selftest._training_checks(str(tmp_path / "folder"), lambda line: None)
    wrong = {check["name"]: check["detail"] for check in checks if not check["right"]}
    names = failed.split(", ")
    assert set(wrong) == set(names) and detail in wrong[names[0]]
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("task", "outcome", "failed"),
    [
        ("machine_describe", Outcome(error="ValueError: no"), "machine"),
        ("training_replicas", Outcome({"fault": "gradients differ"}), "one and two replicas"),
        ("training_compare_first", Outcome({"fault": "1 of 9 variables differ"}), "same seed twice"),
        ("training_compare_last", Outcome({"fault": "1 of 9 variables differ"}), "checkpoint after SIGKILL"),
        ("exports_compare", Outcome(error="ValueError: damaged"), "export in another process"),
        ("exports_write", Outcome(error="OSError: disk full"), "export in another process"),
    ],
)
def test_a_check_that_fails_or_raises_is_reported(monkeypatch, task, outcome, failed):
    answers(monkeypatch, **{task: outcome})
    found = selftest.selftest(lambda line: None, seconds=0)
    assert found["failed"] == [failed]
    assert max(map(len, table(found, 80).splitlines())) <= 80
    assert table(found, 80).endswith(f"; failed: {failed}")


# Child processes


def test_a_task_that_raises_is_one_line():
    with Child() as process:
        assert process.do("speed.nothing").error.startswith("AttributeError: module ")
        assert process.do("child.run_nothing").value is None  # the same process still answers


def test_a_hanging_task_ends_at_the_time_limit(monkeypatch):
    monkeypatch.setattr(child, "LIMIT", 1.0)
    with Child() as process:
        found = process.do("child.serve", arguments=["1"])  # waits for its own tasks
    assert found == Outcome(error="no result within 1 s", ended_by=signal.SIGKILL)


def test_stopping_leaves_no_process_or_file(tmp_path):
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_selftest"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(tmp_path)}
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while not glob.glob(f"{tmp_path}/t2t-selftest-*/log") and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code and out == "", err
        assert "Traceback" not in err and not os.listdir(tmp_path)


def test_stopping_while_tasks_run_in_parallel(monkeypatch):
    """Ctrl-C does not wait for them."""
    monkeypatch.setattr(child, "LIMIT", 60.0)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), selftest._pool() as do:
        do("child.serve", arguments=["1"])
        threading.Event().wait(0.5)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 20


# Speed and recommendations


def test_cases_that_take_too_long_are_skipped_with_a_reason(monkeypatch):
    steps = {"speed_step": Outcome(STEP | {"estimated": False}), "speed_flops": Outcome(1e12)}
    answers(monkeypatch, **steps)
    rows = timing.measure(CPU, PRODUCTS, 40.0, lambda line: None)
    assert len(rows) == 12 and {(row["set"], row["precision"]) for row in rows if "seconds" in row} >= {
        ("base", "bfloat16"),
        ("tiny", "bfloat16"),
    }
    left = {(row["set"], row["precision"], row["xla"]): row.get("left_out") for row in rows}
    assert left["base", "float16", False].startswith("takes about 63 s, and ")  # 3 steps at half the rate, and 3 s
    assert left["base", "float16", True] == "as without XLA"
    assert timing.measure(CPU, PRODUCTS, 0.0, lambda line: None)[0]["left_out"].endswith(", and 0 are left")


def test_out_of_memory_is_a_reason_and_another_death_is_a_failure(monkeypatch):
    answers(
        monkeypatch, speed_flops=Outcome(1e12), speed_step=Outcome(error="the process was ended by SIGKILL", ended_by=9)
    )
    (reason,) = {row["left_out"] for row in timing.measure(CPU, PRODUCTS, 99.0, lambda line: None) if not row["xla"]}
    assert reason == "not enough memory"
    answers(
        monkeypatch,
        speed_flops=Outcome(1e12),
        speed_step=Outcome(error="the process was ended by SIGSEGV", ended_by=11),
    )
    found = selftest.selftest(lambda line: None, seconds=99.0)
    assert "train step of base in bfloat16" in found["failed"]


@pytest.mark.parametrize(
    ("speed", "option", "value", "reason"),
    [
        ([], "precision", "auto", "bfloat16: the processor has products in bfloat16"),
        (
            [timed("base", "bfloat16", False, 1.0), timed("base", "float32", False, 1.5)],
            "precision",
            "auto",
            "bfloat16: the processor has products in bfloat16; base 1.50 times as fast as float32",
        ),
        (
            [timed("base", "bfloat16", False, 2.0), timed("base", "float32", False, 1.0)],
            "precision",
            "float32",
            "base 2.00 times as fast as in bfloat16, the choice of auto",
        ),
        ([], "jit_compile", False, "XLA was not measured; it is off by default"),
        (
            [timed("tiny", "bfloat16", False, 2.0), timed("tiny", "bfloat16", True, 1.0)],
            "jit_compile",
            True,
            "with XLA tiny 2.00 times as fast in bfloat16; base was not measured",
        ),
        (
            [timed("base", "bfloat16", False, 1.0), timed("base", "bfloat16", True, 1.0)],
            "jit_compile",
            False,
            "with XLA base 1.00 times as fast in bfloat16",
        ),
        ([], "int8", True, "products of base's decoding 2.0 times as fast as in bfloat16"),
        ([], "threads_per_batch", 1, "2 batches at a time, one on each core; 0 for single sentences of big models"),
        (
            [timed("base", "bfloat16", False, 1.0)],
            "microbatch_tokens",
            0,
            "8 micro-batches per step of base take 1.0 of 8.0 GiB",
        ),
    ],
)
def test_recommendations_follow_the_measurements(speed, option, value, reason):
    (found,) = [each for each in recommendations(CPU, PRODUCTS, speed) if each.option == option]
    assert (found.value, found.reason) == (value, reason)


@pytest.mark.parametrize(
    ("other", "ratio", "value", "reason"),
    [
        (False, 0.8, 1, "with oneDNN off tiny is 0.80 times as fast"),
        (False, 1.2, 0, "with oneDNN off tiny is 1.20 times as fast"),
        (True, 1.2, 1, "with oneDNN on tiny is 1.20 times as fast"),
        (True, 1.05, 0, "with oneDNN on tiny is 1.05 times as fast"),
    ],
)
def test_onednn_is_recommended_by_its_measurement(other, ratio, value, reason):
    *_, found = recommendations(CPU, PRODUCTS, [], (other, ratio))
    assert found == ("TF_ENABLE_ONEDNN_OPTS", value, reason)


def test_onednn_is_measured_in_the_other_state(monkeypatch):
    variables = []

    class Recording(Child):
        def __init__(self, **given):
            variables.append(given)

        def do(self, function, **arguments):
            return Outcome(STEP | {"seconds": 2.0})

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(timing, "Child", Recording)
    speed = [timed("tiny", "bfloat16", False, 1.0)]
    assert timing.other_onednn(CPU, speed, lambda line: None) == (False, 0.5)
    assert variables == [{"TF_ENABLE_ONEDNN_OPTS": "0"}]
    assert timing.other_onednn(CPU, [], lambda line: None) is None
    assert timing.other_onednn(CPU | {"gpus": [H100]}, speed, lambda line: None) is None


def test_recommendations_avoid_faulty_products():
    wrong = PRODUCTS | {"bfloat16": {"fault": "2 instead of 1"}, "int8": {"missing": "a GPU computes"}}
    found = {each.option: (each.value, each.reason) for each in recommendations(CPU, wrong, [])}
    assert found["precision"] == ("float32", "auto is bfloat16, whose products are wrong here")
    assert found["int8"] == (False, "a GPU computes")


@pytest.mark.parametrize(
    ("auto", "rate", "value", "reason"),
    [
        ("bfloat16", 4e11, "float32", "products 2.00 times as fast as in bfloat16, the choice of auto"),
        ("bfloat16", 1e11, "auto", "bfloat16: a reason; tiny 0.90 times as fast as float32"),
        ("float32", 1e11, "bfloat16", "products 2.00 times as fast as in float32, the choice of auto"),
        ("float32", 4e11, "auto", "float32: a reason; tiny 1.11 times as fast as bfloat16"),
    ],
)
def test_the_precision_with_the_faster_products_is_recommended(auto, rate, value, reason):
    products = PRODUCTS | {"float32": {"rate": rate}, "bfloat16": {"rate": 2e11, "decoding_rate": 3e11}}
    machine = CPU | {"auto_precision": auto, "auto_reason": "a reason"}
    speed = [timed("tiny", "bfloat16", False, 1.0), timed("tiny", "float32", False, 0.9)]
    found, *_ = recommendations(machine, products, speed)
    assert found == ("precision", value, reason)


def test_a_gpu_is_compared_with_the_paper():
    machine = CPU | {"gpus": [H100]}
    speed = [timed("base", "bfloat16", False, 0.123), timed("big", "bfloat16", False, 0.456)]
    advice = [each._asdict() for each in recommendations(machine, PRODUCTS, speed)]
    found = {"machine": machine, "versions": {}, "products": PRODUCTS, "checks": [], "failed": [], "seconds": 60.0}
    text = table(found | {"speed": speed, "recommendations": advice}, 80)
    assert "0.123    1.0 GiB  paper: 0.4 s, 8 P100\n" in text and "0.456    1.0 GiB  paper: 1.0 s, 8 P100\n" in text
    assert "GPU           NVIDIA H100, compute capability 9.0, 80.0 GiB\n" in text
    assert "--threads_per_batch=0   a GPU computes" in text and max(map(len, text.splitlines())) <= 80
    assert {case.set for case in timing.cases(machine)} == {"tiny", "base", "big"}
