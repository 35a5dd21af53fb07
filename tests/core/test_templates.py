"""Templates of pages: what they escape, and what they refuse."""

from pathlib import Path

import jinja2
import pytest

from multicard.core.templates import html_template, markdown_template

HOSTILE = "<b> a_b `x_y` \x1b"


def template_in(folder: Path, text: str) -> Path:
    path = folder / "page.j2"
    path.write_text(text)
    return path


def test_html_is_escaped_with_code_in_backticks(tmp_path: Path) -> None:
    path = template_in(tmp_path, "{{ text }}|{{ text | code }}|{{ text | loud }}")
    shown = html_template(path, {"loud": str.upper}).render(text=HOSTILE)
    plain, code, loud = shown.split("|")
    assert plain == "&lt;b&gt; a_b `x_y` �"
    assert code.startswith("&lt;b&gt; a_b <code>x_y</code>")
    assert loud == "&lt;B&gt; A_B `X_Y` �"


def test_markdown_is_escaped_by_its_filters(tmp_path: Path) -> None:
    path = template_in(tmp_path, "{{ text | md }}|{{ text | code }}")
    shown = markdown_template(path).render(text=HOSTILE)
    assert shown == r"\<b\> a\_b \`x\_y\` �|\<b\> a\_b `x_y` �"


def test_a_name_that_is_not_given_is_refused(tmp_path: Path) -> None:
    path = template_in(tmp_path, "{{ missing }}")
    for template in (html_template(path, {}), markdown_template(path)):
        with pytest.raises(jinja2.UndefinedError, match="'missing' is undefined"):
            template.render()
