"""The table of export formats."""

from __future__ import annotations

import ast
import re

import pytest
from conftest import CHECKOUT

from t2t_repro.exporting.engines import FORMATS, having


@pytest.mark.parametrize("option", ["shortlist", "alignments", "glossaries"])
def test_formats_refuse_the_options_they_lack(option):
    takes = having(option).split(", ")
    assert takes and set(takes) < FORMATS.keys()
    for name, each in FORMATS.items():
        each.must_take("auto", "none", **{option: None})
        if name in takes:
            each.must_take("auto", "none", **{option: True})
            continue
        with pytest.raises(ValueError, match=rf"^the format {name} .* Received: {option}=True; .*format {takes[0]}"):
            each.must_take("auto", "none", **{option: True})


def test_every_package_is_an_extra():
    """The command that a message names installs what is missing."""
    setup = (CHECKOUT / "setup.py").read_text("utf-8")
    extras = ast.literal_eval(re.search(r"extras_require=(\{.*?\n    \})", setup, re.DOTALL)[1])
    for name, each in FORMATS.items():
        if each.package:
            assert any(requirement.startswith(each.package.lower()) for requirement in extras[name])
