"""Names of kernels in parts; expected values as `c++filt` gives them, less what is documented to be left out."""

import random

import pytest

from multicard.trace.kernel_classes import CLASSES, kernel_class
from multicard.trace.kernel_names import LONGEST, function_path, readable_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(T1::Params)", "cutlass::Kernel2"),
        ("void <unnamed>::indexing_backward_kernel<float, (int)4>(const long *)", "indexing_backward_kernel"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(T)", "internal::gemvx::kernel"),
        ("void f<(2>1), a::b<(1<2)>>(int (*)[4])", "f"),
        ("void k<ns::g(int)::{lambda(int)#1}>(int) [clone .kd]", "k"),
        ("_Z5saxpyifPfS_", "saxpy"),
        ("_ZN2at6native12_GLOBAL__N_13addIfEEvT_", "at::native::add"),
        ("_ZTSN2at6native3xpu6KernelIfEE", "at::native::xpu::Kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Z", "_Z"),
        ("_Z99x", "_Z99x"),
        (">>)(", ""),
        ("", ""),
    ],
)
def test_the_path_of_a_function_is_what_its_name_is_without_arguments(name: str, expected: str) -> None:
    assert function_path(name) == expected


def test_mangled_names_with_unequal_template_arguments_stay_unequal() -> None:
    names = [
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0EEEvPT0_",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0EEEvPT0_",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb1EEEvPT0_",
        "_ZN5aiter24add_rmsnorm_quant_kernelIffLi64ELi8ELb1EEEvPT0_",
        "_ZN5aiter24add_rmsnorm_quant_kernelINS_4HalfEfLin64ELi8ELb1EEEvPT0_",
    ]
    arguments = [
        "bfloat16, bfloat16, 256, 16, false",
        "bfloat16, bfloat16, 64, 8, false",
        "bfloat16, bfloat16, 64, 8, true",
        "float, float, 64, 8, true",
        "Half, float, -64, 8, true",
    ]
    assert [readable_name(name) for name in names] == [f"aiter::add_rmsnorm_quant_kernel<{each}>" for each in arguments]


@pytest.mark.parametrize("piece", ["<", "(", "(>", "_ZN", "L1a", "9", "triton_tem_fused_", "miopen", "_ZN1aIL1", "a::"])
def test_of_a_name_of_any_length_only_the_begin_is_looked_at(piece: str) -> None:
    name = piece * 200_000  # with all of it, times that grow with the square of its length would be hours
    assert kernel_class(name) in CLASSES
    assert function_path(f"{name}{'>' * len(name)}") == function_path(name[:LONGEST])
    assert len(readable_name(f"_ZN1a1bI{name}E")) <= 2 * len(name)


def test_no_name_is_refused() -> None:
    chosen = random.Random(5)
    pieces = [
        "_ZN",
        "1a",
        "12_GLOBAL__N_1",
        "I",
        "E",
        "Li",
        "4",
        "Lb1E",
        "<",
        ">",
        "(",
        ")",
        "::",
        " ",
        "S_",
        "DF16b",
        "é",
    ]
    for _ in range(3000):
        name = "".join(chosen.choices(pieces, k=chosen.randint(0, 12)))
        assert kernel_class(name) in CLASSES
        assert isinstance(readable_name(name), str) and isinstance(function_path(name), str)
