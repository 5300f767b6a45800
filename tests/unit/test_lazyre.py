"""Patterns that are compiled at their first use behave as compiled ones."""

import re

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re


def test_it_answers_as_a_compiled_pattern_does():
    lazy, eager = lazy_re.compile(r"(?P<a>b+)", re.I), re.compile(r"(?P<a>b+)", re.I)
    assert lazy.search("xBb")["a"] == eager.search("xBb")["a"]
    assert (lazy.sub("-", "abBa"), lazy.pattern, lazy.flags) == (eager.sub("-", "abBa"), eager.pattern, eager.flags)


def test_nothing_is_compiled_before_the_first_use():
    wrong = lazy_re.compile("(")
    with pytest.raises(re.error):
        wrong.match("")
