"""Creates a virtual environment for each peer, with the compared versions.

    python -m benchmarks.environments                    # all of them, 7 GB
    python -m benchmarks.environments opennmt torch      # these

They lie in ~/.cache/t2t_repro_benchmarks, or where --cache or T2T_REPRO_BENCHMARKS says. What is there and whole is
left alone. The peers need Python 3.11.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

TENSORFLOW = ("tensorflow==2.13.1", "numpy<1.25")
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Environment:
    """Requirements of each call of pip, in order, and the modules that must then be importable."""

    steps: tuple[tuple[str, ...], ...]
    modules: str


ENVIRONMENTS = {
    "opennmt": Environment((("OpenNMT-tf==2.32.0", *TENSORFLOW),), "opennmt"),
    "torch": Environment(((TORCH, "numpy"),), "torch, numpy"),
    "joeynmt": Environment(
        (
            (TORCH, "numpy", "importlib-metadata", "matplotlib", "packaging", "pyyaml", "sentencepiece", "subword-nmt"),
            ("tensorboard",),
            # its own requirements hold plotting libraries, linters and a protobuf of 2022
            ("--no-deps", "joeynmt==2.3.0"),
        ),
        "joeynmt.model, joeynmt.search",
    ),
    "argos": Environment(((TORCH, "argostranslate==1.11.0"),), "argostranslate.translate"),
    "eflomal": Environment((("eflomal==2.0.0", "numpy"),), "eflomal"),
    "marian": Environment((("pymarian==1.12.42", "numpy"),), "pymarian"),
    "supar": Environment(
        # its own requirements also hold transformers and stanza, which its parser without pretraining never imports
        ((TORCH, "numpy", "dill", "nltk", "tqdm"), ("--no-deps", "supar==1.1.4")),
        "supar",
    ),
    "tensor2tensor": Environment(
        (
            (*TENSORFLOW, "cloudpickle", "gin-config", "pillow", "scipy", "six", "sympy", "typeguard<3"),
            # their own requirements are of 2020 and before; benchmarks/workers/tensor2tensor.py stubs what is not used
            ("--no-deps", "tensor2tensor==1.15.7", "tensorflow-addons==0.23.0", "tf-slim==1.1.0"),
        ),
        "tensor2tensor, tensorflow_addons, tf_slim",
    ),
}


def cache_folder(flag: str | None = None) -> Path:
    """Returns `flag`, or T2T_REPRO_BENCHMARKS, or the folder in the user's cache."""
    return Path(
        flag or os.environ.get("T2T_REPRO_BENCHMARKS") or Path.home() / ".cache" / "t2t_repro_benchmarks"
    ).expanduser()


def interpreter(cache: Path, name: str) -> Path | None:
    """Returns the Python of an environment, or None if it is missing or incomplete."""
    python = cache / name / "bin" / "python"
    return python if python.exists() and (cache / name / "whole").exists() else None


def interpreters(cache: Path) -> dict[str, Path]:
    """Returns the Python of each complete environment, and as "" the one that runs this."""
    return {"": Path(sys.executable)} | {name: found for name in ENVIRONMENTS if (found := interpreter(cache, name))}


def make(cache: Path, name: str) -> None:
    """Raises subprocess.CalledProcessError if pip fails."""
    folder, environment = cache / name, ENVIRONMENTS[name]
    print(f"{name}: making {folder}", flush=True)
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    for requirements in environment.steps:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    quiet = os.environ | {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([python, "-c", f"import {environment.modules}"], check=True, env=quiet)
    (folder / "whole").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)}; default: all")
    parser.add_argument("--cache", help="the folder they lie in")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ENVIRONMENTS):
        parser.error(f"unknown environment {', '.join(sorted(unknown))}; known: {', '.join(ENVIRONMENTS)}")
    cache = cache_folder(arguments.cache)
    for name in arguments.names or ENVIRONMENTS:
        if python := interpreter(cache, name):
            print(f"{name}: is there, {python}")
            continue
        try:
            make(cache, name)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{name}: {' '.join(map(str, error.cmd))} failed with exit code {error.returncode}")


if __name__ == "__main__":
    main()
