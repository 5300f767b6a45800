"""The page of a fleet whose every text is hostile: all of it is text there; tests/system/test_page.py shows it to a browser."""

from __future__ import annotations

import pytest

from provision.commands.report import ReportDocument
from provision.lib.clean import clean
from provision.render.report import html
from tests.attack.test_printed import EVIL, made_of
from tests.unit.test_report import Page

MARKUP = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title></template><svg/onload=alert(1)>",
    "{{ 7*7 }}{% for x in () %}",
    "javascript:alert(1)",
    "<!--",
    EVIL,
]
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "script",
        "header",
        "main",
        "nav",
        "footer",
        "section",
        "div",
        "p",
        "a",
    ),
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "ul",
        "li",
        "span",
        "label",
        "input",
        "select",
        "option",
        "button",
        "details",
        "summary",
        "code",
    ),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "br"),
}
ATTRIBUTES = {
    *(
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "href",
        "id",
        "hidden",
        "type",
        "role",
        "scope",
        "value",
    ),
    *(
        "data-live",
        "data-find",
        "data-label",
        "aria-label",
        "aria-labelledby",
        "autocomplete",
        "spellcheck",
        "tabindex",
    ),
}


@pytest.mark.parametrize("text", MARKUP, ids=range(len(MARKUP)))
def test_hostile_text_makes_no_tag_and_no_attribute(text):
    page = html(made_of(ReportDocument, text))
    read = Page(page)
    assert {tag for tag, _ in read.tags} <= TAGS
    assert {name for _, attributes in read.tags for name in attributes} <= ATTRIBUTES
    assert [tag for tag, _ in read.tags].count("script") == 1
    links = [attributes["href"] for tag, attributes in read.tags if tag == "a"]
    assert all(link.startswith("#") for link in links)
    assert clean(text) in read.text, "it is shown, as text"
    page.encode()
    assert all(line == clean(line) for line in page.split("\n"))
