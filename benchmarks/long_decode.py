"""t2t-decoder on a long file, killed on the way and continued, against the same file decoded in one go.

    python -m benchmarks.long_decode --output_dir=RUN --lines=2000000 --kills=2

Two processes decode the same lines in parallel. One of them gets SIGKILL at random moments and is started again with
the same command. Prints the memory of the other one in its first tenth and at its end. Exit code 1 if the two files
differ, or if memory grew by more than 5% after the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.serve import ROOT, resident
from t2t_repro.io import sha256

WORDS = ("$", "12", "1,234.50", "Germany", "January", "5", "years", "and", "kilometers", "Friday", "half", "past")


def write_lines(path: Path, number: int, seed: int) -> None:
    """Writes `number` lines of one to four words; nearly all of them differ from one another."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(number):
            words = [*rng.choices(WORDS, k=rng.randint(0, 3)), str(rng.randrange(10_000))]
            file.write(" ".join(words) + "\n")


def decoder(arguments: argparse.Namespace, source: Path, target: Path) -> subprocess.Popen[bytes]:
    """Starts t2t-decoder; its messages go to `target` with ".log" appended."""
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_decoder", f"--output_dir={arguments.output_dir}"]
    command += [f"--decode_from_file={source}", f"--decode_to_file={target}", f"--beam_size={arguments.beam_size}"]
    with open(f"{target}.log", "ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def written(target: Path) -> int:
    """Bytes written so far, under the final name or that of an unfinished file."""
    return max(size(target), size(target.with_name(f"{target.name}.partial")))


def uninterrupted(arguments: argparse.Namespace, source: Path, target: Path, memory: list[tuple[float, float]]) -> None:
    """Decodes in one go; appends, each second, bytes written over bytes read in, and resident MB."""
    process = decoder(arguments, source, target)
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):  # it ends in between
            memory.append((written(target) / size(source), resident(process.pid)))
        time.sleep(1)


def killed(arguments: argparse.Namespace, source: Path, target: Path) -> None:
    """Decodes with kills at random shares of the output, then to the end."""
    rng = random.Random(arguments.seed)
    for share in sorted(rng.uniform(0.05, 0.5) for _ in range(arguments.kills)):
        process = decoder(arguments, source, target)
        while written(target) < share * size(source):
            if process.poll() is not None:
                raise SystemExit(f"t2t-decoder ended before it was killed; see {target}.log")
            time.sleep(0.5)
        process.kill()
        process.wait()
        print(f"killed after {written(target):,} bytes", flush=True)
    if decoder(arguments, source, target).wait():
        raise SystemExit(f"t2t-decoder failed; see {target}.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="of t2t-trainer")
    parser.add_argument("--lines", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--beam_size", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1706, help="default: %(default)s")
    arguments = parser.parse_args()
    arguments.output_dir = os.path.abspath(arguments.output_dir)
    with tempfile.TemporaryDirectory() as folder:
        source, whole, pieces = (Path(folder) / name for name in ("source", "whole", "pieces"))
        write_lines(source, arguments.lines, arguments.seed)
        memory: list[tuple[float, float]] = []
        thread = threading.Thread(target=uninterrupted, args=(arguments, source, whole, memory))
        thread.start()
        killed(arguments, source, pieces)
        thread.join()
        done = size(whole)
        early = max(held for share, held in memory if share <= 0.1 * done / size(source))
        late = max(held for _, held in memory)
        same = sha256(str(whole)) == sha256(str(pieces))
        outcome = "the same bytes" if same else "DIFFERENT BYTES"
        print(f"{arguments.lines:,} lines, killed {arguments.kills} times: {outcome}")
        print(f"resident memory: {early:,.0f} MB in the first tenth, {late:,.0f} MB at most")
        sys.exit(not same or late > 1.05 * early)


if __name__ == "__main__":
    main()
