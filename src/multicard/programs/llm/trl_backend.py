"""Tune by TRL's trainers, on the batches that torchtune's recipes would train on.

The trainers are not changed: `MarkedTrainer` overrides what they document for that purpose (`get_train_dataloader`,
`create_optimizer`, `create_scheduler`, `compute_loss`), and `Marks` is a callback.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    Trainer,
    TrainerCallback,
    get_cosine_schedule_with_warmup,
)
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from multicard import marks
from multicard.core.layout import REWARDS
from multicard.observe.record.visible import rank_devices
from multicard.programs.llm.library import ADAPTED_LINEARS, DPO_BETA, EPOCHS, WEIGHT_DECAY
from multicard.programs.llm.llama3_format import read_tokenizer
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.llm.tiny import NAMES
from multicard.programs.llm.trl_data import Collator, PairCollator, TextCollator, TorchtuneOrder, tokenized
from multicard.programs.provenance import ModelProvenance, TextProvenance

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Hugging Face's names of the layers that get adapters.
ADAPTED_NAMES = [NAMES[linear].rpartition(".")[2] for linear in ADAPTED_LINEARS]
# TRL's names of the values in `REWARDS`, in the same order.
REWARDS_OF_TRL = ("rewards/chosen", "rewards/rejected", "rewards/accuracies")


class Marks(TrainerCallback):
    """Marks the begin of training and the end of each step, with the numbers that `MarkedTrainer` counted for it."""

    def __init__(self, counts: Counter[str]):
        self._counts = counts

    def on_train_begin(self, *_arguments: Any, **_options: Any) -> None:
        """Mark the begin of training; called when model, optimizer and loader are made."""
        marks.training()

    def on_log(self, *_arguments: Any, **options: Any) -> None:
        """Mark the end of a step; called once after each, with the values that the trainer logs."""
        logs: dict[str, float] = options["logs"]
        rewards = {name: logs[key] for name, key in zip(REWARDS, REWARDS_OF_TRL, strict=True) if key in logs}
        if rewards:
            # Means over all ranks: the trainer logs no others.
            marks.log(**rewards)
        marks.step(**self._counts)
        self._counts.clear()


class MarkedTrainer(Trainer):
    """A trainer that reads samples in torchtune's order, trains with its optimizer and schedule, and logs each loss.

    `p`: parameters of the run. `collator`: makes the batches. `options`: further arguments of the trainer.
    """

    # Set when they are used here; the trainer's own types allow for None.
    model: Any
    optimizer: Any
    train_dataset: Any

    def __init__(self, p: LlmParameters, collator: Collator, **options: Any):
        self._p = p
        self._collator = collator
        self._counts: Counter[str] = Counter()
        super().__init__(data_collator=collator, callbacks=[Marks(self._counts)], **options)
        for parameter in self.model.parameters():
            # TRL and PEFT choose the type of adapters themselves, whatever that of the model is.
            if parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[p.precision])

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this rank's batches."""
        loader = DataLoader(
            self.train_dataset,
            batch_size=self._p.batch_size,
            sampler=TorchtuneOrder(len(self.train_dataset), self._p),
            collate_fn=self._collator,
            drop_last=True,
            pin_memory=self.args.dataloader_pin_memory,
        )
        # Accelerate gives each rank every n-th batch, and moves batches to the device.
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """Return AdamW, which decays all weights that are trained; by default norms would not be decayed."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = AdamW(trained, lr=self._p.peak_learning_rate, weight_decay=WEIGHT_DECAY, fused=True)
        self.optimizer = optimizer
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Return the schedule of learning rates over the run's steps; the trainer's own number of steps is ignored."""
        schedule = get_cosine_schedule_with_warmup(self.optimizer, self._p.warmup_steps, self._p.total_steps)
        self.lr_scheduler = schedule
        return schedule

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch, log it, and count the batch for the current step."""
        loss: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch = self._collator.trained()
        self._counts.update(samples=batch.samples, tokens=batch.tokens, padded_tokens=batch.padded_tokens)
        if num_items_in_batch is None:
            # DPO's loss is a mean over pairs.
            marks.log(loss=loss)
            return loss
        # The loss is a sum over this rank's learned tokens, divided by the mean of the ranks' numbers of learned tokens
        # in the whole step.
        tokens_of_step = num_items_in_batch / self.accelerator.num_processes
        mean_loss = loss.detach() * (tokens_of_step / batch.learned_tokens)
        marks.log(loss=mean_loss, weight=float(batch.learned_tokens))
        return loss


class TextTrainer(MarkedTrainer, SFTTrainer):
    """Trains on the learned tokens of texts."""


class LogitsLoss(SFTTrainer):
    """Computes the loss from the logits of the model.

    TRL's own loss multiplies by the weights of the output layer without calling it, and so would not round them.
    """

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch as every trainer computes it that does not override this."""
        return Trainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)


class LogitsTrainer(MarkedTrainer, LogitsLoss):
    """Trains on the learned tokens of texts, by a model whose output layer rounds its inputs and weights."""


class PairTrainer(MarkedTrainer, DPOTrainer):
    """Trains on pairs of a chosen and a rejected answer."""


def tune(p: LlmParameters, model: ModelProvenance, texts: TextProvenance, train_file: Path, output: Path) -> None:
    """Run one rank of the job until the observer ends the program; see `Library.tune`."""
    special_tokens = Path(model.special_tokens) if model.special_tokens else None
    tokenizer = read_tokenizer(Path(model.tokenizer), special_tokens)
    is_paired = TECHNIQUES[p.technique].pairs
    rank = os.environ.get("RANK", "0")
    samples = tokenized(p, texts.kind, is_paired, train_file, tokenizer, output / f"samples-{rank}")
    options = {
        "p": p,
        "model": _read_model(p, model),
        "processing_class": tokenizer,
        "peft_config": _adapters(p) if p.trains_adapters else None,
    }
    if is_paired:
        trainer: MarkedTrainer = PairTrainer(
            args=DPOConfig(**_arguments(p, output), beta=DPO_BETA, max_length=None),
            collator=PairCollator(tokenizer.pad_token_id, p.sequence_length),
            # The trainer tokenizes what it is given here, in its own way. It is given one sample that is not trained.
            train_dataset=Dataset.from_list([{"prompt": "question", "chosen": "yes", "rejected": "no"}]),
            **options,
        )
        trainer.train_dataset = samples
    else:
        is_output_rounded = p.imitates_quantization and not p.trains_adapters
        text_trainer = LogitsTrainer if is_output_rounded else TextTrainer
        trainer = text_trainer(
            args=SFTConfig(**_arguments(p, output), max_length=None, dataset_kwargs={"skip_prepare_dataset": True}),
            collator=TextCollator(tokenizer.pad_token_id, p.sequence_length),
            train_dataset=samples,
            **options,
        )
    trainer.train()


def _read_model(p: LlmParameters, model: ModelProvenance) -> Any:
    """Return the model with its weights, in the run's precision or in NF4; for QAT, with layers that round."""
    options: dict[str, Any] = {}
    if p.quantizes_weights:
        [device] = rank_devices(p)
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPES[p.precision],
        )
        # Weights are quantized while they are read to their device.
        options = {"quantization_config": quantization, "device_map": {"": device}}
    language_model = AutoModelForCausalLM.from_pretrained(
        model.folder, dtype=DTYPES[p.precision], attn_implementation="sdpa", local_files_only=True, **options
    )
    if p.imitates_quantization:
        # Imported here because other runs do not need torchao, which may be missing.
        from multicard.programs.llm.trl_quantization import round_linears

        # The recipes of torchtune round the same layers. PEFT puts adapters beside them, which do not round.
        round_linears(language_model, p.qat_group, ADAPTED_NAMES if p.trains_adapters else None)
    return language_model


def _adapters(p: LlmParameters) -> LoraConfig:
    """Return the configuration of the adapters. They are initialized as torchtune's: A at random, B with zeros."""
    return LoraConfig(
        r=p.lora_rank,
        lora_alpha=p.lora_alpha,  # type: ignore[arg-type]  # PEFT divides any number by the rank
        lora_dropout=0.0,
        target_modules=ADAPTED_NAMES,
        task_type="CAUSAL_LM",
    )


def _arguments(p: LlmParameters, output: Path) -> dict[str, Any]:
    """Return the arguments that both trainers have."""
    return {
        "output_dir": str(output),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": p.batch_size,
        "gradient_accumulation_steps": p.gradient_accumulation_steps,
        "seed": p.seed + p.repeat - 1,
        "max_grad_norm": 0.0,  # no clipping
        # The model is in the run's precision already; these would keep it in fp32 and compute in bf16.
        "bf16": False,
        "activation_checkpointing": p.activation_checkpointing,
        "torch_compile": p.compile,
        "use_cpu": p.device == "cpu",
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": p.device == "cuda",
        "remove_unused_columns": False,
        # `Marks` ends a step when the trainer logs it.
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
