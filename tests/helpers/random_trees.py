"""A hypothesis strategy that draws trees."""

from __future__ import annotations

from hypothesis import strategies as st

from t2t_repro.parsing.trees import Tree

atoms = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\v\f()"), min_size=1, max_size=4)
labels = st.one_of(st.sampled_from(["S", "NP", "VP", "NP-SBJ", "PP=2", "-NONE-", "-LRB-", "TOP"]), atoms)
leaves = st.builds(lambda label, word: Tree(label, (), word), labels, atoms)
random_trees = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda label, children: Tree(label, tuple(children)), labels, st.lists(inner, min_size=1, max_size=4)
    ),
    max_leaves=12,
)
