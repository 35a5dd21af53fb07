"""Tunes by torchtune's stock recipes; the only module that knows torchtune.

A recipe is loaded from torchtune's installation and subclassed, to have it pass over its data without end and mark its
steps and losses (`multicard.marks`); it is run as torchtune would, and not copied. What else it needs to run here is
patched: `_patch_torchao` renames what torchao renamed since, `_patch_for_cpu` replaces functions that have no CPU side.
"""

import gc
import importlib.util
import inspect
import itertools
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torchtune
from omegaconf import OmegaConf
from torchtune import training
from torchtune._recipe_registry import get_all_recipes
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX

from multicard import marks
from multicard.core.errors import UserError
from multicard.core.layout import REWARDS
from multicard.experiment.machine import torchtune_unsupported_reason
from multicard.experiment.models import ARCHITECTURES
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.technique import TECHNIQUES

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
    settings = OmegaConf.create(_settings(p, model, texts, train_file, output))
    recipe = _load_recipe(TECHNIQUES[p.technique].recipe_name(p))
    if p.device == "cpu":
        _patch_for_cpu(recipe)
    marked = _marked(recipe, p)
    # The recipe's entry looks its class up by name; its decorator, which reads the command line, is left out.
    setattr(recipe, marked.__name__, marked)
    recipe.recipe_main.__wrapped__(settings)


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
            "_component_": "torchtune.training.FullModelHFCheckpointer",
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
            "_component_": "torch.optim.AdamW",
            "fused": True,
            "weight_decay": 0.01,
            "lr": p.peak_learning_rate,
        },
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": p.warmup_steps,
        },
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "epochs": 1,
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
    where = {"source": "json", "data_files": str(train_file), "split": "train"}
    if TECHNIQUES[p.technique].pairs:
        return {"_component_": "torchtune.datasets.preference_dataset", **where}
    return {**DATASETS[texts["kind"]], **where, "packed": p.packed}


def _load_recipe(name: str) -> types.ModuleType:
    """Load a stock recipe from its file, as a module of our own."""
    file = next(recipe.file_path for recipe in get_all_recipes() if recipe.name == name)
    path = Path(torchtune.__file__).parent.parent / "recipes" / file
    spec = importlib.util.spec_from_file_location(f"stock_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _marked(recipe: types.ModuleType, p: LlmParameters) -> type:
    """Subclass the recipe's class so that it trains without end, and marks its steps and losses."""
    own = [cls for _, cls in inspect.getmembers(recipe, inspect.isclass) if cls.__module__ == recipe.__name__]
    [stock] = [cls for cls in own if hasattr(cls, "train")]

    class Marked(stock):
        def _setup_data(self, *arguments: Any, **options: Any) -> Any:
            made = super()._setup_data(*arguments, **options)
            loader = made[1] if isinstance(made, tuple) else made
            if len(loader) < p.gradient_accumulation_steps:
                needed, found = p.batch_size * p.gradient_accumulation_steps, len(loader.sampler)
                raise UserError(
                    f"batch_size: {p.batch_size} x gradient_accumulation_steps {p.gradient_accumulation_steps} needs "
                    f"{needed} samples per rank, found {found}"
                )
            self.feed = Feed(loader, p, self._tokenizer.pad_id)
            return (made[0], self.feed) if isinstance(made, tuple) else self.feed

        def train(self) -> None:
            self._loss_fn.register_forward_hook(lambda _module, _inputs, found: self.feed.log(found))
            self._optimizer.register_step_post_hook(lambda *_: self.feed.end_step())
            if marks.training():
                super().train()

    Marked.__name__ = stock.__name__
    return Marked


class Feed:
    """Stands in for a recipe's loader: gives its batches again and again, and counts what is in them."""

    def __init__(self, loader: Any, p: LlmParameters, padding: int):
        self._loader, self._p, self._padding = loader, p, padding
        self._counts: Counter[str] = Counter()  # of the step
        self._weight = 0.0  # of the batch in the loss of the step

    def __len__(self) -> int:
        return self._p.total_steps * self._p.gradient_accumulation_steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        for epoch in itertools.count():
            self._loader.sampler.set_epoch(epoch)
            for batch in self._loader:
                self._count(batch)
                yield batch

    def _count(self, batch: Any) -> None:
        """Count a batch while it is on the host: a dict of (b, s) tensors, or DPO's (2b, s) tokens and labels."""
        if isinstance(batch, dict):
            tokens, labels = batch["tokens"], batch["labels"]
            # A packed sequence holds one sample for each position 0.
            samples = int((batch["input_pos"] == 0).sum()) if "input_pos" in batch else len(tokens)
            self._weight = float((labels != CROSS_ENTROPY_IGNORE_IDX).sum())
        else:
            tokens, _ = batch
            samples, self._weight = len(tokens) // 2, 1.0
        if not self._weight:
            p = self._p
            raise UserError(f"sequence_length: {p.sequence_length} cuts off every answer of a batch of {p.dataset}")
        count = {"samples": samples, "tokens": int((tokens != self._padding).sum()), "padded_tokens": tokens.numel()}
        self._counts.update(count)

    def log(self, found: Any) -> None:
        """Record a loss; DPO's comes with the rewards of the chosen and of the rejected answers."""
        loss, *rewards = found if isinstance(found, tuple) else (found,)
        values = {"loss": loss}
        if rewards:
            chosen, rejected = (each.detach() for each in rewards)
            # Compared when they are read: in the step that would be work of ours.
            values |= dict(zip(REWARDS, (chosen, rejected, lambda: chosen > rejected), strict=True))
        marks.log(**values, weight=self._weight)

    def end_step(self) -> None:
        """The weights are updated."""
        marks.step(**self._counts)
        self._counts.clear()


def _patch_torchao() -> None:
    """Give torchao's classes of fake quantization the names by which torchtune 0.6.1 asks for them.

    torchao 0.13 renamed them; its deprecated subclass of the old name fails an assertion of torchtune.
    """
    from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer, api, fake_quantizer

    api.FakeQuantizeConfig = IntxFakeQuantizeConfig
    fake_quantizer.FakeQuantizer = IntxFakeQuantizer


def _patch_for_cpu(recipe: types.ModuleType) -> None:
    """Replace what the recipes call without asking for the kind of device."""

    def join(*_arguments: Any, **_options: Any) -> None:
        dist.init_process_group("gloo")  # the recipes name NCCL

    recipe.init_process_group = join
    training.get_memory_stats = lambda **_: dict.fromkeys(
        ("peak_memory_active", "peak_memory_alloc", "peak_memory_reserved"), 0.0
    )
    training.log_memory_stats = lambda *_: None
    training.cleanup_before_training = gc.collect
