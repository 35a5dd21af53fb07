"""Torchtune's stock recipes without what lies round them: their own models, optimizers and loops on invented data."""

import inspect
import runpy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer
from torchtune import config
from torchtune._cli.run import ROOT
from torchtune._recipe_registry import get_all_recipes

from multicard.programs.llm import torchtune_backend as backend
from multicard.programs.llm.libraries.torchtune import RECIPES
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.models import Architecture

TECHNIQUES = {
    "lora": {"technique": "lora"},
    "qlora": {"technique": "qlora"},
    "qat of adapters": {"technique": "qat"},
    "qat of weights": {"technique": "qat", "qat_of": "weights"},
    "dpo": {"technique": "dpo"},
    "full": {"technique": "full"},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Batches(list):
    """Stands in for a recipe's data loader; calls `before` with the number of each batch."""

    sampler = MagicMock()
    before: Callable[[int], None] = staticmethod(lambda number: None)

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self)):
            self.before(number)
            batch = self[number]
            yield dict(batch) if isinstance(batch, dict) else batch

    def state_dict(self) -> dict[str, Any]:
        """Nothing to resume from."""
        return {}


def make_recipe(p: LlmParameters, shape: Architecture, steps: int) -> Any:
    """A recipe ready to train, whose model and optimizer its own methods have made."""
    backend.patch_torchao()
    with patch.object(dist, "init_process_group"):  # other tests in this process join groups of their own
        backend.patch_for_cpu()
    name = RECIPES[p.technique].full_name(p)
    [file] = [recipe.file_path for recipe in get_all_recipes() if recipe.name == name]
    module = runpy.run_path(str(ROOT / "recipes" / file))
    [kind] = [found for found in module.values() if isinstance(found, type) and hasattr(found, "_setup_model")]
    recipe = kind.__new__(kind)
    _fill(recipe, p)
    weights = {name: torch.randn(size, dtype=recipe._dtype) for name, size in _weights(shape).items()}
    offered = {
        "cfg_model": OmegaConf.create(_model(p, shape)),
        "enable_activation_checkpointing": p.activation_checkpointing,
        "enable_activation_offloading": False,
        "compile_model": False,
        "fsdp_cpu_offload": False,
        "reshard_after_forward": True,
        "base_model_state_dict": weights,
        "model_state_dict": weights,
        "quantizer_cfg": _component(
            "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer", groupsize=p.qat_group
        ),
    }
    asked = inspect.signature(kind._setup_model).parameters
    recipe._model = recipe._setup_model(**{name: value for name, value in offered.items() if name in asked})
    recipe._optimizer = recipe._setup_optimizer(_component("torch.optim.AdamW", fused=True, lr=1e-3))
    if p.technique == "dpo":
        recipe._loss_fn = config.instantiate(_component("torchtune.rlhf.loss.DPOLoss"))
    else:
        recipe._loss_fn = config.instantiate(_component("torchtune.modules.loss.CEWithChunkedOutputLoss"))
        recipe._model.set_num_output_chunks(recipe._loss_fn.num_output_chunks)
        recipe.ignore_labels_cache = torch.full((p.batch_size, 1), -100)
    recipe._dataloader = _batches(p, shape, steps)
    return recipe


def held_by_rank(rank: int, ranks: int, cases: list[tuple[LlmParameters, Architecture]], meeting: Path) -> list[dict]:
    """Train one step of each job as one of `ranks` real processes; give what is held after the update."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    found = []
    for p, shape in cases:
        recipe = make_recipe(p, shape, steps=1)
        recipe.rank, recipe._is_rank_zero = rank, rank == 0
        model, optimizer, held = recipe._model, recipe._optimizer, []
        optimizer.register_step_post_hook(lambda *_, m=model, o=optimizer, h=held: h.append(count(m, o)))
        with quiet():
            recipe.train()
        found += held
    dist.destroy_process_group()
    return found


@contextmanager
def quiet() -> Iterator[None]:
    with redirect_stderr(StringIO()):
        yield


def _fill(recipe: Any, p: LlmParameters) -> None:
    """What the loops read from the recipe, beside what they train."""
    vars(recipe).update(
        _device=torch.device("cpu"),
        _dtype=DTYPES[p.precision],
        _gradient_accumulation_steps=p.gradient_accumulation_steps,
        _log_every_n_steps=10**9,
        data_parallel_dim=p.devices,
        tensor_parallel_dim=1,
        world_size=p.devices,
        dp_size=p.devices,
        rank=0,
        seed=0,
        epochs_run=0,
        total_epochs=1,
        global_step=0,
        _steps_per_epoch=1,
        _is_rank_zero=True,
    )
    absent = ("max_steps_per_epoch", "_clip_grad_norm", "_fake_quant_after_n_steps")
    off = ("_compile", "_model_compile", "_optimizer_in_bwd", "_log_peak_memory_stats", "profiler_profile_memory")
    silent = ("_lr_scheduler", "_metric_logger", "_profiler", "_sampler", "_checkpoint_client", "save_checkpoint")
    vars(recipe).update(dict.fromkeys(absent) | dict.fromkeys(off, False) | {name: MagicMock() for name in silent})


def _component(name: str, **settings: Any) -> Any:
    return OmegaConf.create({"_component_": name, **settings})


def _model(p: LlmParameters, shape: Architecture) -> dict[str, Any]:
    family, prefix = "llama3_2" if shape.tied else "llama3", "lora_" if p.trains_adapters else ""
    adapters = {"lora_rank": p.lora_rank, "lora_alpha": p.lora_alpha, "quantize_base": p.technique == "qlora"}
    return {
        "_component_": f"torchtune.models.{family}.{prefix}{family}",
        "vocab_size": shape.vocabulary,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "embed_dim": shape.embedding,
        "intermediate_dim": shape.feed_forward,
        "max_seq_len": shape.max_sequence,
        **(backend.LORA | adapters if p.trains_adapters else {}),
    }


def _weights(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, by torchtune's names."""
    sizes = {"tok_embeddings.weight": (shape.vocabulary, shape.embedding), "norm.scale": (shape.embedding,)}
    if not shape.tied:
        sizes["output.weight"] = (shape.vocabulary, shape.embedding)
    for layer in range(shape.layers):
        for name, size in shape.linear_shapes.items():
            sizes[f"layers.{layer}.{'mlp' if name[0] == 'w' else 'attn'}.{name}.weight"] = size
        for name in ("sa_norm", "mlp_norm"):
            sizes[f"layers.{layer}.{name}.scale"] = (shape.embedding,)
    return sizes


def _batches(p: LlmParameters, shape: Architecture, steps: int) -> Batches:
    def tokens(rows: int) -> torch.Tensor:
        return torch.randint(0, shape.vocabulary, (rows, p.sequence_length))

    if p.technique == "dpo":
        return Batches(
            (tokens(2 * p.batch_size), tokens(2 * p.batch_size)) for _ in range(steps * p.gradient_accumulation_steps)
        )
    return Batches(
        {"tokens": tokens(p.batch_size), "labels": tokens(p.batch_size)}
        for _ in range(steps * p.gradient_accumulation_steps)
    )


def count(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    """Bytes on this rank after an update, before its gradients are dropped; the numbers of weights of the whole model.

    `weights` are those that are frozen, or all where none is; `adapters` are trained beside frozen ones; `buffers` are
    tables that are not trained, such as those of rotary positions.

    Storage that several tensors share counts once, and completely: FSDP pads its shards, and lets the gradients of a
    layer share one buffer. Of a weight in NF4 every inner tensor counts.
    """
    parameters = list(model.parameters())  # each once, however many modules use it
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    seen: set[int] = set()
    return {
        "weights": _bytes(frozen or trained, seen),
        "adapters": _bytes(trained, seen) if frozen else 0,
        "gradients": _bytes((parameter.grad for parameter in trained if parameter.grad is not None), seen),
        "optimizer": _bytes(states, seen),
        "buffers": _bytes(model.buffers(), seen),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in trained),
    }


def _bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Bytes of the storages that are not in `seen`, which takes them in."""
    total = 0
    for tensor in tensors:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The plain tensors of this rank inside a tensor: the shard of a DTensor, the codes and scales of an NF4Tensor."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))
