"""The claims of paper A, arXiv 2503.15252, in our words, with the tests that check them against measurements."""

import re
from functools import partial

from multicard.papers.claim import Claim
from multicard.papers.claim_tests import ApiTimeShare, Compared, Efficiency, RelativeScaling, Trend
from multicard.papers.conditions import LARGE_IMAGES, LARGE_MODELS, LLM, VISION, Where

# What all runs of the paper's figure of strategies have in common.
FIGURE_1: Where = {
    **VISION,
    "precision": "fp32",
    "pin_memory": False,
    "loader": "torch",
    "layout": "nchw",
    "binding": "none",
    "preset": "paper",
}
FIGURE_1_STRATEGIES = ("ddp-ds", "dp")

throughput = partial(Compared, where=VISION, measure="throughput_samples_per_s", excludes_data_waits=True)

CLAIMS = (
    Claim(
        id="ddp_ds_scales",
        claim="Distributed data parallelism with a distributed sampler scales well for image classification; plain "
        "data parallelism, with or without one process per GPU, does not.",
        paper="A",
        source="arXiv 2503.15252, figure 1 and summaries",
        refuted_if="The pooled efficiency of ddp-ds is below 75%, or that of dp is above.",
        hardware="gpu",
        size=(LARGE_IMAGES,),
        our_choice="A strategy scales well from an efficiency of 75%, in FP32 without pinned memory, as in the figure. "
        "The strategies are compared where both ddp-ds and dp ran: with the same data, image size and number of GPUs, "
        "all with PyTorch's own settings (preset paper) and without binding. Plain ddp does not decide: every rank "
        "passes over all of the data, so a pass takes as long on more GPUs as on one at best. That is its definition, "
        "whatever is measured. One process drives all GPUs under dp, so it is judged only where data is there in time.",
        tests=(
            Efficiency(
                statement="On several devices ddp-ds keeps more than 75% of the distinct samples per second of one "
                "device, per device.",
                where={**FIGURE_1, "strategy": "ddp-ds"},
                strategies=FIGURE_1_STRATEGIES,
                excludes_data_waits=True,
                above=0.75,
            ),
            Efficiency(
                statement="dp keeps less than 75% of the distinct samples per second of one device, per device.",
                where={**FIGURE_1, "strategy": "dp"},
                strategies=FIGURE_1_STRATEGIES,
                excludes_data_waits=True,
                below=0.75,
            ),
        ),
    ),
    Claim(
        id="fp16_speedup",
        claim="FP32 and FP16 substantially speed up training, FP16 by up to 210%, and preserve accuracy.",
        paper="A",
        source="arXiv 2503.15252, summaries",
        refuted_if="The pooled gain of FP32 or of FP16 over FP64 is below 20%, that of FP16 with 500 px on one GPU is "
        "below 210%, or FP16 loses more than a hundredth of the accuracy.",
        hardware="gpu",
        size=(LARGE_IMAGES,),
        our_choice="The gain is over FP64, 20% is substantial, and accuracy is preserved when at most a hundredth of "
        "it is lost. A gain of 210% is 3.1 times the speed. It is expected where arithmetic is the largest part of a "
        "step: with the papers' largest images on one GPU. Chosen among all configurations after measuring, the "
        "largest gain would always be too large.",
        tests=(
            throughput(
                statement="Training in FP32 is more than 20% faster than in FP64.",
                variant={"precision": "fp32"},
                baseline={"precision": "fp64"},
                above=1.2,
            ),
            throughput(
                statement="Training in FP16 is more than 20% faster than in FP64.",
                variant={"precision": "fp16"},
                baseline={"precision": "fp64"},
                above=1.2,
            ),
            throughput(
                statement="With images of 500 px on one GPU, FP16 is at least 210% faster than FP64.",
                where={**VISION, "image_size": 500, "devices": 1},
                variant={"precision": "fp16"},
                baseline={"precision": "fp64"},
                above=3.1,
            ),
            Compared(
                statement="After full epochs, FP16 has more than 99% of the test accuracy of FP32 or FP64.",
                where={**VISION, "steps_per_epoch": None},
                variant={"precision": "fp16"},
                baseline={"precision": lambda precision: precision in ("fp32", "fp64")},
                measure="test_accuracy",
                above=0.99,
            ),
        ),
    ),
    Claim(
        id="pin_memory_gain",
        claim="Pinned memory makes training 16 to 30% faster, less so with more GPUs.",
        paper="A",
        source="arXiv 2503.15252, summaries",
        refuted_if="The pooled gain is below 16% or above 30%, or it does not fall from the fewest to the most GPUs.",
        hardware="gpu",
        size=(LARGE_IMAGES,),
        our_choice="The claim's range is one over configurations, so it is the pooled gain that must lie inside it; "
        "single gains may lie outside. The gain falls when the ratio of speeds is lower by at least 2% on the most "
        "GPUs.",
        tests=(
            throughput(
                statement="With pin_memory training is 16 to 30% faster, all configurations pooled.",
                variant={"pin_memory": True},
                baseline={"pin_memory": False},
                above=1.16,
                below=1.30,
            ),
            Trend(
                statement="The gain is smaller on the most GPUs than on the fewest.",
                where=VISION,
                variant={"pin_memory": True},
                baseline={"pin_memory": False},
                measure="throughput_samples_per_s",
                excludes_data_waits=True,
                below=0.98,
            ),
        ),
    ),
    Claim(
        id="llm_scaling_is_smaller",
        claim="Fine-tuning language models gains less from more GPUs than image classification.",
        paper="A",
        source="arXiv 2503.15252, figure 4 and summaries",
        refuted_if="On equal numbers of GPUs, the pooled speed-up of fine-tuning is not smaller than that of image "
        "classification.",
        hardware="gpu",
        size=(LARGE_IMAGES, LARGE_MODELS),
        our_choice="Image classification is by ddp-ds in FP32, with PyTorch's loader and layout. Geometric means over "
        "all configurations with the same number of GPUs are compared, then pooled over these numbers. A difference of "
        "less than 2% is none.",
        tests=(
            RelativeScaling(
                statement="On the same number of GPUs, the speed-up of fine-tuning a language model is smaller than "
                "that of ddp-ds on images.",
                where=LLM,
                than={**VISION, "strategy": "ddp-ds", "precision": "fp32", "loader": "torch", "layout": "nchw"},
                excludes_data_waits=True,
                below=0.98,
            ),
        ),
    ),
    Claim(
        id="llm_bound_by_launch_and_sync",
        claim="Fine-tuning language models spends its CUDA API time on kernel launches and synchronization, not on "
        "memory transfers.",
        paper="A, B",
        source="arXiv 2503.15252, figure 5; arXiv 2505.22905, summaries",
        refuted_if="Half or more of the time in CUDA calls is spent on other calls than launches and synchronization, "
        "such as copies.",
        hardware="gpu",
        size=(LARGE_MODELS,),
        our_choice="Its CUDA API time is spent there if that is more than half of it. The papers say no more than "
        "this, and it does not show that launches limit the speed: the host of a job whose GPU is always busy waits in "
        "synchronization as well.",
        tests=(
            ApiTimeShare(
                statement="More than half of the time in CUDA calls is spent on launches and synchronization.",
                where=LLM,
                functions=re.compile("^(cuda|cu)(Launch|GraphLaunch)|Synchronize"),
                above=0.5,
            ),
        ),
    ),
)
