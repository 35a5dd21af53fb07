"""Parts of the name of a kernel: the function without its arguments, and a readable form of a mangled name.

Profilers record names as compilers make them: demangled C++ with return type, template arguments and parameters,
mangled C++ (Itanium ABI, https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), or a plain word of C, Triton or
assembly.
"""

import re
from collections.abc import Iterator

LONGEST = 8192  # characters of a name that are looked at: of some functions their arguments alone are longer

_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|_GLOBAL__N_\w*")
_OPENING = {")": "(", ">": "<", "]": "[", "}": "{"}

# Tokens of template arguments in a mangled name. The length of a source name stands before it, so its text is taken
# apart from these expressions.
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
    """Return namespaces and name of a kernel's function, without return type, template arguments and parameters.

    >>> function_path("void at::native::(anonymous namespace)::reduce_kernel<512, at::native::MaxOp<float>>(int)")
    'at::native::reduce_kernel'
    >>> function_path("std::enable_if<(((8)>(0))), void>::type vllm::rms_norm_kernel<c10::Half, 8>(c10::Half*)")
    'vllm::rms_norm_kernel'
    >>> function_path("_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvPv"), function_path("ampere_sgemm_128x64_tn")
    ('deep_ep::intranode::dispatch', 'ampere_sgemm_128x64_tn')
    """
    name = name[:LONGEST]
    scopes = _mangled_scopes(name)[0]
    if scopes:
        return "::".join(scopes)
    kept: list[str] = []
    unclosed: list[str] = []
    for character in _UNNAMED.sub("", name):
        if character in "(<[{":
            unclosed.append(character)
        elif character in ")>]}":
            # A comparison in a template argument, such as (8)>(0), closes nothing.
            opening = _OPENING[character]
            if opening in unclosed and (character != ">" or unclosed[-1] == "<"):
                while unclosed.pop() != opening:
                    pass
        elif not unclosed:
            kept.append(character)
    words = [word for word in "".join(kept).split() if word != "const"]
    return re.sub("(?:::)+", "::", words[-1]).strip(":") if words else ""


def readable_name(name: str) -> str:
    """Return a mangled name as namespaces, function and the template arguments that tell it from others.

    Any other name is returned as it is. Template arguments come without their nesting, and without references to what
    the name holds already, which says enough to recognize a kernel; `c++filt` gives the exact form.

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
    """Return namespaces and function of a mangled name, and where its template arguments or parameters begin."""
    # Kernels of SYCL have the name of a type, which may be local to a function: _ZTSZZN….
    start = re.match(r"_Z(?:TS)?Z*(?:N[rVK]*|L)?(?=\d)", name)
    if start is None:
        return [], 0
    is_nested = "N" in start.group()
    scopes: list[str] = []
    at = start.end()
    while found := _source_name(name, at):
        text, at = found
        if not _UNNAMED.fullmatch(text):
            scopes.append(text)
        if not is_nested:
            break
    return scopes, at


def _source_name(name: str, at: int) -> tuple[str, int] | None:
    """Return the source name that begins with its length at a place, and the place behind it; None for none."""
    length = _SOURCE_NAME.match(name, at)
    if length is None:
        return None
    end = length.end() + int(length[1][:4])
    text = name[length.end() : end]
    return (text, end) if text.isidentifier() and end <= len(name) else None


def _template_arguments(name: str, at: int) -> Iterator[str]:
    """Yield names and numbers among the template arguments that begin at a place of a mangled name."""
    depth = 0
    while at < len(name):
        if literal := _LITERAL.match(name, at):
            kind, sign, digits = literal.groups()
            number = f"-{digits}" if sign else digits
            yield {"0": "false", "1": "true"}.get(digits, digits) if kind == "b" else number
            at = literal.end()
        elif found := _source_name(name, at):
            text, at = found
            if not _UNNAMED.fullmatch(text):
                yield text
        elif reference := _REFERENCE.match(name, at):
            at = reference.end()
        elif builtin := _BUILTIN.match(name, at):
            if depth and builtin.group() in _BUILTIN_NAMES:
                yield _BUILTIN_NAMES[builtin.group()]
            at = builtin.end()
        else:
            depth += {"I": 1, "N": 1, "J": 1, "X": 1, "F": 1, "L": 1, "E": -1}.get(name[at], 0)
            at += 1
        if depth <= 0:  # the parameters follow
            return
