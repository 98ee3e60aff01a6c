"""The output of t2t-selftest: the result of the self-test as text, with options as flags."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

GIB = 2**30
PAPER_SECONDS = {"base": 0.4, "big": 1.0}  # of a step on eight P100 (section 5.2)


def table(found: dict[str, Any], width: int) -> str:
    """`found` by `selftest`, in lines of at most `width` columns."""
    sections = {
        "Machine": _rows(_machine(found), 14, width),
        "Products of matrices": _products(found, width),
        "Checks": _rows(_checks(found), 29, width),
        "Speed of training": _speed(found, width),
        "Recommended options": _rows(_recommendations(found), 24, width),
    }
    text = "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items() if lines)
    number, failed = len(found["checks"]), found["failed"]
    passed = f"{number - len(failed)} of {number} checks passed in {found['seconds']:.0f} s"
    last = textwrap.wrap(f"{passed}; failed: {', '.join(failed)}" if failed else passed, width)
    return "\n".join([text, "", *last])


def _rows(rows: Iterable[tuple[str, str]], name_width: int, width: int) -> list[str]:
    """Name and text of each row. A no-break space stays where it is."""
    lines: list[str] = []
    for name, text in rows:
        start = f"  {name:<{name_width}}"
        lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start)) or [start]
    return [line.replace("\N{NO-BREAK SPACE}", " ").rstrip() for line in lines]


def _machine(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if machine := found["machine"]:
        yield "system", machine["system"]
        yield "processor", machine["processor"]
        yield "features", " ".join(machine["features"]) or "none that speeds up products"
        yield "cores", f"{machine['cores']} that this process may use"
        yield "memory", f"{machine['memory_bytes'] / GIB:.1f} GiB"
        for gpu in machine["gpus"]:
            capability = ".".join(map(str, gpu["compute_capability"]))
            yield "GPU", f"{gpu['name']}, compute capability {capability}, {gpu['memory_bytes'] / GIB:.1f} GiB"
        if not machine["gpus"]:
            yield "GPU", "none that TensorFlow sees"
        build, limit = machine["tensorflow"], machine["onednn_limit"]
        cuda = f"built for CUDA {build['cuda']}" if build["cuda"] else "built without CUDA"
        held = f" (ONEDNN_MAX_CPU_ISA={limit})" if limit else ""
        yield "TensorFlow", f"{build['version']}, {cuda}, oneDNN {'on' if build['onednn'] else 'off'}{held}"
    yield "versions", ", ".join(f"{name}\N{NO-BREAK SPACE}{version}" for name, version in found["versions"].items())


def _products(found: dict[str, Any], width: int) -> list[str]:
    lines = [f"  {'':<13}{'GFLOP/s':>9}  in decoding"]
    for precision, product in found["products"].items():
        if "rate" in product:
            rates = f"{product['rate'] / 1e9:9,.0f}  {product['decoding_rate'] / 1e9:11,.0f}"
            lines.append(f"  {precision:<13}{rates}  right")
        else:
            reason = f"WRONG: {product['fault']}" if product.get("fault") else f"none: {product['missing']}"
            lines += _rows([(precision, reason)], 15, width)
    return lines


def _checks(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for check in found["checks"]:
        if check["detail"] and not check["name"].startswith("products"):
            yield check["name"], check["detail"] if check["right"] else f"FAILED: {check['detail']}"


def _speed(found: dict[str, Any], width: int) -> list[str]:
    if not found["speed"]:
        return []
    lines = [f"  {'set':<6}{'precision':<11}{'XLA':<5}{'tokens/s':>9}{'s a step':>10}{'memory':>11}"]
    for row in found["speed"]:
        name = f"{row['set']:<6}{row['precision']:<11}{'yes' if row['xla'] else 'no':<5}"
        if "seconds" not in row:
            reason = f"not measured: {row['left_out']}" if "left_out" in row else f"FAILED: {row['error']}"
            lines += _rows([(name, reason)], len(name) + 3, width)
            continue
        seconds = f"{'~' if row['estimated'] else ''}{row['seconds']:.3g}"
        paper = PAPER_SECONDS.get(row["set"]) if found["machine"]["gpus"] else None
        beside = f"  paper: {paper} s, 8 P100" if paper else ""
        memory = f"{row['peak_bytes'] / GIB:.1f} GiB"
        lines.append(f"  {name}{row['tokens_per_second']:9,.0f}{seconds:>10}{memory:>11}{beside}")
    if any(row.get("estimated") for row in found["speed"]):
        lines += _rows([("", "~ from one micro-batch of the step")], 0, width)
    return lines


def _recommendations(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for each in found["recommendations"]:
        option, value = each["option"], each["value"]
        option = option if option.isupper() else f"--{option}"
        name = (option if value else f"no {option}") if isinstance(value, bool) else f"{option}={value}"
        yield name, each["reason"]
