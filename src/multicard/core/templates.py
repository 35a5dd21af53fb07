"""Load the Jinja templates of pages. All pages use these functions, because they show text from files.

A template file lies beside the module that renders it. Rendering fails if a template uses a name that it was not given.
Control characters are replaced in every text that a template shows (`visible`).
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from multicard.core.text import code_in_markdown, counted, for_markdown, visible


def html_template(path: Path, filters: Mapping[str, Callable[..., Any]]) -> jinja2.Template:
    """Return a template of HTML, which escapes every text.

    Its filters are those in `filters`; `counted`; and `code`, which shows the parts of a text in backticks as code.
    """
    environment = _environment(path.parent, autoescape=True)
    environment.filters |= {"code": code_in_html, **filters}
    return environment.get_template(path.name)


@cache
def markdown_template(path: Path) -> jinja2.Template:
    """Return a template of Markdown, which escapes nothing by itself: text from files must pass the filter `md`.

    The filter `code` does the same as `md`, but shows the parts of a text in backticks as code. `counted` is a filter,
    too.
    """
    environment = _environment(path.parent, autoescape=False)
    environment.filters |= {"code": code_in_markdown, "md": for_markdown}
    return environment.get_template(path.name)


def code_in_html(text: str) -> Markup:
    """Return text as HTML that shows it literally, except for parts in backticks, which it shows as code.

    >>> print(code_in_html("set `batch_size: 8`, or <b>"))
    set <code>batch_size: 8</code>, or &lt;b&gt;
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _environment(folder: Path, autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_control_characters,
    )
    environment.filters["counted"] = counted
    return environment


def _without_control_characters(value: Any) -> Any:
    """Return a text without control characters; anything else unchanged, such as `Markup`, which is HTML already."""
    return visible(value) if type(value) is str else value
