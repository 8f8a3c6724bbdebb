"""Fills in the templates of this package."""

from __future__ import annotations

from collections.abc import Mapping

import jinja2


def render(name: str, facts: Mapping[str, object]) -> str:
    """The template called ``name`` with these facts; one that it names and does not get is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fuzz.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # what is made is Python and Markdown, not HTML
    )
    return environment.get_template(name).render(facts)
