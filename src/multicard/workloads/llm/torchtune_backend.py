"""Tunes by torchtune's stock recipes, as `tune run RECIPE --config FILE` does.

Recipes are configured, with `multicard.workloads.llm.components` for what is recorded, and neither copied nor changed.
What they need to run here is patched: `_patch_torchao` renames what torchao renamed since, `_patch_for_cpu` replaces
functions that have no CPU side.
"""

import gc
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch.distributed as dist
from omegaconf import OmegaConf
from torchtune import training

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.experiment.machine import torchtune_unsupported_reason
from multicard.experiment.models import ARCHITECTURES
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.techniques import TECHNIQUES

COMPONENTS = "multicard.workloads.llm.components"
PASSES = 1_000_000  # over the data: the run ends when it is measured
LORA = {
    # torchtune's own choice in its configurations of Llama 3.
    "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "apply_lora_to_output": False,
    "lora_dropout": 0.0,
}

# torchtune's modules of models, the ends of their builders' names, and the type of their checkpoints.
MODELS = {
    "llama3_8b": ("llama3", "llama3_8b", "LLAMA3"),
    "llama3_1_8b": ("llama3_1", "llama3_1_8b", "LLAMA3"),
    "llama3_2_1b": ("llama3_2", "llama3_2_1b", "LLAMA3_2"),
}

# torchtune's data sets by the kind of samples, which lie in the file in their normal form (docs/datasets.md).
CHAT = {"_component_": "torchtune.datasets.chat_dataset", "conversation_style": "openai"}
DATASETS: dict[str, dict[str, Any]] = {
    "instruction": {"_component_": "torchtune.datasets.alpaca_dataset"},
    "chat": CHAT | {"conversation_column": "messages"},
    "summary": {"_component_": "torchtune.datasets.samsum_dataset"},
    "grammar": {"_component_": "torchtune.datasets.grammar_dataset"},
    "completion": {"_component_": "torchtune.datasets.text_completion_dataset", "column": "text"},
    # What all techniques but DPO learn from preferences: the chosen answers.
    "preference": CHAT | {"conversation_column": "chosen"},
    "pairs": {"_component_": "torchtune.datasets.preference_dataset"},
}


def tune(p: LlmParameters, model: dict[str, Any], texts: dict[str, Any], train_file: Path, output: Path) -> None:
    """Run one rank of the job, for as long as it is observed.

    Parameters
    ----------
    model, texts
        What provenance.json says of the prepared model and data.
    train_file
        The samples.
    output
        Folder that takes what torchtune writes: its log of losses.
    """
    if unsupported := torchtune_unsupported_reason():
        raise UserError(unsupported)
    _patch_torchao()
    if p.device == "cpu":
        _patch_for_cpu()
    output.mkdir(parents=True, exist_ok=True)
    with atomic_write(output / "recipe.yaml") as temporary:  # every rank writes the same
        OmegaConf.save(OmegaConf.create(_settings(p, model, texts, train_file, output)), temporary)
    sys.argv = ["tune", "run", TECHNIQUES[p.technique].recipe_name(p), "--config", str(output / "recipe.yaml")]
    [command] = entry_points(group="console_scripts", name="tune")
    command.load()()


def _settings(
    p: LlmParameters, model: dict[str, Any], texts: dict[str, Any], train_file: Path, output: Path
) -> dict[str, Any]:
    """The configuration of the stock recipe."""
    return {
        "output_dir": str(output),
        "tokenizer": {
            "_component_": "torchtune.models.llama3.llama3_tokenizer",
            "path": model["tokenizer"],
            "special_tokens_path": model["special_tokens"],
            "max_seq_len": p.sequence_length,
        },
        "model": _model(p, model["architecture"]),
        "checkpointer": {
            "_component_": f"{COMPONENTS}.ReadingCheckpointer",
            "checkpoint_dir": model["folder"],
            "checkpoint_files": model["checkpoint_files"],
            "recipe_checkpoint": None,
            "output_dir": str(output),
            "model_type": MODELS.get(model["architecture"], ("", "", "LLAMA3"))[2],
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
            "weight_decay": 0.01,
            "lr": p.peak_learning_rate,
        },
        "lr_scheduler": {
            "_component_": f"{COMPONENTS}.schedule",
            "steps": p.total_steps,
            "warmup_steps": p.warmup_steps,
        },
        "loss": {"_component_": f"{COMPONENTS}.marked_loss", "of": TECHNIQUES[p.technique].loss},
        "epochs": PASSES,
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
        "log_peak_memory_stats": False,  # the observer reads and resets these counters
        "device": p.device,
        "dtype": p.precision,
        "enable_activation_checkpointing": p.activation_checkpointing,
        "enable_activation_offloading": False,
        **TECHNIQUES[p.technique].settings(p),
    }


def _model(p: LlmParameters, architecture: str) -> dict[str, Any]:
    adapters: dict[str, Any] = {}
    if p.trains_adapters:
        rank = {"lora_rank": p.lora_rank, "lora_alpha": p.lora_alpha}
        adapters = LORA | rank | TECHNIQUES[p.technique].adapter_settings()
    prefix = "lora_" if p.trains_adapters else ""
    if architecture in MODELS:
        module, name, _ = MODELS[architecture]
        return {"_component_": f"torchtune.models.{module}.{prefix}{name}", **adapters}
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


def _dataset(p: LlmParameters, texts: dict[str, Any], train_file: Path) -> dict[str, Any]:
    kind = "pairs" if TECHNIQUES[p.technique].pairs else texts["kind"]
    return {
        "_component_": f"{COMPONENTS}.CountedData",
        "of": DATASETS[kind] | {"source": "json", "data_files": str(train_file), "split": "train"},
        "needed": p.batch_size * p.gradient_accumulation_steps * p.devices,
        "packed": p.packed,
    }


def _patch_torchao() -> None:
    """Give torchao's classes of fake quantization the names by which torchtune 0.6.1 asks for them.

    torchao 0.13 renamed them; its deprecated subclass of the old name fails an assertion of torchtune.
    """
    from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer, api, fake_quantizer

    api.FakeQuantizeConfig = IntxFakeQuantizeConfig
    fake_quantizer.FakeQuantizer = IntxFakeQuantizer


def _patch_for_cpu() -> None:
    """Replace what the recipes call without asking for the kind of device."""
    join = dist.init_process_group
    dist.init_process_group = lambda *_arguments, **_options: join("gloo")  # the recipes name NCCL
    training.get_memory_stats = lambda **_: dict.fromkeys(
        ("peak_memory_active", "peak_memory_alloc", "peak_memory_reserved"), 0.0
    )
    training.log_memory_stats = lambda *_: None
    training.cleanup_before_training = gc.collect
