"""Lines with nested tags, and translations with word links, drawn at random."""

from __future__ import annotations

import random
from typing import NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import escape

NAMES = ("b", "i", "a", "span", "x:g", "sub", "p", "td", "g1")
ATTRIBUTES = ("", " class='a b'", ' title="1 > 0"', ' href="/?a=1&amp;b=2"', "\n lang = 'en'")
ALONE = ("<br{}/>", "<x:ph{} />", "<img{} src='a>b'/>")
MARKS = (".", ",", "?", "!", ";", ")")


class Drawn(NamedTuple):
    """A line, the same line without its tags, and what a model might return for that."""

    line: str
    text: str
    translation: str
    links: list[tuple[int, int]]
    tags: int


def with_tags(rng: random.Random, words: list[str], most: int = 8) -> tuple[str, int]:
    """Returns the words with random nested elements and tags that stand alone, as XML, and the number of these.

    Every tag has an attribute `id` with another number. There is no white space that a model would not see.
    """
    count = 0

    def mark() -> str:
        nonlocal count
        count += 1
        return f' id="{count}"{rng.choice(ATTRIBUTES)}'

    def part(first: int, last: int, depth: int) -> list[str]:
        """Returns the parts for words from first to last, which are joined by spaces."""
        parts = []
        while first < last or (depth == 0 and not parts):
            if count < most and depth < 5 and rng.random() < 0.4:
                end = rng.randint(first, last)
                inside = " ".join(part(first, end, depth + 1)) if end > first else ""
                name = rng.choice(NAMES)
                parts.append(f"<{name}{mark()}>{inside}</{name}>")
                if end == first:  # without text: it must not stand between two spaces
                    parts[-1] += escape(words[first]) if first < last else ""
                    end += first < last
                first = end
            elif count < most and rng.random() < 0.2:
                alone = rng.choice(ALONE).format(mark())
                parts.append(alone + (escape(words[first]) if first < last else ""))
                first += 1
            else:
                parts.append(escape(words[first]) if first < last else "")
                first += 1
        return parts

    return " ".join(part(0, len(words), 0)), count


def drawn(rng: random.Random) -> Drawn:
    """Returns a random line. Its translation has the words in another order, without some, with others and marks."""
    words = [rng.choice(("one", "Two", "x&y", "a<b", "3", "été", "end")) for _ in range(rng.randint(1, 12))]
    words = [word + rng.choice(MARKS) if rng.random() < 0.2 else word for word in words]
    line, tags = "", 0
    while not tags:
        line, tags = with_tags(rng, words)
    order = list(range(len(words)))
    if rng.random() < 0.8:
        order.sort(key=lambda place: place + rng.uniform(0, rng.choice((2, 6, 20))))
    targets, links = [], []
    for source in order:
        if rng.random() < 0.1:
            targets.append("neu")
        if rng.random() < 0.1:
            continue
        links.append((source, len(targets)))
        if rng.random() < 0.15:
            links.append((rng.randrange(len(words)), len(targets)))
        mark = words[source][-1] if words[source][-1] in MARKS else ""
        targets.append(words[source] if rng.random() < 0.2 else f"w{source}&{mark}")
    links += [(99, 0), (0, 99)] if rng.random() < 0.1 else []
    return Drawn(line, " ".join(words), " ".join(targets), links, tags)


class Read:
    """The text that an XML parser reads, and the parent of each tag, by the number in its attribute `id`."""

    def __init__(self, line: str):
        self.text, self.parents, self._open = "", {}, ["0"]
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = lambda _: self._open.pop()
        parser.CharacterDataHandler = self._add
        parser.Parse(f"<root id='0'>{line}</root>", True)

    def _start(self, _, attributes):
        assert attributes["id"] not in self.parents
        self.parents[attributes["id"]] = self._open[-1]
        self._open.append(attributes["id"])

    def _add(self, text):
        self.text += text
