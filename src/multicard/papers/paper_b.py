"""The claims of paper B, arXiv 2505.22905, in our words, with the tests that check them against measurements."""

from functools import partial

from multicard.papers.claim import Claim
from multicard.papers.claim_tests import AccuracyReached, Compared, Efficiency
from multicard.papers.conditions import LARGE_IMAGES, LARGE_MODELS, LLM, VISION

SUMMARIES = "arXiv 2505.22905, summaries"

# FP32 is PyTorch's default. A step in FP64 is so long that images of any size scale, and one in FP16 is shorter.
DDP_DS_IN_FP32 = {**VISION, "strategy": "ddp-ds", "precision": "fp32"}

LORA = {"technique": "lora"}
QLORA = {"technique": "qlora"}
DPO = {"technique": "dpo"}
QAT = {"technique": "qat"}
QAT_OF_WEIGHTS = {**QAT, "qat_of": "weights"}
OTHER_THAN_QAT = {"LoRA": LORA, "QLoRA": QLORA, "DPO": DPO}

# Each technique has a learning rate of its own, and only QAT trains either all weights or adapters.
SETTINGS_OF_TECHNIQUES = ("learning_rate", "qat_of")

iteration_time = partial(
    Compared,
    where=LLM,
    measure="iteration_time_s",
    may_differ=SETTINGS_OF_TECHNIQUES,
    excludes_data_waits=True,
)
peak_memory = partial(Compared, where=LLM, measure="peak_memory_bytes", may_differ=SETTINGS_OF_TECHNIQUES)

CLAIMS = (
    Claim(
        id="large_images_scale",
        claim="Adding GPUs pays off only for large images.",
        paper="B",
        source=SUMMARIES,
        refuted_if="In FP32, the pooled efficiency of ddp-ds with large images is below 75%, or that with small images "
        "is above.",
        hardware="gpu",
        our_choice="Images of at least 300 px are large and those of at most 100 px small (the papers' sizes are 100 "
        "to 500 px), and GPUs pay off from an efficiency of 75%. Both are judged in FP32, PyTorch's default: a step in "
        "FP64 is so long that images of any size scale, and one in FP16 is shorter.",
        tests=(
            Efficiency(
                statement="With images of 300 px or more the efficiency of ddp-ds is above 75%.",
                where={**DDP_DS_IN_FP32, "image_size": lambda pixels: pixels >= 300},
                excludes_data_waits=True,
                above=0.75,
            ),
            Efficiency(
                statement="With images of 100 px or less it is below.",
                where={**DDP_DS_IN_FP32, "image_size": lambda pixels: pixels <= 100},
                excludes_data_waits=True,
                below=0.75,
            ),
        ),
    ),
    Claim(
        id="nhwc_gain",
        claim="The memory layout NHWC is faster than NCHW.",
        paper="B",
        source=SUMMARIES,
        refuted_if="The pooled speed in NHWC is less than 2% above that in NCHW.",
        hardware="gpu",
        size=(LARGE_IMAGES,),
        our_choice="A gain of less than 2% is none.",
        tests=(
            Compared(
                statement="Training in NHWC is more than 2% faster than in NCHW.",
                where=VISION,
                variant={"layout": "nhwc"},
                baseline={"layout": "nchw"},
                measure="throughput_samples_per_s",
                excludes_data_waits=True,
                above=1.02,
            ),
        ),
    ),
    Claim(
        id="dali_gain",
        claim="NVIDIA DALI is faster than PyTorch's DataLoader on a NUMA machine.",
        paper="B",
        source=SUMMARIES,
        refuted_if="The pooled speed with DALI is less than 2% above that with the DataLoader.",
        hardware="numa",
        size=(LARGE_IMAGES,),
        our_choice="A gain of less than 2% is none. The claim is about loading data, so runs that wait for it are "
        "judged; the DataLoader has the workers that the configuration gives it. Images must be files (`stored_size`): "
        "from arrays DALI calls Python for every batch.",
        tests=(
            Compared(
                statement="Training with DALI is more than 2% faster than with the DataLoader.",
                where=VISION,
                variant={"loader": "dali"},
                baseline={"loader": "torch"},
                measure="throughput_samples_per_s",
                above=1.02,
            ),
        ),
    ),
    Claim(
        id="lora_faster_and_smaller_than_dpo",
        claim="LoRA iterates faster and needs less GPU memory than DPO.",
        paper="B",
        source=SUMMARIES,
        refuted_if="The pooled iteration time or peak memory of LoRA is less than 2% below that of DPO.",
        hardware="gpu",
        size=(LARGE_MODELS,),
        our_choice="A difference of less than 2% is none.",
        tests=(
            iteration_time(
                statement="An iteration of LoRA takes less time than one of DPO.",
                variant=LORA,
                baseline=DPO,
                below=0.98,
            ),
            peak_memory(statement="LoRA needs less memory than DPO.", variant=LORA, baseline=DPO, below=0.98),
        ),
    ),
    Claim(
        id="qlora_smallest",
        claim="QLoRA needs the least GPU memory, at the cost of time.",
        paper="B",
        source=SUMMARIES,
        refuted_if="The pooled peak memory of QLoRA is less than 2% below that of LoRA, of QAT or of DPO, or its "
        "iteration is less than 2% longer than LoRA's.",
        hardware="gpu",
        size=(LARGE_MODELS,),
        our_choice="A difference of less than 2% is none. It costs time if its iteration is longer than LoRA's.",
        tests=(
            peak_memory(statement="QLoRA needs less memory than LoRA.", variant=QLORA, baseline=LORA, below=0.98),
            peak_memory(
                statement="QLoRA needs less memory than QAT, of adapters or of all weights.",
                variant=QLORA,
                baseline=QAT,
                below=0.98,
            ),
            peak_memory(statement="QLoRA needs less memory than DPO.", variant=QLORA, baseline=DPO, below=0.98),
            iteration_time(
                statement="An iteration of QLoRA takes longer than one of LoRA.",
                variant=QLORA,
                baseline=LORA,
                above=1.02,
            ),
        ),
    ),
    Claim(
        id="qat_heaviest",
        claim="QAT is the slowest technique and needs the most GPU memory.",
        paper="B",
        source=SUMMARIES,
        refuted_if="The pooled iteration time or peak memory of QAT of all weights is less than 2% above that of LoRA, "
        "of QLoRA or of DPO.",
        hardware="gpu",
        size=(LARGE_MODELS,),
        our_choice="A difference of less than 2% is none. The other techniques are the paper's, LoRA, QLoRA and DPO. "
        "Whether the paper's QAT trained all weights or adapters is not known. The claim is judged by all weights "
        "(`qat_of: weights`), which is what torchtune calls quantization-aware training; its recipe of QAT with LoRA, "
        "added in 2024 (pull request 1931), holds no optimizer state for the weights and is lighter than DPO by our "
        "own estimate of memory.",
        tests=(
            *(
                iteration_time(
                    statement=f"An iteration of QAT of all weights takes longer than one of {name}.",
                    variant=QAT_OF_WEIGHTS,
                    baseline=technique,
                    above=1.02,
                )
                for name, technique in OTHER_THAN_QAT.items()
            ),
            *(
                peak_memory(
                    statement=f"QAT of all weights needs more memory than {name}.",
                    variant=QAT_OF_WEIGHTS,
                    baseline=technique,
                    above=1.02,
                )
                for name, technique in OTHER_THAN_QAT.items()
            ),
        ),
    ),
    Claim(
        id="mnist_accuracy",
        claim="MobileNet v2 reaches 98 to 99% accuracy on MNIST within 20 epochs.",
        paper="B",
        source=SUMMARIES,
        refuted_if="The pooled highest test accuracy in the first 20 epochs is below 98%.",
        hardware="any",
        our_choice="The goal is 98%, and more is no contradiction. Only runs of 20 epochs or more are judged, so that "
        "runs that ended early do not count only when they succeed.",
        tests=(
            AccuracyReached(
                statement="The highest test accuracy in the first 20 epochs, each a full pass, is above 98%.",
                where={
                    **VISION,
                    "data_source": lambda source: source in ("mnist", "kaggle-mnist"),
                    "steps_per_epoch": None,
                    "epochs": lambda epochs: epochs >= 20,
                },
                epochs=20,
                above=0.98,
            ),
        ),
    ),
)
