"""Plain words: no retired word in any page, no line of prose above 120 characters.

`RETIRED` maps a pattern to what to write instead. `passages` yields the prose of a page; what else is checked, such as
docstrings, needs a function like it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import CHECKOUT

PAGES = [*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").glob("*.md"))]
LINE = 120

NOUNS = r"(?:tokens?|positions?|pairs?|lines?|sentences?|subwords?|requests?|updates?|steps?|s)"
CONDITION = r"(?:there (?:is|are|was|were)|it is missing|that is missing|memory runs out|nothing is given|it can)"
TAKES_ISE = "normal|linear|token|initial|optim|recogn|serial|organ|summar|parallel|quant|general"
RETIRED = {
    r"\ba training(?=[.,;:)]|$| (?:that|of|which|is|was|has|on|in|may|cannot|will|goes|ends|stops)\b)|\btrainings\b": (
        "a training run, or training"
    ),
    r"\b(?:an|one|per|each|every|which|this|last|first) update\b|[\d,]+ updates\b|\bupdates an epoch\b": "step",
    r"\bparts? of an update\b|\bpieces? of a part\b|\beight parts\b": "micro-batch",
    r"\b(?:[\d,]+|shared|target|source|target's|neighbou?ring) pieces\b|\bpieces a line\b": "subwords",
    r"\bsets? of hyperparameters\b": "hyperparameter set",
    r"\b(?:written|is|are|was|were|all|once) whole\b": "complete, intact, atomic",
    r"\bforet(?:ell|ells|elling|old)\b": "estimate, predicted",
    r"\bmend(?:s|ed|ing)?\b": "repair, fix",
    r"\b(?:comes?|came) to nothing\b": "diverge",
    rf"\bwhere {CONDITION}\b": "if, when",
    r"\b(?:is|are|was|were) told\b|\btells? the rest\b|\bsaid (?:too|now|then)\b": "report, print, log",
    r"\b(?:is|are|was|were) no (?:JSON|UTF-8|run|tree|number|directory)\b|\bholds no run\b": "not JSON, not a run",
    r"\bso many\b": "n, at most n",
    r"\banew\b": "again",
    r"\bbesides\b": "also, in addition",
    r"\bbeforehand\b": "in advance",
    r"\b(?:by hand)\b": "manually",
    r"\b(?:is|was|been|be) begun\b|\bgo(?:es)? on (?:after|from|to|where|with)\b": "start, continue, resume",
    r"\bin turn\b": "alternating, interleaved",
    rf"\b{NOUNS} an? (?:second|side|line|update|step|epoch)\b": "per second, per side",
    r"\bwhat it is for\b|(?:^|[,;:] )of what\b": "its purpose, or the noun",
    r"\boriginals\b": "downloaded archives",
    r"\bheld[ -]out\b": "validation split",
    r"\bhow full batches\b": "padding efficiency",
    r"\blinear maps?\b": "projection, linear layer",
    r"\bends? of (?:a|the) sentence\b": "end-of-sentence token",
    r"\bgiven words\b": "constrained decoding",
    r"\bat once\b": "in parallel, immediately",
    r"\b(?:greatest|least) (?:lengths?|counts?)\b": "maximum, minimum length",
    rf"\b(?:{TAKES_ISE})is(?:e[sdr]?|ing|ations?)\b": "American spelling: -ize",
    r"\b(?:licen[c]es?|neighbour\w*|labelled|colours?|behaviours?|learnt|misspelt|centre[sd]?)\b": "American spelling",
}


class Passage(NamedTuple):
    line: int
    text: str


def passages(text: str) -> Iterator[Passage]:
    """Yields the paragraphs, list items and table rows of a page: no code, no comments, no addresses.

    What stands between two comments that begin with "the table" is written by programs, and is theirs to word.
    """
    text = re.sub(r"<!-- the table.*?<!-- the end of the table -->", _blank, text, flags=re.S)
    text = re.sub(r"(?s:^ *```.*?^ *```$)|^(?: {4}| {8})\S.*$|(?s:<!--.*?-->)|`[^`\n]*`", _blank, text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", _blank, text)
    lines: list[str] = []
    start = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if not line.strip() or re.match(r"\s*(?:[-*#|]|\d+\.) ?", line):
            if lines:
                yield Passage(start, " ".join(lines))
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line.strip())


def _blank(match: re.Match[str]) -> str:
    """Returns something as long in lines, that no pattern matches."""
    return "_" + "\n" * match[0].count("\n")


def retired(text: str) -> list[str]:
    """Returns each retired phrase of `text` with what to write instead."""
    found = [(match[0], instead) for pattern, instead in RETIRED.items() for match in re.finditer(pattern, text, re.I)]
    return [f"{phrase!r}: {instead}" for phrase, instead in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_no_retired_word(page: Path) -> None:
    found = [
        f"line {passage.line}: {each}"
        for passage in passages(page.read_text("utf-8"))
        for each in retired(passage.text)
    ]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_lines_fit(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^ *```$", _blank, page.read_text("utf-8"), flags=re.M | re.S)
    assert not [line for line in text.split("\n") if len(line) > LINE and not line.startswith("|")]


@pytest.mark.parametrize(
    "sentence",
    [
        "A training that comes to nothing ends.",
        "An update is the same pairs.",
        "It took 1,200 updates.",
        "A shared vocabulary of 37,000 pieces.",
        "A file is there when it is whole.",
        "What is foretold may be mended.",
        "It is prepared where it is missing.",
        "The line is no JSON.",
        "It begins anew, and besides, by hand.",
        "The same command goes on where it stopped.",
        "1.9 times the tokens a second, 2,048 tokens a side.",
        "Both are trained at once, in turn.",
        "The greatest length counts the end of the sentence.",
        "Layer normalisation and the licence of colours.",
    ],
)
def test_retired_word_is_found(sentence: str) -> None:
    page = f"# Title\n\nSome text.\n\n- {sentence}\n"
    assert [passage.line for passage in passages(page) if retired(passage.text)] == [5]


@pytest.mark.parametrize(
    "sentence",
    [
        "A training run, a training sentence, and training in bfloat16.",
        "Update the test, and set the path where you like.",
        "The whole text is one part of a larger map.",
        "A parser license, a labeled bracket, an optimistic color.",
        "Every test that no run executed; a second signal; on the one side.",
        "It starts immediately, by handing over.",
        "`t2t-trainer` said `anew`, see [the page](anew.md).",
        "<!-- by hand -->",
    ],
)
def test_ordinary_english_is_not_retired(sentence: str) -> None:
    assert not [each for passage in passages(sentence) for each in retired(passage.text)]


def test_code_and_generated_tables_are_not_prose() -> None:
    page = (
        "Text:\n\n```sh\nanew\n```\n\n    anew\n\n<!-- the table: -->\n| anew |\n<!-- the end of the table -->\nanew\n"
    )
    assert [(passage.line, retired(passage.text)) for passage in passages(page) if retired(passage.text)] == [
        (12, ["'anew': again"])
    ]
