"""t2t_repro.text.markup: tags leave a text, and return to its translation, once and nested."""

from __future__ import annotations

import random
import re
import time

import pytest
from helpers.marked_lines import Read, drawn

from t2t_repro.text.markup import MarkedText
from t2t_repro.text.pieces import pieces_of
from t2t_repro.text.placement import Element, Span, spans
from t2t_repro.text.translations import links_of


def restored(line: str, translation: str, links: str) -> str:
    return MarkedText(line).restored(translation, links_of(links))


def test_a_thousand_random_lines_keep_their_tags():
    rng = random.Random(1)
    inside = 0
    for number in range(1_000):
        each = drawn(rng)
        line = MarkedText(each.line)
        assert line.text == each.text, (number, each.line)
        found = line.restored(each.translation, each.links)
        source, target = Read(each.line), Read(found)
        assert len(source.parents) == each.tags + 1
        assert target.parents == source.parents, (number, each, found)
        assert target.text == each.translation
        tags = r"<[^<>'\"]*(?:'[^']*'|\"[^\"]*\"|[^<>'\"])*>"
        assert sorted(re.findall(tags, found)) == sorted(re.findall(tags, each.line))  # as they were spelled
        inside += bool(re.search(r"<(\w+) id[^<]*>\w+[^<]*</\1>", found))
    assert inside > 300


def test_elements_that_are_not_to_be_translated_stay_in_their_parents():
    rng = random.Random(2)
    moved = 0
    for number in range(1_000):
        source = re.sub(
            r"(<[bi] id)", lambda tag: rng.choice((tag[1], tag[1].replace(" ", " translate='no' "))), drawn(rng).line
        )
        line = MarkedText(source)
        if not line.text:
            continue
        words = line.text.split()
        order = sorted(range(len(words)), key=lambda place: place + rng.uniform(0, rng.choice((0, 3, 20))))
        links = [(place, target) for target, place in enumerate(order) if rng.random() < 0.9]
        found = line.restored(" ".join(words[place] for place in order), links)
        assert Read(found).parents == Read(source).parents, (number, source, order, links, found)
        kept = [piece.raw for piece in pieces_of(source) if piece.kind == "kept"]
        assert all(found.count(each) == 1 for each in kept)
        moved += order != sorted(order) and bool(kept)
    assert moved > 100


@pytest.mark.parametrize(
    "line, text, translation, links, expected",
    [
        # the words of an element, and no mark beside them
        ("Click <b>here</b>.", "Click here.", "Klicken Sie hier.", "0-0 0-1 1-2", "Klicken Sie <b>hier</b>."),
        ("<b>Stop!</b> Now", "Stop! Now", "Halt! Jetzt", "0-0 1-1", "<b>Halt!</b> Jetzt"),
        # its mark links a word to another one
        ("A man, a <b>street</b>.", "A man, a street.", "Straße, Mann.", "3-0 1-1 3-1", "<b>Straße</b>, Mann."),
        # a part of a word
        ("<i>H<sub>2</sub>O</i> is", "H2O is", "ist H2O", "1-0 0-1", "ist <i>H<sub>2</sub>O</i>"),
        ("<b>un</b>real", "unreal", "irreal", "0-0", "<b>irreal</b>"),
        # discontinuous: all words between them are inside, unless they belong to another element
        ("<b>look up</b> it", "look up it", "sieh es an", "0-0 1-2 2-1", "<b>sieh es an</b>"),
        ("<b>look up</b> <i>it</i>", "look up it", "sieh es an", "0-0 1-2 2-1", "<b>sieh</b> <i>es an</i>"),
        ("<b>look up</b> <i>it</i> now", "look up it now", "sieh es an", "0-0 1-2 2-1", "<b>sieh</b> <i>es</i> an"),
        ("<b>a</b> <i>c d</i>", "a c d", "d a c", "0-1 1-2 2-0", "<i>d</i> <b>a c</b>"),
        # beside one that is not to be translated
        ("<b>look up</b> <code>it</code>", "look up XY", "sieh XY an", "0-0 1-2 2-1", "<b>sieh</b> <code>it</code> an"),
        ("<b>see <kbd>x</kbd></b> <i>now</i>", "see XY now", "s n XY", "0-0 2-1", "<b>s <kbd>x</kbd></b> <i>n</i>"),
        # without text
        ("<i></i><b>one</b>", "one", "das eine", "0-1", "<i></i><b>das eine</b>"),
        ("<tr><td></td><td>a b</td></tr>", "a b", "x y z", "0-1 1-2", "<tr><td></td><td>x y z</td></tr>"),
        # a parent without text of its own
        ("<p>a <b>c</b></p>", "a c", "y x z w", "0-1 1-2", "<p>y x <b>z</b> w</p>"),
        ("<tr><td>a</td><td>c</td></tr>", "a c", "x y z w", "0-0 1-2", "<tr><td>x y</td> <td>z w</td></tr>"),
        # without links: words without links beside it, or nothing
        ("on <b>the</b> street", "on the street", "auf der Straße", "0-0 2-2", "auf <b>der</b> Straße"),
        ("on <b>the</b> street", "on the street", "auf Straße", "0-0 2-1", "auf <b></b>Straße"),
        ("<b>a</b>", "a", "", "", "<b></b>"),
        # tags that stand alone
        ("a<br>b", "a b", "x y", "0-0 1-1", "x <br>y"),
        ("one <img alt='>'/> two", "one two", "zwei eins", "0-1 1-0", "<img alt='>'/>zwei eins"),
        ("one<fn/> two three", "one two three", "zwei eins drei", "0-1 1-0 2-2", "zwei eins<fn/> drei"),
        ("a the <br/>roof", "a the roof", "x y z", "0-0 2-0 1-1 2-2", "x y <br/>z"),  # the nearest of several links
        ("<!-- <b> -->a <?php b?><![CDATA[<i>]]>", "a", "x", "0-0", "<!-- <b> -->x<?php b?><![CDATA[<i>]]>"),
        (
            "<script>if (a<b)</script>a<style>b {c}</style>",
            "a",
            "x",
            "0-0",
            "<script>if (a<b)</script>x<style>b {c}</style>",
        ),
        ("{% if a %}b{% endif %}", "b", "x", "0-0", "{% if a %}x{% endif %}"),
        # no partner, or crossing
        ("a</b> c", "a c", "x z", "0-0 1-1", "x</b> z"),
        ("a <b>c", "a c", "x z", "0-0 1-1", "x <b>z"),
        ("<b>a <i>c</b> d</i>", "a c d", "x y z", "0-0 1-1 2-2", "<b>x <i>y</b> z</i>"),
        ("<ul><li>a<li>b</ul>", "a b", "x y", "0-0 1-1", "<ul><li>x <li>y</ul>"),
        ("<A>a</a>", "a", "x", "0-0", "<A>x</a>"),
        ("a <b>c <i>d</i>", "a c d", "x z y w", "0-0 1-2 2-1 2-3", "x z <b>y <i>w</i>"),  # its siblings keep their side
        ("a <br>c <i>d</i>", "a c d", "z x y", "0-1 1-2 2-0", "<i>z</i> x <br>y"),  # which has no partner in HTML
        # no tags
        ("1 < 2 <3 a<b", "1 < 2 <3 a<b", "1 < 2 <3 a<b", "", "1 < 2 <3 a<b"),
        ("<a 'b>", "<a 'b>", "<a 'b>", "0-0", "<a 'b>"),
        ("a & b &unknown; &;", "a & b &unknown; &;", "a & <b>", "", "a & <b>"),
        # scripts without spaces, whose letters are letters too
        (
            "请点击{0}查看。",
            "请点击XY查看。",
            "Please click here to view.",
            "0-0 0-1 0-2 0-3 0-4",
            "Please click here to {0} view.",
        ),
        ("Read <a>here</a>.", "Read here.", "请在这里阅读更多。", "0-0 1-0", "<a>请在这里阅读更多</a>。"),
        ("<b>你好</b>，世界。", "你好，世界。", "Hello, world.", "0-0 0-1", "<b>Hello, world</b>."),
        # a word in place of a placeholder, without the marks around it
        ("File ({0}) gone", "File (XY) gone", "Datei (Name) weg", "0-0 1-1 2-2", "Datei ({0}) weg"),
        ('Open "{0}".', 'Open "XY".', "Öffnen Sie „Datei“.", "0-0 0-1 1-2", "Öffnen Sie „{0}“."),
        ("See {0}?", "See XY?", "انظر ملف؟", "0-0 1-1", "انظر {0}؟"),
        # space
        ("<p> a  <b> b </b> </p> ", "a  b", "x y", "0-0 1-1", "<p>x <b>y</b></p>"),
        (" a ", " a ", " x ", "", " x "),
        ("<li>a</li><li>b</li>", "a b", "x y", "0-0 1-1", "<li>x</li> <li>y</li>"),
        ("<1>a</1> <2/>b", "a b", "x y", "0-0 1-1", "<1>x</1> <2/>y"),
        # nothing to translate
        ("<hr>", "", "", "", "<hr>"),
        (" <td>{0}</td> , ", "", "", "", " <td>{0}</td> , "),
        ("", "", "", "", ""),
    ],
)
def test_tags(line, text, translation, links, expected):
    assert (MarkedText(line).text, restored(line, translation, links)) == (text, expected)


@pytest.mark.parametrize(
    "line, text, translation, expected",
    [
        ("a &amp; b", "a & b", "b & <a>", "b &amp; &lt;a>"),
        ("&lt;b&gt; &#39;c&#x27;", "<b> 'c'", "'b' < c >", "&#39;b&#39; &lt; c &gt;"),
        ("<b>AT&T</b>", "AT&T", "AT&T &lt;", "<b>AT&T &amp;lt;</b>"),  # `&` as it was, unless it would be an entity
        ("a < b<br>", "a < b", "a < <b>", "a < &lt;b><br>"),
        ("&nbsp;a&copy;&notit;", "\u00a0a©&notit;", "a\u00a0©", "a&nbsp;&copy;"),
        ("a&#10;b", "ab", "xy", "xy&#10;"),  # a control character stands alone
        ("a&#127;b&#xFFFE;", "ab", "xy", "xy&#127;&#xFFFE;"),  # HTML drops these
    ],
)
def test_entities(line, text, translation, expected):
    links = "0-0" if "<b>" in line else ""
    assert (MarkedText(line).text, restored(line, translation, links)) == (text, expected)


@pytest.mark.parametrize(
    "line, text, translation, links, expected",
    [
        ("%d of {n}", "XY of XZ", "XZ: XY", "0-1 2-0", "{n}: %d"),
        ("{0} and {0}, {1}", "XY and XY, XZ", "XZ, XY und XY", "0-3 1-2 2-1 3-0", "{1}, {0} und {0}"),
        ("XY {a}", "XY XZ", "XZ XY", "0-1 1-0", "{a} XY"),  # the text has that word
        ("Mail <b>a.b+c@d.example</b>.", "Mail XY.", "XY mailen.", "0-1 1-0", "<b>a.b+c@d.example</b> mailen."),
        (
            "(see http://a.b/c?d=1&amp;e=%s.)",
            "(see XY.)",
            "(siehe XY.)",
            "0-0 1-1",
            "(siehe http://a.b/c?d=1&amp;e=%s.)",
        ),
        ("a <i>{{ b }}</i> c", "a XY c", "c XY x", "0-2 1-1 2-0", "c <i>{{ b }}</i> x"),
        ("50% of 5 %s", "50% of 5 XY", "XY", "3-0", "%s"),
        ("a %(a)s %1$s %5.2f %%", "a XY XZ YX YZ", "YZ YX XZ XY", "", "%% %5.2f %1$s %(a)s"),
        ("{a}{b}px at 5%", "XYXZpx at 5%", "mit XYXZpx", "0-1 1-0", "mit {a}{b}px"),
        ("{a}'s dog", "XY's dog", "XYs Hund", "0-0 1-1", "{a}s Hund"),
        ("看{a}。", "看XY。", "见XY！", "0-0", "见{a}！"),
        ("%d x@y.z5%d", "XY XZ%d", "XZ%d XY", "0-1 1-0", "x@y.z5%d %d"),
        # no stand-in: the words that are linked to it alone, or a place beside its neighbors
        ("see {a}, too", "see XY, too", "siehe X Y, auch", "0-0 1-1 1-2 2-3", "siehe {a}, auch"),
        ("see {a}", "see XY", "siehe Xys!", "0-0 1-1", "siehe {a}!"),
        ("see {a} now", "see XY now", "jetzt sehen", "0-1 2-0", "{a} jetzt sehen"),
        ("see <b>{a}</b>", "see XY", "siehe", "0-0 1-0", "siehe<b> {a}</b>"),
        ("{a}px is it", "XYpx is it", "das ist", "1-1 2-0", "{a} das ist"),
        ("see {a}.", "see XY.", "", "", "{a}"),
        ("run to {a}. Stop", "run to XY. Stop", "lauf. Halt", "0-0 2-0 3-1", "lauf {a}. Halt"),
        # too many of it
        ("see {a}", "see XY", "siehe XY XY", "0-0 1-1 1-2", "siehe {a}"),
        # no placeholder
        ("50% of a@b { x } {", "50% of a@b { x } {", "y", "", "y"),
    ],
)
def test_placeholders_and_addresses(line, text, translation, links, expected):
    assert (MarkedText(line).text, restored(line, translation, links)) == (text, expected)


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        ("Run <code>ls <b>-l</b></code> <b>now</b>.", "Run XY now.", "RUN <code>ls <b>-l</b></code> <b>NOW</b>."),
        ("<KBD>a</KBD>, <samp>b &amp; c</samp>", "", "<KBD>a</KBD>, <samp>b &amp; c</samp>"),
        ('<span translate="No">An Acme</span> is', "XY is", '<span translate="No">An Acme</span> IS'),
        ("a <b class='x NoTranslate y'>b</b>", "a XY", "A <b class='x NoTranslate y'>b</b>"),
        ("a <i translate = no translate=yes>b</i>", "a XY", "A <i translate = no translate=yes>b</i>"),
        ("<p translate='no'>A {0}.</p>", "", "<p translate='no'>A {0}.</p>"),
        ("a<div translate=no>b</div>c", "a c", "A <div translate=no>b</div>C"),  # separates words
        ("a <b translate=no><br>b</b> c", "a XY c", "A <b translate=no><br>b</b> C"),
        # these are translated
        ("<code translate='yes'>a</code> b", "a b", "<code translate='yes'>A</code> B"),
        (
            "<code translate>a</code> <b translate=maybe>b</b>",
            "a b",
            "<code translate>A</code> <b translate=maybe>B</b>",
        ),
        ("<b title='translate=no' class=notranslated>a</b>", "a", "<b title='translate=no' class=notranslated>A</b>"),
        ("<b translate=no>a", "a", "<b translate=no>A"),  # no element
        ("a <code> <i></i></code>b", "a b", "A <code><i></i></code>B"),  # no text
        ("a<kbd>&nbsp;</kbd>b", "aXYb", "A<kbd>&nbsp;</kbd>B"),
        (
            "Click <button translate=no>OK</button> to go",
            "Click XY to go",
            "CLICK <button translate=no>OK</button> TO GO",
        ),
    ],
)
def test_elements_that_are_not_to_be_translated(line, text, expected):
    found = MarkedText(line)
    words = range(len(found.text.split()))
    assert (found.text, found.restored(found.text.upper(), [(n, n) for n in words])) == (text, expected)


@pytest.mark.parametrize(
    ("line", "kept", "text"),
    [
        ("请联系info@example.com获取更多信息。", ["info@example.com"], "请联系XY获取更多信息。"),
        ("请看 https://example.com/a。谢谢您。", ["https://example.com/a"], "请看 XY。谢谢您。"),
        ("请访问https://example.com/a 。", ["https://example.com/a"], "请访问XY 。"),
        ("see https://example.com&nbsp;for details", ["https://example.com"], "see XY\u00a0for details"),
        ("&quot;https://example.com/a&quot; is new", ["https://example.com/a"], '"XY" is new'),
        ("Visit “https://example.com/a”.", ["https://example.com/a"], "Visit “XY”."),
        ("https://x.com/a—and more", ["https://x.com/a"], "XY—and more"),
        ("See https://a.org/wiki/Python_(language) now.", ["https://a.org/wiki/Python_(language)"], "See XY now."),
        ("(see https://a.b/c?x=1&y=2)", ["https://a.b/c?x=1&y=2"], "(see XY)"),
        ("%(size)dMB of %(total)dMB", ["%(size)d", "%(total)d"], "XYMB of XZMB"),
        ("width: %1$spx", ["%1$s"], "width: XYpx"),
        ("共%d个文件", ["%d"], "共XY个文件"),
        ("%sさんが%d件", ["%s", "%d"], "XYさんがXZ件"),
        ("100%dpx", [], "100%dpx"),
    ],
)
def test_addresses_and_placeholders_end_where_the_text_goes_on(line, kept, text):
    assert [piece.raw for piece in pieces_of(line) if piece.kind == "kept"] == kept
    assert MarkedText(line).text == text


def test_slash_of_an_unquoted_value_does_not_end_the_element():
    line = MarkedText("<a href=/x/>Read</a> the <i>news</i> today")
    found = line.restored("Heute die Nachrichten lesen", [(0, 3), (1, 1), (2, 2), (3, 0)])
    assert found == "Heute die <i>Nachrichten</i> <a href=/x/>lesen</a>"


def test_nothing_that_the_model_writes_is_read_as_a_tag_or_an_entity():
    line = MarkedText("1 < 2 <b>x</b>")
    assert line.restored("1 <img src=x onerror=alert(1) y", [(3, 4)]) == "1 &lt;img src=x onerror=alert(1) <b>y</b>"
    assert MarkedText("R&D <b>x</b>").restored("R&lt y", [(1, 1)]) == "R&amp;lt <b>y</b>"


def test_buttons_separate_words():
    assert MarkedText("<button>Save</button><button>Cancel</button>").text == "Save Cancel"


def test_hostile_lines_are_read_in_a_moment():
    parts = ["<", "<a ", "<a '", '<a "', "<a \"'", "<!--", "<![CDATA[", "<?", "<!a", "<script>", "{%", "{{", "{", "${"]
    parts += ["&", "&#", "&amp;", "%", "%(a)", "%1", "www.", "http://", "a@", "a.b+", "a@b.", "<a>", "</a>", "<a>x "]
    parts += ["x<b/>", "<p>", "{0} ", "</p></a>", "\u0301", "字", "\x00", "<a>x</a> ", "<a><b>x</b>", "<b></a>"]
    parts += ["<code>", "<code>x</code>", "<code translate ", "<a translate=no>x"]
    lines = [part * (10_000 // len(part)) for part in parts]
    nested = "<code> " * 1_000 + "</code>" * 1_000
    for line in [*lines, "%" + "0" * 10_000, nested, f"<a translate{' ' * 9_000}>x</a>"]:
        started = time.process_time()
        marked = MarkedText(line)
        length = len(marked.text.split())
        links = [(place, (place * 7919) % length) for place in range(length)] if marked.text else []
        found = marked.restored(marked.text[::-1], links)
        assert time.process_time() - started < 3, line[:20]
        assert found.count("<") >= line.count("<a>") + line.count("<b/>")


@pytest.mark.parametrize(
    ("translation", "links", "expected"),
    [
        ("XY sehen XY jetzt", "1-0 0-1 1-2 2-3", "{0} sehen jetzt"),
        ("XY XY XY jetzt", "1-0 1-1 1-2 2-3", "{0} jetzt"),
        ("jetzt XY XY", "1-1 1-2 2-0", "jetzt {0}"),
        ("XY, XY jetzt", "1-0 1-1 2-2", "{0}, jetzt"),
        ("XY sehen (XY) jetzt", "1-0 0-1 1-2 2-3", "{0} sehen () jetzt"),
    ],
)
def test_stand_in_that_is_left_out_takes_a_space_with_it(translation, links, expected):
    assert restored("see {0} now", translation, links) == expected


class Counted(list):
    """A list that counts the items that are read."""

    read = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self):
        self.read += len(self)
        return super().__iter__()


def test_nested_elements_take_linear_time():
    length, nested = 400, 1_000
    whole = Element("", "", -1, 0, length)
    elements = [whole, *(Element("<b>", "</b>", parent, 1, length - 1) for parent in range(nested))]
    linked = Counted(1 << place for place in range(length))
    assert spans(elements, linked, length) == [Span(0, length), *[Span(1, length - 1)] * nested]
    assert linked.read < 10 * (length + nested)
    points = [Element("<x/>", "", 0, 1, 1, is_point=True)] * 1_000
    assert spans([whole, *points], [1, (1 << 1_000) - 1], 1_000)[1:] == [Span(1, 1)] * 1_000


@pytest.mark.parametrize("words", ["中a ", "中,. ", "b3 "])
def test_text_without_spaces_whose_translation_has_many_words_takes_a_moment(words):
    line = MarkedText(f"<b>{'中,' * 2_500}</b>{'b2' * 2_490}")
    links = [(0, place) for place in range(500)]
    started = time.process_time()
    found = line.restored(words * 500, links)
    assert time.process_time() - started < 1
    assert found.count("<b>") == found.count("</b>") == 1 and re.sub("<.*?>", "", found) == words * 500


def test_words_have_placeholders_where_the_translation_has_them():
    line = MarkedText("<b>see</b> {{ my name }}, a@b.de and %s.")
    assert line.text == "see XY, XZ and YX." and line.source_words == ["see", "{{ my name }},", "a@b.de", "and", "%s."]
    assert line.words("sieh XY, XZ und YX.", []) == ["sieh", "{{ my name }},", "a@b.de", "und", "%s."]
    garbled = MarkedText("see {0} now")
    assert garbled.words("jetzt X Y sehen", [(1, 1), (1, 2)]) == ["jetzt", "{0}", "", "sehen"]
    assert garbled.words("jetzt", []) == ["jetzt"] and MarkedText("<br>{0}").source_words == []
    assert MarkedText("a b").words("c  d", []) == ["c", "d"]
