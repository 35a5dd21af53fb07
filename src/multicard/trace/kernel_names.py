"""Parts of the name of a kernel: the function without its arguments, and a readable form of a mangled name.

Profilers record names as compilers make them: demangled C++ with return type, template arguments and parameters,
mangled C++ (Itanium ABI, https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), or a plain word of C, Triton or
assembly.
"""

import re
from collections.abc import Iterator

# Only this many characters of a name are parsed. Longer names are long because of their arguments, and the rest of
# these does not matter here.
LONGEST = 8192

_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|_GLOBAL__N_\w*")
_OPENING = {")": "(", ">": "<", "]": "[", "}": "{"}

# Tokens of template arguments in a mangled name: `Lb0E` is false, `Li256E` is 256, `S_` refers to an earlier part of
# the name. A source name is preceded by its length. A regular expression cannot use this number, so `_SOURCE_NAME`
# matches the length only, and `_source_name` takes the name from the text.
_LITERAL = re.compile(r"L(?:([a-z])|\d+[A-Za-z_]\w*?)(n?)(\d+)E")
_SOURCE_NAME = re.compile(r"(\d+)")
_REFERENCE = re.compile(r"S[0-9A-Z]*_|S[absiod]|T[0-9]*_|S[t]")
_BUILTIN = re.compile(r"DF\d+[b_x]?|D[a-z]|[a-z]")
_BUILTIN_NAMES = {
    "f": "float", "d": "double", "i": "int", "j": "unsigned", "l": "long", "m": "unsigned long", "b": "bool",
    "c": "char", "h": "unsigned char", "a": "signed char", "s": "short", "t": "unsigned short", "x": "long long",
    "DF16b": "bfloat16", "DF16_": "half", "Dh": "half",
}  # fmt: skip


def function_path(name: str) -> str:
    """Return the namespaces and name of a kernel's function, without return type, template arguments and parameters.

    The result is "" if nothing else is left.

    >>> function_path("void at::native::(anonymous namespace)::reduce_kernel<512, at::native::MaxOp<float>>(int)")
    'at::native::reduce_kernel'
    >>> function_path("std::enable_if<(((8)>(0))), void>::type vllm::rms_norm_kernel<c10::Half, 8>(c10::Half*)")
    'vllm::rms_norm_kernel'
    >>> function_path("_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvPv"), function_path("ampere_sgemm_128x64_tn")
    ('deep_ep::intranode::dispatch', 'ampere_sgemm_128x64_tn')
    """
    name = name[:LONGEST]
    scopes, _ = _mangled_scopes(name)
    if scopes:
        return "::".join(scopes)
    # What is outside of brackets are words of the return type, the function, and the qualifier `const`. The function is
    # the last of these words apart from `const`.
    words = [word for word in _outside_brackets(_UNNAMED.sub("", name)).split() if word != "const"]
    return re.sub("(?:::)+", "::", words[-1]).strip(":") if words else ""


def _outside_brackets(name: str) -> str:
    """Return the characters of a demangled name that are outside of all brackets of any kind."""
    outside: list[str] = []
    unclosed: list[str] = []
    for character in name:
        if character in "(<[{":
            unclosed.append(character)
        elif character in ")>]}":
            # A comparison in a template argument, such as (8)>(0), closes nothing.
            opening = _OPENING[character]
            if opening in unclosed and (character != ">" or unclosed[-1] == "<"):
                while unclosed.pop() != opening:
                    pass
        elif not unclosed:
            outside.append(character)
    return "".join(outside)


def readable_name(name: str) -> str:
    """Return a mangled name as namespaces, function and those template arguments that are names or numbers.

    Any other name is returned as it is. The nesting of template arguments and their references to earlier parts of the
    name are left out. The result is enough to recognize a kernel; `c++filt` gives the exact form.

    >>> readable_name("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0EEEvPT0_PT_Pfi")
    'aiter::add_rmsnorm_quant_kernel<bfloat16, bfloat16, 256, 16, false>'
    >>> readable_name("_Z5saxpyifPfS_"), readable_name("ampere_sgemm_128x64_tn")
    ('saxpy', 'ampere_sgemm_128x64_tn')
    """
    scopes, end = _mangled_scopes(name[:LONGEST])
    if not scopes:
        return name
    function = "::".join(scopes)
    arguments = ", ".join(_template_arguments(name[:LONGEST], end))
    return f"{function}<{arguments}>" if arguments else function


def _mangled_scopes(name: str) -> tuple[list[str], int]:
    """Return namespaces and function of a mangled name, and the index at which template arguments or parameters begin.

    The list is empty if the name is not mangled.
    """
    # A kernel of SYCL has the name of a type (TS), which may be local to a function (Z): _ZTSZZN….
    start = re.match(r"_Z(?:TS)?Z*(?:N[rVK]*|L)?(?=\d)", name)
    if start is None:
        return [], 0
    is_nested = "N" in start.group()
    scopes: list[str] = []
    index = start.end()
    while source_name := _source_name(name, index):
        text, index = source_name
        if not _UNNAMED.fullmatch(text):
            scopes.append(text)
        if not is_nested:
            break
    return scopes, index


def _source_name(name: str, index: int) -> tuple[str, int] | None:
    """Return the source name whose length begins at an index, and the index behind it; None if there is none.

    >>> _source_name("_Z5saxpyifPfS_", 2)
    ('saxpy', 8)
    """
    length = _SOURCE_NAME.match(name, index)
    if length is None:
        return None
    # Only four digits of the length are read. A longer length would be beyond the end of any name.
    end = length.end() + int(length[1][:4])
    text = name[length.end() : end]
    return (text, end) if text.isidentifier() and end <= len(name) else None


def _template_arguments(name: str, index: int) -> Iterator[str]:
    """Yield names and numbers among the template arguments that begin at an index of a mangled name."""
    depth = 0
    while index < len(name):
        if literal := _LITERAL.match(name, index):
            yield _literal_text(literal)
            index = literal.end()
        elif source_name := _source_name(name, index):
            text, index = source_name
            if not _UNNAMED.fullmatch(text):
                yield text
        elif reference := _REFERENCE.match(name, index):
            index = reference.end()
        elif builtin := _BUILTIN.match(name, index):
            if depth and builtin.group() in _BUILTIN_NAMES:
                yield _BUILTIN_NAMES[builtin.group()]
            index = builtin.end()
        else:
            # Each of these letters opens a list, such as template arguments, a nested name or a pack. An E closes it.
            depth += {"I": 1, "N": 1, "J": 1, "X": 1, "F": 1, "L": 1, "E": -1}.get(name[index], 0)
            index += 1
        if depth <= 0:
            # All lists are closed, so the parameters of the function follow.
            return


def _literal_text(literal: re.Match[str]) -> str:
    type_code, minus, digits = literal.groups()
    if type_code == "b":
        return {"0": "false", "1": "true"}.get(digits, digits)
    return f"-{digits}" if minus else digits
