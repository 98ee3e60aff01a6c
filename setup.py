"""Packaging. The folders `problems`, `hparams` and `bin` of the checkout are installed inside the package."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "t2t_repro/__init__.py").read_text("utf-8"), re.MULTILINE)[1]
INSIDE = ("problems", "hparams", "bin")
PROGRAMS = (
    "registry",
    "datagen",
    "trainer",
    "decoder",
    "eval",
    "exporter",
    "serve",
    "evalb",
    "bleu",
    "compare",
    "avg_checkpoints",
    "shortlist",
    "ablate",
    "report",
    "attention",
    "selftest",
)

setup(
    name="t2t_repro",
    version=VERSION,
    description='"Attention Is All You Need" in TensorFlow, as a registry of problems and hyperparameter sets',
    long_description=README.read_text("utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    keywords="transformer attention translation tensorflow keras",
    packages=find_packages(include=["t2t_repro", "t2t_repro.*"]) + [f"t2t_repro.{folder}" for folder in INSIDE],
    package_data={"t2t_repro.evaluation": ["*.html"], "t2t_repro.serving": ["*.html"]},
    package_dir={f"t2t_repro.{folder}": folder for folder in INSIDE},
    entry_points={
        "console_scripts": [
            f"t2t-{program.replace('_', '-')} = t2t_repro.bin.t2t_{program}:main" for program in PROGRAMS
        ],
    },
    python_requires=">=3.11,<3.14",  # TensorFlow 2.21 has no wheels for later ones
    install_requires=[  # all lower bounds were installed together and tested, on Python 3.11
        "absl-py>=2.1",
        "babel>=2.18",  # its CLDR data is the text of the built-in problems
        "filelock>=3.16",
        "importlib_resources>=6.4",  # an undeclared dependency of tensorflow-datasets
        "keras>=3.13.2",  # earlier versions have published vulnerabilities
        "matplotlib>=3.11",  # curves of t2t-report, figures of t2t-attention
        "numpy>=2.0",
        "protobuf>=6.31.1",
        "regex>=2024.11.6",  # Unicode properties, for Moses tokenization
        "sacrebleu>=2.6",
        "sacremoses>=0.2",  # only for its lists of abbreviations, for Moses tokenization
        "sentencepiece>=0.2.1",  # as keras
        "tensorboard~=2.21.0",  # tf.summary needs it; TensorFlow 2.21 no longer depends on it
        "tensorflow>=2.21,<2.22",
        "tensorflow-datasets>=4.9.10,<4.10",  # private names: tests/preparation/test_tensorflow_datasets.py
        "tensorflow-text>=2.21.1,<2.22",  # 2.21.0 cannot be imported
    ],
    extras_require={
        # Beam needs protobuf < 7, with which the messages of sentencepiece 0.2.3 do not load
        "beam": ["apache-beam>=2.77", "sentencepiece<0.2.3"],
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],  # CUDA libraries, which plain tensorflow does not install
        "ctranslate2": ["ctranslate2>=4.8"],  # a second engine, whose translations must equal ours
        "argos": ["ctranslate2>=4.8"],  # writes packages; Argos Translate needs an environment of its own
        "documents": ["sentencex>=1.0.32"],  # splits long text into sentences, by rules for about 300 languages
        "huggingface": ["safetensors>=0.8"],  # writes the weights for transformers
        "onnx": ["onnx>=1.23", "onnxruntime>=1.32"],  # writes the graphs, and runs them
        "serve": [
            "t2t_repro[documents]",  # clients of LibreTranslate's API send texts of several sentences
            "aiohttp>=3.14.5",  # 3.14.0 never closes a connection that sends no request
            "prometheus-client>=0.22",
        ],
        "test": [
            "t2t_repro[ctranslate2,documents,huggingface,onnx,serve]",
            "build>=1.6",
            "hypothesis>=6.100",
            "mypy>=2.4",
            "pytest>=8.2",
            "pytest-xdist>=3.8",  # most tests use one core: two processes use both
            "ruff>=0.17.5",
            "selenium>=4.51",  # drives the system's chromium, if installed
        ],
        "benchmark": ["torch>=2.13"],
        "transformers": ["t2t_repro[huggingface]", "torch>=2.13", "transformers>=4.57"],  # loads such an export
        "docs": [  # for the documentation site, which .ci/run builds
            "mkdocs>=1.6.1",
            "mkdocs-material>=9.8",
            "mkdocstrings[python]>=1.0.8",
        ],
    },
)
