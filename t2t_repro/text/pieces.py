"""The parts of a line with markup: tags, placeholders, addresses, entities and text.

**A tag** is what HTML and XML take for one: `<`, a name, attributes, `>`; `<` before anything else is text. An opening
and a closing tag of one name are an element, if they nest. Every other tag stands alone: `<br>`, `<img/>`, and one
whose partner is missing or crosses another element. Comments, processing instructions, declarations, CDATA sections,
`<script>` and `<style>` stand alone with all that they contain.

**A placeholder** is `{0}`, `{name}`, `${name}`, `{{ name }}`, `%s`, `%(name)d` or `%1$s`. Placeholders, web and e-mail
addresses are kept as they are, and so are elements that are not to be translated, with all that they contain: those
with `translate="no"` or the class `notranslate`, and `<code>`, `<kbd>` and `<samp>` without `translate="yes"`.

**An entity** such as `&amp;` is a character of the text.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import unescape
from html.entities import html5
from typing import NamedTuple

from t2t_repro.text.glossary import WITHOUT_SPACES
from t2t_repro.text.words import SPACES

_NOT_URL = "“”„‘’‚«»‹›—…\u3000-\u303f\uff00-\uffef" + WITHOUT_SPACES  # quotation marks, and scripts without spaces
_NAME, _HOST = "a-z0-9_.+\u00c0-\u024f-", "a-z0-9_\u00c0-\u024f-"  # of an e-mail address
# An alternative stops at the end of the line or at the next character of its kind, so that a search does not start
# again and again over the same part of a long line. So an unclosed comment ends with the line.
_MARK = re.compile(
    rf"""
    (?P<whole>
        <!--.*?(?:-->|\Z) | <!\[CDATA\[.*?(?:\]\]>|\Z) | <\?.*?(?:\?>|\Z) | <![a-z][^<>]*>
      | <(?P<raw>script|style)(?:\s[^<>]*)?>.*?(?:</(?P=raw)\s*>|\Z)
      | \{{%[^{{}}]*%\}}
    )
  | (?P<tag> <(?P<close>/?)
        (?: (?P<name>[a-z_][\w:.-]*)(?P<rest>(?:[\s/](?:[^<>"']|"[^"]*"|'[^']*')*+)?) | (?P<number>\d+)(?P<slash>/?) )>
    )
  | (?P<kept>
        (?<![a-z0-9_@])(?:https?://|ftp://|www\.)
        (?:[.,;:!?'`*)\]}}]*+ (?: &amp; | &(?![a-z0-9\#]+;) | \([^\s<>"&(){_NOT_URL}]*+\)
          | [^\s<>"&.,;:!?'`*)\]}}{_NOT_URL}] ))+
      | (?<![{_NAME}])[{_NAME}]++@[{_HOST}]++(?:\.[{_HOST}]++)+
      | \{{\{{[^{{}}<>]*\}}\}}
      | \$?\{{[\w.:!+-]*\}}
      | %%
      | (?<!\d)%(?P<named>\(\w+\)|\d+\$)?[-+\#0]*+\d*+(?:\.\d+)?(?:hh?|ll?|[zjtL])?[sdifeguxocpa@]
        (?(named)|(?![a-z0-9_]))
    )
  | (?P<entity> &(?:\#\d{{1,7}}|\#x[0-9a-f]{{1,6}}|[a-z][a-z0-9]{{1,31}}); )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"""([^\s=/"'<>]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>]+))?""")
# read as a tag or an entity by a browser, even if it is not complete: `&lt` is one, and `&T` is not
_IS_READ = re.compile(rf"<[a-zA-Z/!?]|&(?:#|{'|'.join(name for name in html5 if not name.endswith(';'))})")
# elements of HTML that separate words
SEPARATE = frozenset(
    "address article aside blockquote body br button caption center dd details dialog div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section select "
    "summary table tbody td textarea tfoot th thead title tr ul".split()
)

_IN_LINE = frozenset(("button", "select", "textarea"))  # of these, those that stand in a line of text
_CODE = frozenset(("code", "kbd", "samp"))  # not translated
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # without a partner


class Piece(NamedTuple):
    """A part of a line."""

    kind: str  # "tag", "whole" (stands alone with its content), "kept", "entity" or "text"
    raw: str
    text: str = ""  # for the model
    name: str = ""  # of a tag, or of an element that is one part, in lower case
    closes: bool = False
    is_alone: bool = False  # `<img/>`
    keeps: bool = False  # an opening tag whose element is not to be translated


def has_markup(line: str) -> bool:
    """Returns true if a line has a tag, a placeholder, an address or an entity."""
    return any(piece.kind != "text" for piece in _pieces(line))


def pieces_of(line: str) -> list[Piece]:
    """Returns the parts of a line.

    An element that is not to be translated is one part: "whole" if it is a paragraph or the like, else "kept". Without
    text it is its tags, like any other.
    """
    pieces = list(_pieces(line))
    if not any(piece.keeps for piece in pieces):
        return pieces
    has_text = (bool(piece.text.strip(SPACES)) or piece.kind == "kept" for piece in pieces)
    texts = list(itertools.accumulate(has_text, initial=0))  # up to each piece
    partners, found, place = partners_of(pieces), [], 0
    while place < len(pieces):
        piece, end = pieces[place], partners.get(place, place) + 1
        if piece.keeps and texts[end] > texts[place]:
            raw = "".join(each.raw for each in pieces[place:end])
            found.append(Piece("whole" if piece.name in SEPARATE - _IN_LINE else "kept", raw, name=piece.name))
            place = end
        else:
            found.append(piece)
            place += 1
    return found


def _pieces(line: str) -> Iterator[Piece]:
    place = 0
    for match in _MARK.finditer(line):
        if match.start() > place:
            yield Piece("text", line[place : match.start()], line[place : match.start()])
        yield _piece(match)
        place = match.end()
    if place < len(line):
        yield Piece("text", line[place:], line[place:])


def _piece(match: re.Match[str]) -> Piece:
    raw = match[0]
    if match["whole"]:
        return Piece("whole", raw)
    if match["tag"]:
        name, rest = match["name"] or match["number"], match["rest"] or match["slash"] or ""
        # the slash of an unquoted value, <a href=/x/>, belongs to the value
        is_alone = rest.endswith("/") and "=" not in re.split(r"[\s\"']", rest)[-1]
        name, closes = name.lower(), bool(match["close"])
        return Piece("tag", raw, "", name, closes, is_alone, not (closes or is_alone) and _keeps(name, rest))
    if match["kept"]:
        return Piece("kept", raw)
    text = unescape(raw)
    if not raw.startswith("&#") and raw[1:] not in html5:
        return Piece("text", raw, raw)
    # HTML drops most control characters and noncharacters: their text is ""
    return Piece("whole", raw) if not text or unicodedata.category(text[0]) == "Cc" else Piece("entity", raw, text)


def _keeps(name: str, attributes: str) -> bool:
    """Returns whether an element with these attributes is not to be translated."""
    if "translate" in attributes.lower():
        found: dict[str, str] = {}
        for attribute, value in _ATTRIBUTE.findall(attributes):
            found.setdefault(attribute.lower(), value.strip("\"'").lower())
        if "notranslate" in found.get("class", "").split() or found.get("translate") == "no":
            return True
        if found.get("translate") in ("", "yes"):
            return False
    return name in _CODE


def partners_of(pieces: Sequence[Piece]) -> dict[int, int]:
    """Returns the number of the closing tag of each opening one that has one. Elements nest."""
    found: dict[int, int] = {}
    opened: list[int] = []
    names: Counter[str] = Counter()
    for number, piece in enumerate(pieces):
        if piece.kind != "tag" or piece.is_alone:
            continue
        if not piece.closes:
            opened.append(number)
            names[piece.name] += 1
        elif names[piece.name]:
            while True:
                other = opened.pop()
                names[pieces[other].name] -= 1
                if pieces[other].name == piece.name:
                    break
            found[other] = number
    return found


def escape_of(pieces: Iterable[Piece]) -> Callable[[str], str]:
    """Returns the function that spells characters as entities, as the line does.

    `&` and `<` that the line does not have are spelled as entities, and so are those that would otherwise be read as an
    entity or a tag.
    """
    pieces = list(pieces)
    spelled = {"&": "&amp;", "<": "&lt;"}
    bare = {each for piece in pieces if piece.kind == "text" for each in spelled if each in piece.raw}
    first = {piece.text: piece.raw for piece in reversed(pieces) if piece.kind == "entity"}
    spelled |= first
    bare -= set(first)
    characters = re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))))

    def spell(match: re.Match[str]) -> str:
        is_read = _MARK.match(match.string, match.start()) or _IS_READ.match(match.string, match.start())
        return match[0] if match[0] in bare and not is_read else spelled[match[0]]

    return lambda text: characters.sub(spell, text)
