"""The blocks of code in the documents, and the commands in them.

A block is marked by `<!-- needs a GPU -->` (or another of `NEEDS`) in the line before it, a command by these words in
a comment at its end.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from markdown_it import MarkdownIt

from conftest import ROOT

NEEDS = ("a GPU", "a cluster", "the internet")
MARK = re.compile(rf"needs (?:[\w ]+ and )?({'|'.join(NEEDS)})\b")

SHELL = ("sh", "bash", "console", "")  # an indented block has no language


@dataclass(frozen=True)
class Block:
    """A block of code: its language, what it says, the text before it, and what it needs that is not here."""

    language: str
    text: str
    before: str
    needs: str | None

    @property
    def commands(self) -> list[str]:
        """Commands of a block for the shell, without comments; those that need what is not here are left out."""
        if self.language not in SHELL or self.needs:
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        parts = [re.split(r"(?:^| +)# ", line.removeprefix("$ "), maxsplit=1) for line in lines]
        return [
            command.strip()
            for command, *comment in parts
            if command.strip() and not (comment and MARK.search(comment[0]))
        ]

    @property
    def settings(self) -> Any:
        """What a block of YAML says, or an indented one that is a mapping; None for any other."""
        if self.language not in ("yaml", "yml", ""):
            return None
        try:
            found = yaml.safe_load(self.text)
        except yaml.YAMLError:
            return None
        return found if isinstance(found, dict) or self.language else None


def blocks(page: str) -> list[Block]:
    return list(parsed((ROOT / page).read_text(encoding="utf-8")))


def parsed(text: str) -> Iterator[Block]:
    before, marks = "", ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline":
            before, marks = token.content, ""
        elif token.type == "html_block":
            marks = token.content
        elif token.type in ("fence", "code_block"):
            mark = MARK.search(marks)
            yield Block(token.info.split(" ")[0], token.content, before, mark[1] if mark else None)
            marks = ""


def shell_commands(page: str) -> list[str]:
    return [command for block in blocks(page) if block.settings is None for command in block.commands]
