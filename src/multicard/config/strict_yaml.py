"""Read a YAML file that may come from anybody. Ambiguous values are refused, and aliases that stand for too much."""

import re
from pathlib import Path
from typing import Any

import yaml

from multicard.core.errors import UserError
from multicard.core.text import quoted

# Most bytes of a file.
MOST_BYTES = 4 << 20
# Most values of a file. An alias counts as all values that it stands for. The configurations of this project have a few
# hundred.
MOST_VALUES = 100_000
# Most digits of a whole number. Python refuses to convert a number with several thousand digits to text.
MOST_DIGITS = 1000
# Plain texts that YAML 1.1 reads differently than YAML 1.2 and most people do. Python's reader follows YAML 1.1.
OCTAL = re.compile(r"[-+]?0[0-9_]+")
SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
SWITCH = re.compile(r"(?i)yes|no|on|off")


class _Loader(yaml.SafeLoader):
    """A loader that refuses a mapping in which a key stands twice. PyYAML would keep the last of its values."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                raise _fault(key_node, f"the key {quoted(key_node.value)} stands here twice")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _UnambiguousLoader(_Loader):
    """A loader that also refuses plain text that YAML 1.1 and 1.2 read differently, and very long numbers."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return the value of a node. Raises `yaml.MarkedYAMLError` if its text is ambiguous, or too long a number."""
        text = node.value
        is_quoted = bool(getattr(node, "style", None))
        if not isinstance(text, str) or is_quoted:
            return super().construct_scalar(node)
        resolved_type = node.tag.rpartition(":")[2]
        if resolved_type == "int" and len(text) > MOST_DIGITS:
            raise _fault(node, f"found a number of {len(text)} digits, expected at most {MOST_DIGITS}")
        if resolved_type in ("int", "float") and SEXAGESIMAL.fullmatch(text):
            raise _fault(node, f"{quoted(text)} is a number to base 60 in YAML 1.1; put text in quotes")
        if resolved_type == "int" and OCTAL.fullmatch(text):
            raise _fault(
                node, f"{quoted(text)} is a number to base 8 in YAML 1.1; leave out the 0, or put it in quotes"
            )
        if resolved_type == "bool" and SWITCH.fullmatch(text):
            raise _fault(node, f"{quoted(text)} is a boolean in YAML 1.1; write true or false, or put it in quotes")
        return super().construct_scalar(node)


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def read_yaml(path: Path, of_snakemake: bool = False) -> Any:
    """Parse a YAML file strictly.

    `of_snakemake`: True for Snakemake's own files, whose values mean what they mean in YAML 1.1.

    Raises `UserError` if the file is missing, too large or not valid YAML, repeats a key, or has aliases that stand for
    too much. Unless `of_snakemake` is True, also if YAML 1.1 and 1.2 read one of its values differently, or a number
    is too long.
    """
    try:
        return _parse(path, _Loader if of_snakemake else _UnambiguousLoader)
    except IsADirectoryError as error:
        raise UserError(f"{path}: found a folder, expected a configuration file (.yaml)") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply, or an alias (*name) contains itself") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}{where}: does not parse as YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: does not parse as YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        # PyYAML takes a text such as 2026-13-01 for a date, and fails because it is none.
        raise UserError(f"{path}: does not parse as YAML: {quoted(str(error))}") from error


def _parse(path: Path, loader_class: type[yaml.SafeLoader]) -> Any:
    """Return the content of a YAML file; None if it is empty. Values are counted before any of them is constructed."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: more than {MOST_BYTES >> 20} MB, expected a configuration")
    loader = loader_class(content.decode("utf-8"))
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _count_values(root, {}) > MOST_VALUES:
            raise UserError(f"{path}: its aliases (*name) stand for more than {MOST_VALUES} values; write less")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of values that a node stands for. An alias counts as all values that it stands for.

    `counts`: the counts of mappings and sequences, by `id` of the node. This function fills it, so that a node is
    counted only once: an alias is the same node object. The count of a node is 0 until all of its values are counted.

    Raises `RecursionError` if a node contains itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if counts.setdefault(id(node), 0):
        return counts[id(node)]
    if isinstance(node, yaml.MappingNode):
        children = [child for key_and_value in node.value for child in key_and_value]
    else:
        children = node.value
    counts[id(node)] = 1 + sum(_count_values(child, counts) for child in children)
    return counts[id(node)]
