"""Texts cut to a length stay apart."""

import random

from multicard.core.text import cut_apart

KERNEL = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{}<float>, std::array<char *, 2>>(int)"


def test_kernels_that_differ_in_a_template_argument_show_it() -> None:
    fill, add = (KERNEL.format(functor) for functor in ("FillFunctor", "CUDAFunctor_add"))
    first, second, other = cut_apart([fill, add, "gemm"], 70)
    assert "FillFunctor<float>" in first and "CUDAFunctor_add<float>" in second and other == "gemm"
    assert max(map(len, (first, second))) == 70


def test_unequal_texts_stay_unequal_and_short_enough_wherever_they_differ() -> None:
    chosen = random.Random(3)
    for longest in (12, 30, 70):
        for _ in range(200):
            base = "".join(chosen.choices("ab:<", k=chosen.randint(1, 300)))
            texts = [base]
            for _ in range(chosen.randint(1, 4)):
                at = chosen.randrange(len(base) + 1)
                texts.append(base[:at] + chosen.choice(["", "x", "yy", "z" * 90]) + base[at:])
            cut = cut_apart(texts, longest)
            assert max(map(len, cut)) <= longest
            assert len(set(cut)) == len(set(texts)), (texts, cut)
            # Short texts stay as they are.
            assert all(shown == text for shown, text in zip(cut, texts, strict=True) if len(text) <= longest)
