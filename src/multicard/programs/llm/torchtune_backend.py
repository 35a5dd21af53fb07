"""Tune by torchtune's stock recipes, as `tune run RECIPE --config FILE` does.

The recipes are neither copied nor changed. Their configuration names `multicard.programs.llm.components`, which record
steps and losses. Two patches let the recipes run here: `patch_torchao` restores names that torchao has changed since
torchtune 0.6.1, `patch_for_cpu` replaces functions that work only on GPUs.
"""

import gc
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import torch.distributed as dist
from omegaconf import OmegaConf
from torchtune import training

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.programs.llm.libraries.torchtune import RECIPES, Settings
from multicard.programs.llm.library import EPOCHS, WEIGHT_DECAY
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.machine import torchtune_unsupported_reason
from multicard.programs.models import ARCHITECTURES
from multicard.programs.provenance import ModelProvenance, TextProvenance

COMPONENTS = "multicard.programs.llm.components"
# The settings of `library.ADAPTED_LINEARS`.
LORA = {
    "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "apply_lora_to_output": False,
    "lora_dropout": 0.0,
}


@dataclass(frozen=True)
class PublishedModel:
    """torchtune's names of a published model."""

    module: str  # module of torchtune.models
    builder: str  # function of the module that builds the model; `lora_` precedes it for a model with adapters
    checkpoint: str  # type of the checkpoint


# Published models by architecture. Other architectures are built from their numbers, as `Architecture` states them, and
# their checkpoints are of the type LLAMA3.
MODELS = {
    "llama3_8b": PublishedModel("llama3", "llama3_8b", "LLAMA3"),
    "llama3_1_8b": PublishedModel("llama3_1", "llama3_1_8b", "LLAMA3"),
    "llama3_2_1b": PublishedModel("llama3_2", "llama3_2_1b", "LLAMA3_2"),
}

# Configurations of torchtune's data sets by the kind of samples; `prepare_texts` writes their file.
CHAT = {"_component_": "torchtune.datasets.chat_dataset", "conversation_style": "openai"}
DATASETS: dict[str, Settings] = {
    "instruction": {"_component_": "torchtune.datasets.alpaca_dataset"},
    "chat": CHAT | {"conversation_column": "messages"},
    "summary": {"_component_": "torchtune.datasets.samsum_dataset"},
    "grammar": {"_component_": "torchtune.datasets.grammar_dataset"},
    "completion": {"_component_": "torchtune.datasets.text_completion_dataset", "column": "text"},
    # With all techniques except DPO, samples of the kind `preference` are read so: only the chosen answers are learned.
    "preference": CHAT | {"conversation_column": "chosen"},
    # With DPO, samples of the kind `preference` are read so.
    "pairs": {"_component_": "torchtune.datasets.preference_dataset"},
}


def tune(p: LlmParameters, model: ModelProvenance, texts: TextProvenance, train_file: Path, output: Path) -> None:
    """Run one rank of the job until the observer ends the program; see `Library.tune`.

    Raises `UserError` if torchtune is not installed or not of a supported version.
    """
    if unsupported := torchtune_unsupported_reason():
        raise UserError(unsupported)
    patch_torchao()
    if p.device == "cpu":
        patch_for_cpu()
    output.mkdir(parents=True, exist_ok=True)
    # Every rank writes this file, with the same content.
    with atomic_write(output / "recipe.yaml") as temporary:
        OmegaConf.save(OmegaConf.create(recipe_settings(p, model, texts, train_file, output)), temporary)
    sys.argv = ["tune", "run", RECIPES[p.technique].full_name(p), "--config", str(output / "recipe.yaml")]
    [command] = entry_points(group="console_scripts", name="tune")
    command.load()()


def recipe_settings(
    p: LlmParameters, model: ModelProvenance, texts: TextProvenance, train_file: Path, output: Path
) -> Settings:
    """Return the configuration of the stock recipe."""
    published = MODELS.get(model.architecture)
    return {
        "output_dir": str(output),
        "tokenizer": {
            "_component_": "torchtune.models.llama3.llama3_tokenizer",
            "path": model.tokenizer,
            "special_tokens_path": model.special_tokens,
            "max_seq_len": p.sequence_length,
        },
        "model": _model(p, model.architecture),
        "checkpointer": {
            "_component_": f"{COMPONENTS}.ReadingCheckpointer",
            "checkpoint_dir": model.folder,
            "checkpoint_files": list(model.checkpoint_files),
            "recipe_checkpoint": None,
            "output_dir": str(output),
            "model_type": published.checkpoint if published else "LLAMA3",
        },
        "resume_from_checkpoint": False,
        "save_adapter_weights_only": True,
        "dataset": _dataset(p, texts, train_file),
        "seed": p.seed + p.repeat - 1,
        "shuffle": True,
        "batch_size": p.batch_size,
        "optimizer": {
            "_component_": f"{COMPONENTS}.marked_adamw",
            "fused": True,
            "weight_decay": WEIGHT_DECAY,
            "lr": p.peak_learning_rate,
        },
        "lr_scheduler": {
            "_component_": f"{COMPONENTS}.schedule",
            "steps": p.total_steps,
            "warmup_steps": p.warmup_steps,
        },
        "loss": {"_component_": f"{COMPONENTS}.marked_loss", "loss": RECIPES[p.technique].loss},
        "epochs": EPOCHS,
        "max_steps_per_epoch": None,
        "gradient_accumulation_steps": p.gradient_accumulation_steps,
        "optimizer_in_bwd": False,
        "compile": p.compile,
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": str(output),
            "filename": "losses.txt",
        },
        "log_every_n_steps": 1,
        # The observer reads and resets the counters of peak memory, so the recipe must not.
        "log_peak_memory_stats": False,
        "device": p.device,
        "dtype": p.precision,
        "enable_activation_checkpointing": p.activation_checkpointing,
        "enable_activation_offloading": False,
        **RECIPES[p.technique].settings(p),
    }


def _model(p: LlmParameters, architecture: str) -> Settings:
    """Return the name of torchtune's builder of the model, and its arguments."""
    adapters: Settings = {}
    if p.trains_adapters:
        rank = {"lora_rank": p.lora_rank, "lora_alpha": p.lora_alpha}
        adapters = LORA | rank | RECIPES[p.technique].adapter_settings
    prefix = "lora_" if p.trains_adapters else ""
    if architecture in MODELS:
        published = MODELS[architecture]
        return {"_component_": f"torchtune.models.{published.module}.{prefix}{published.builder}", **adapters}
    shape = ARCHITECTURES[architecture]
    return {
        "_component_": f"torchtune.models.llama3.{prefix}llama3",
        "vocab_size": shape.vocabulary,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "embed_dim": shape.embedding,
        "intermediate_dim": shape.feed_forward,
        "max_seq_len": shape.max_sequence,
        "norm_eps": shape.norm_epsilon,
        "rope_base": int(shape.rope_base),
        **adapters,
    }


def _dataset(p: LlmParameters, texts: TextProvenance, train_file: Path) -> Settings:
    """Return the configuration of `CountedData`, which makes a data set of torchtune and counts its batches."""
    form = "pairs" if TECHNIQUES[p.technique].pairs else texts.kind
    return {
        "_component_": f"{COMPONENTS}.CountedData",
        "data": DATASETS[form] | {"source": "json", "data_files": str(train_file), "split": "train"},
        "needed": p.batch_size * p.gradient_accumulation_steps * p.devices,
        "packed": p.packed,
    }


def patch_torchao() -> None:
    """Give torchao's classes of fake quantization the names by which torchtune 0.6.1 imports them.

    torchao 0.13 renamed them; its deprecated subclass with the old name fails an assertion of torchtune.
    """
    from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer, api, fake_quantizer

    api.FakeQuantizeConfig = IntxFakeQuantizeConfig
    fake_quantizer.FakeQuantizer = IntxFakeQuantizer


def patch_for_cpu() -> None:
    """Replace functions that work only on GPUs, although the recipes call them on CPUs, too."""
    join = dist.init_process_group
    # The recipes ask for NCCL, which works only on GPUs.
    dist.init_process_group = lambda *_arguments, **_options: join("gloo")
    training.get_memory_stats = lambda **_: dict.fromkeys(
        ("peak_memory_active", "peak_memory_alloc", "peak_memory_reserved"), 0.0
    )
    training.log_memory_stats = lambda *_: None
    training.cleanup_before_training = gc.collect
