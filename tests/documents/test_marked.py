"""Sentences of long text with markup: tags between sentences stay, and each sentence has the tags that stand in it."""

from __future__ import annotations

import random
import re
import time

import pytest
from helpers.marked_lines import Read, with_tags

from t2t_repro.documents.splitter import Splitter
from t2t_repro.text.markup import MarkedText

TAG = re.compile(r"<(?:[^<>'\"]|'[^']*'|\"[^\"]*\")*>")


def document(text, most=1_000):
    (found,) = Splitter("en", most).marked([text])
    return found


def is_part(sentence):
    """Returns true if a sentence has tags whose partners are in other sentences."""
    tags = TAG.findall(sentence)
    return sum(tag[1] != "/" and tag[-2] != "/" for tag in tags) != sum(tag[1] == "/" for tag in tags)


def translated(text, order=list, links=list):
    """Returns the translation by a model that writes capitals, the words of each sentence in another order."""
    found = document(text)
    translations = []
    for sentence in found.sentences:
        line = MarkedText(sentence)
        words = line.text.split()
        places = order(range(len(words)))
        capitals = " ".join(words[place].upper() for place in places)
        translations.append(line.restored(capitals, links((place, n) for n, place in enumerate(places))))
    return found.joined(translations)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        # tags around sentences, of blocks, and partners in one sentence
        ("<p>One two. <i>Three</i>.</p>", ["One two.", "<i>Three</i>."]),
        ("<i>One. Two.</i> Three.", ["One.", "Two.", "Three."]),
        ("<h1>One</h1><ul><li>Two</li><li><b>3</b> a</li></ul>x<br>y", ["One", "Two", "<b>3</b> a", "x", "y"]),
        ("one <b>two.</b> Three", ["one <b>two.</b>", "Three"]),
        ("<p><i><b>Not</b> one</i> two. <u>It <s>is.</s></u></p>", ["<i><b>Not</b> one</i> two.", "It <s>is.</s>"]),
        ("One <i>two. Three</i> four.", ["One <i>two.", "Three</i> four."]),
        ("One <i>two. </i>Three", ["One <i>two.", "Three"]),
        # placeholders, addresses and entities
        ("See {0}. {1} is at https://a.b/c.d?e. Yes", ["See {0}.", "{1} is at https://a.b/c.d?e.", "Yes"]),
        ("One.&nbsp;Two &amp; &lt;one&gt; more.&#10; Three", ["One.", "Two &amp; &lt;one&gt; more.", "Three"]),
        # elements that are not to be translated
        ("Run <code>a. B\nc</code>. <kbd>D. E</kbd> it.", ["Run <code>a. B\nc</code>.", "<kbd>D. E</kbd> it."]),
        ("One<div translate='no'><p>Two. Three</p></div>four", ["One", "four"]),
        # what is not text
        ("A. <!-- B. C. --><script>D. E.</script>\n<a title='F. G.'>h</a>", ["A.", "h"]),
        # line ends
        ("<p>One\n\t<b\n>two</b> three.\n Four</p>\nFive", ["One <b\n>two</b> three.", "Four", "Five"]),
        ("<b>One</b>\ntwo<br>\nthree", ["One", "two", "three"]),
        ("<pre>One\ntwo</pre>", ["One", "two"]),
        ("", []),
        ("<br> \n</p>", []),
    ],
)
def test_sentences(text, sentences):
    found = document(text)
    assert found.sentences == sentences
    assert found.joined(sentences) == text.replace("One\n\t<b", "One <b")  # the line end is in a sentence


def test_long_sentences_are_split_without_their_tags_and_placeholders_stay_whole():
    text = "<a href='" + "x" * 100 + "'>one</a> two three, <b>four</b> five"
    assert document(text, 40).sentences == [text]
    assert document(text, 20).sentences == [text.partition(" <b>")[0], "<b>four</b> five"]
    assert document("{a}{b}", 3).sentences == ["{a}", "{b}"] and document("{a}{b}", 2).sentences == ["{a}", "{b}"]


@pytest.mark.parametrize(
    ("text", "translations", "expected"),
    [
        ("<b>你好。</b><b>很好!</b>", ["Hello.", "Fine!"], "<b>Hello.</b> <b>Fine!</b>"),
        ("<b>你好。很好!</b>是吗?", ["Hello.", "Fine!", "Is it?"], "<b>Hello. Fine!</b> Is it?"),
        ("你好。<i><b>很好!是吗?</b></i>", ["Hello.", "Fine!", "Is it?"], "Hello. <i><b>Fine! Is it?</b></i>"),
        ("<b>你好。很好!</b><i>是吗?好。</i>", ["A.", "B!", "C?", "D."], "<b>A. B!</b> <i>C? D.</i>"),
        ("你好。&#10;很好!<b>&#9;</b>是吗?", ["Hello.", "Fine!", "Is it?"], "Hello.&#10;Fine!<b>&#9;</b>Is it?"),
        ("<p>你好。</p><p>很好!</p>", ["Hello.", "Fine!"], "<p>Hello.</p><p>Fine!</p>"),
        ("<b>Hello.</b> <i>Fine! Yes.</i>", ["你好。", "很好\uff01", "是。"], "<b>你好。</b><i>很好\uff01是。</i>"),
    ],
)
def test_space_between_sentences_of_scripts_without_it(text, translations, expected):
    (found,) = Splitter("zh", 1_000).marked([text])
    assert found.joined(translations) == expected


def test_joined():
    text = "<p>One <b\ntitle='x'>two</b>.\n\n<i>Three four. Five</i> a&amp;b.</p>\n"
    assert translated(text) == "<p>ONE <b\ntitle='x'>TWO</b>.\n\n<i>THREE FOUR. FIVE</i> A&amp;B.</p>\n"
    found = document("<p>One. Two <b>three</b>. This & that.</p>")
    expected = "<p>&lt;a> &amp; c. Zwei <b\n>x</b>. A & &lt;b></p>"  # `&` stays as the sentence spells it
    assert found.joined(["<a>\n& c.", "Zwei\n\n<b\n>x</b>.", "A & <b>"]) == expected
    assert document("One. Two < 3.").joined(["<a> & c.", "<b>"]) == "<a> & c. <b>"  # no markup, nothing is escaped


def test_a_thousand_random_documents_keep_their_tags_and_the_order_of_their_sentences():
    rng = random.Random(1)
    across = 0
    for _ in range(1_000):
        words = [f"W{number}{rng.choice(['', '&', 'x'])}" for number in range(rng.randint(2, 6)) for _ in range(3)]
        for place in range(2, len(words), 3):
            words[place] += "."
        text, _ = with_tags(rng, words)
        found = translated(
            text,
            lambda places: rng.sample(list(places), len(places)),
            lambda links: [(rng.choice((one, one, one, 1)), other) for one, other in links if rng.random() < 0.8],
        )
        assert sorted(TAG.findall(found)) == sorted(TAG.findall(text))
        source, target = Read(text), Read(found)
        assert target.parents == source.parents, (text, found)
        assert sorted(target.text.split()) == sorted(source.text.upper().split())
        if all(len(re.findall(r"\w+[&x]?\.?", MarkedText(each).text)) <= 3 for each in document(text).sentences):
            numbers = [int(number) for number in re.findall(r"W(\d+)", target.text)]
            assert numbers == sorted(numbers)
        across += any(map(is_part, document(text).sentences))
    assert across > 300


def test_hostile_documents_are_split_in_a_moment():
    started = time.perf_counter()
    for part in ("<b>", "</b>", "<b>a. ", "a. B</b>", "&amp;", "{0}", "<", "<p>", "<b>A.</b> ", "a.</b><i>B", " "):
        text = part * (100_000 // len(part)) + "."
        found = document(text)
        assert found.joined(found.sentences) == text
        assert all(one[1] <= other[0] for one, other in zip(found.spans, found.spans[1:], strict=False))
    assert time.perf_counter() - started < 30
