"""Reads TMX (Translation Memory eXchange 1.1 to 1.4) as a stream, in bounded memory, with Python's expat.

    <tu>
      <tuv xml:lang="en-US"><seg>12 <bpt i="1">\\b</bpt>square<ept i="1"/> kilometers</seg></tuv>
      <tuv xml:lang="de"><seg>12 Quadratkilometer</seg></tuv>
    </tu>

A file may come from anywhere, so an entity declaration is an error, as in the package defusedxml. That rules out files
that expand to gigabytes and files that include others. A document type such as `tmx14.dtd` may be named, and is never
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn
from xml.parsers import expat

from t2t_repro.problem import Pair
from t2t_repro.text.lines import MAX_LINE_BYTES, must_be_file, open_bytes

TMX = "translation units in TMX"
_BLOCK = 1 << 16  # bytes parsed at a time
_MAX_DEPTH = 64  # nested elements; TMX needs about eight
_NATIVE_CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))  # elements of formatting codes: no text of the sentence
_LINE_BREAK = re.compile(r"(?:(?<![ \t])[ \t]++)?[\r\n]+[ \t]*")  # each run of blanks is tried once
_MAX_NAMED = 12  # languages listed in an error


def read_units(path: str, source_language: str, target_language: str) -> Iterator[Pair | None]:
    """Yields the pair of each translation unit; None for a unit that lacks one of the languages.

    A language matches case-insensitively and with any region: "en" matches "en", "EN" and "en-US" (RFC 4647, basic
    filtering). Of "pt" and "pt-BR", a variant in "pt-BR" is text of the latter only. The first matching variant of a
    unit is taken. `.gz` files are decompressed. Line breaks within a segment become spaces.

    Raises ValueError, with the file and line, for anything but well-formed TMX without entities, for a segment of more
    than 1 MiB, and for a file in which no unit has both languages.
    """
    must_be_file(path, TMX)
    units = _Units(path, source_language, target_language)
    found = False
    with open_bytes(path) as file:
        block = None
        while block != b"":
            block = file.read(_BLOCK)
            for unit in units.parse(block, is_last=not block):  # expat may keep units until the end
                found = found or unit is not None
                yield unit
    if not found:
        seen = ", ".join(sorted(units.languages)) or "none"
        raise ValueError(
            f"{path} has no unit with {source_language!r} and {target_language!r}; its languages: {seen}; "
            "give two of them as `source_language` and `target_language`"
        )


class _Fault(ValueError):
    """An error that names the file and line."""


class _Units:
    """Collects the translation units of a document that is parsed block by block."""

    def __init__(self, path: str, source_language: str, target_language: str):
        self.languages: set[str] = set()  # some of those in the file, for an error
        self._path, self._wanted = path, (_normal(source_language), _normal(target_language))
        self._units: list[Pair | None] = []
        self._texts: list[str | None] = [None, None]  # of the current unit
        self._sides: list[int] = []  # of the current variant: those that its language matches and that have no text yet
        self._parts: list[str] | None = None  # of the current segment, if it is wanted
        self._size = self._fed = 0  # of the current segment, in characters; of the document so far, in bytes
        self._depth = self._codes = 0  # open elements; those that are, or are in, formatting codes
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler, parser.SkippedEntityHandler = self._entity, self._entity

    def parse(self, block: bytes, is_last: bool = False) -> list[Pair | None]:
        """Returns the units that end in `block`."""
        self._units = []
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            self._fail(f"not valid XML ({expat.ErrorString(error.code)}); export the file again", error.lineno)
        except _Fault:
            raise
        except (LookupError, ValueError) as error:  # of an encoding
            self._fail(f"expected UTF-8, UTF-16 or an 8-bit encoding ({error}); export it as UTF-8")
        self._fed += len(block)
        if self._fed - self._parser.CurrentByteIndex > MAX_LINE_BYTES + _BLOCK:
            self._fail(f"a tag or comment longer than {MAX_LINE_BYTES:,} bytes; export the file again")
        return self._units

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != "tmx":
            self._fail(f"expected a TMX file, <tmx>, got <{name:.80}>")
        if self._depth > _MAX_DEPTH:
            self._fail(f"more than {_MAX_DEPTH} nested elements; export the file again")
        if self._codes or self._parts is not None and name in _NATIVE_CODES:
            self._codes += 1
        elif name == "tu":
            self._texts = [None, None]
        elif name == "tuv":
            language = _normal(attributes.get("xml:lang") or attributes.get("lang") or "")
            if len(self.languages) < _MAX_NAMED:
                self.languages.add(language)
            matching = [wanted for wanted in self._wanted if f"{language}-".startswith(f"{wanted}-")]
            best = max(matching, key=len, default=None)  # "pt-BR" is not text of "pt" too
            self._sides = [side for side in (0, 1) if self._wanted[side] == best and self._texts[side] is None]
        elif name == "seg" and self._sides:
            self._parts, self._size = [], 0

    def _text(self, text: str) -> None:
        if self._parts is None or self._codes:
            return
        self._parts.append(text)
        self._size += len(text)
        if self._size > MAX_LINE_BYTES:
            self._fail(f"a segment longer than {MAX_LINE_BYTES:,} bytes; expected one sentence")

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._codes:
            self._codes -= 1
        elif name == "seg" and self._parts is not None:
            text = _LINE_BREAK.sub(" ", "".join(self._parts)).strip()
            for side in self._sides:
                self._texts[side] = text
            self._parts, self._sides = None, []
        elif name == "tu":
            source, target = self._texts
            self._units.append(None if source is None or target is None else (source, target))

    def _entity(self, name: str, *_: object) -> None:
        self._fail(f"the entity &{name:.80}; is not allowed; expected only those of XML, such as &amp;")

    def _fail(self, what: str, line: int | None = None) -> NoReturn:
        raise _Fault(f"{self._path}, line {line or self._parser.CurrentLineNumber:,}: {what}")


def _normal(language: str) -> str:
    """Returns a language code in lower case, with "-" before its region: "pt_BR" becomes "pt-br"."""
    return language.lower().replace("_", "-")
