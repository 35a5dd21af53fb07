"""Components of multicard's in the configuration of a stock recipe: torchtune's own, with marks (`multicard.marks`)."""

from collections import Counter
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torchtune import config
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX
from torchtune.training import FullModelHFCheckpointer
from torchtune.training.lr_schedulers import get_cosine_schedule_with_warmup

from multicard import marks
from multicard.core.errors import UserError
from multicard.core.layout import REWARDS

SEQUENCES = ("tokens", "chosen_input_ids", "rejected_input_ids")  # of samples; the latter two of DPO's


class _Step:
    """What the recipe's loader, which works in the rank's own process, gave to the current step."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.weight = 0.0  # of the latest batch in the loss of the step

    def end(self, *_: Any) -> None:
        """The weights are updated."""
        marks.step(**self.counts)
        self.counts.clear()


STEP = _Step()


class CountedData:
    """A data set of torchtune's, whose batches are counted on the host, before they are collated.

    Parameters
    ----------
    tokenizer
        The recipe's.
    of
        Configuration of the data set.
    needed
        Samples that a step takes, on all ranks.
    packed
        Whether a sample is a pack of several; the recipe reads it from the configuration, too.
    """

    def __init__(self, tokenizer: Any, of: dict[str, Any], needed: int, packed: bool = False):
        options = {"packed": True} if packed else {}
        self._data = config.instantiate(OmegaConf.create(of | options), tokenizer=tokenizer)
        self._tokenizer = tokenizer
        if len(self._data) < needed:
            raise UserError(f"batch_size: a step of all devices needs {needed} samples, found {len(self._data)}")
        marks.training()  # the model, the loss and the optimizer are there

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        """The samples of a batch, as PyTorch's loader asks for them."""
        samples = [self._data[number] for number in numbers]
        self._count(samples)
        return samples

    def _count(self, samples: list[dict[str, Any]]) -> None:
        sequences = [np.asarray(sample[name]) for sample in samples for name in SEQUENCES if name in sample]
        # A pack holds one sample for each position 0.
        packs = [np.asarray(sample["input_pos"]) for sample in samples if "input_pos" in sample]
        labels = [np.asarray(sample["labels"]) for sample in samples if "labels" in sample]
        STEP.weight = float(sum((each != CROSS_ENTROPY_IGNORE_IDX).sum() for each in labels)) if labels else 1.0
        if not STEP.weight:
            raise UserError(f"sequence_length: {self._tokenizer.max_seq_len} cuts off every answer of a batch")
        STEP.counts.update(
            samples=sum(int((each == 0).sum()) for each in packs) if packs else len(samples),
            tokens=sum(int((each != self._tokenizer.pad_id).sum()) for each in sequences),
            padded_tokens=len(sequences) * max(map(len, sequences)),
        )


def marked_loss(of: dict[str, Any]) -> Any:
    """A loss of torchtune's by its configuration, whose values are recorded; DPO's come with rewards of the answers."""

    def log(_module: Any, _inputs: Any, found: Any) -> None:
        loss, *rewards = found if isinstance(found, tuple) else (found,)
        values = {"loss": loss}
        if rewards:
            chosen, rejected = (each.detach() for each in rewards)
            # Compared when they are read: in the step that would be work of ours.
            values |= dict(zip(REWARDS, (chosen, rejected, lambda: chosen > rejected), strict=True))
        marks.log(**values, weight=STEP.weight)

    loss = config.instantiate(OmegaConf.create(of))
    loss.register_forward_hook(log)
    return loss


def marked_adamw(parameters: Any, **options: Any) -> AdamW:
    """An optimizer whose updates end steps."""
    optimizer = AdamW(parameters, **options)
    optimizer.register_step_post_hook(STEP.end)
    return optimizer


def schedule(optimizer: AdamW, num_training_steps: int, last_epoch: int, steps: int, warmup_steps: int) -> LambdaLR:
    """Learning rates of a training of `steps` steps, for which the recipe says another number."""
    return get_cosine_schedule_with_warmup(optimizer, warmup_steps, steps, last_epoch=last_epoch)


class ReadingCheckpointer(FullModelHFCheckpointer):
    """Reads weights, and writes none after each pass over the data."""

    def save_checkpoint(self, *_arguments: Any, **_options: Any) -> None:
        """Nothing: the run is a measurement."""
