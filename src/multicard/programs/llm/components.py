"""Components that the configuration of a stock recipe names: torchtune's own, with marks (`multicard.marks`)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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
from multicard.programs.llm.libraries.torchtune import Settings

# A sample as torchtune makes it: its sequences of numbers, such as tokens and labels, by torchtune's names.
Sample: TypeAlias = Mapping[str, Any]
# Keys of a sample's sequences of tokens; DPO's samples have the last two.
SEQUENCES = ("tokens", "chosen_input_ids", "rejected_input_ids")


class _Step:
    """Counts of the current step. `CountedData` can add to them because the recipe loads in the process that trains."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        # Weight of the latest batch in the mean loss of the step: the number of its tokens that are learned. 1 for DPO.
        self.weight = 0.0

    def end(self, *_: Any) -> None:
        """Mark the end of the step; called after the weights are updated."""
        marks.step(**self.counts)
        self.counts.clear()


STEP = _Step()


class CountedData:
    """A data set of torchtune that counts its batches for the current step, on the host, before they are collated.

    Parameters
    ----------
    tokenizer
        The recipe's tokenizer.
    data
        Configuration of torchtune's data set.
    needed
        Number of samples that a step takes, on all ranks.
    packed
        True if a sample is a pack of several; the recipe reads this from the configuration, too.

    Raises `UserError` if there are fewer samples than a step takes. Reading a batch raises `UserError` if it has no
    token to learn, because all its answers are cut off.
    """

    def __init__(self, tokenizer: Any, data: Settings, needed: int, packed: bool = False):
        if packed:
            data = data | {"packed": True}
        self._data = config.instantiate(OmegaConf.create(data), tokenizer=tokenizer)
        self._tokenizer = tokenizer
        if len(self._data) < needed:
            raise UserError(f"batch_size: a step of all devices needs {needed} samples, found {len(self._data)}")
        # Training begins here: recipes make the data set last, after the model, the loss and the optimizer.
        marks.training()

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, numbers: list[int]) -> list[Sample]:
        """Return the samples of a batch; PyTorch's loader calls this once per batch."""
        samples = [self._data[number] for number in numbers]
        self._count(samples)
        return samples

    def _count(self, samples: Sequence[Sample]) -> None:
        labels = _arrays(samples, "labels")
        STEP.weight = 1.0
        if labels:
            learned_tokens = _count(labels, lambda label: label != CROSS_ENTROPY_IGNORE_IDX)
            STEP.weight = float(learned_tokens)
        if not STEP.weight:
            raise UserError(f"sequence_length: {self._tokenizer.max_seq_len} cuts off every answer of a batch")
        sample_count = len(samples)
        positions = _arrays(samples, "input_pos")
        if positions:
            # Only packed samples have positions; each of them begins at position 0.
            sample_count = _count(positions, lambda position: position == 0)
        sequences = _arrays(samples, *SEQUENCES)
        tokens = _count(sequences, lambda token: token != self._tokenizer.pad_id)
        # Sequences are padded to the longest of their batch.
        longest = max(map(len, sequences))
        STEP.counts.update(samples=sample_count, tokens=tokens, padded_tokens=len(sequences) * longest)


def _arrays(samples: Sequence[Sample], *names: str) -> list[np.ndarray]:
    """Return the sequences of all samples that have these names; a sample may lack some of the names."""
    return [np.asarray(sample[name]) for sample in samples for name in names if name in sample]


def _count(arrays: list[np.ndarray], condition: Callable[[np.ndarray], np.ndarray]) -> int:
    """Return the number of values of all arrays for which a condition holds."""
    return sum(int(condition(array).sum()) for array in arrays)


def marked_loss(loss: Settings) -> Any:
    """Return a loss of torchtune that logs each of its values and, for DPO, the rewards of both answers.

    `loss`: configuration of the loss.
    """

    def log(_module: Any, _inputs: Any, output: Any) -> None:
        if not isinstance(output, tuple):
            marks.log(loss=output, weight=STEP.weight)
            return
        value, chosen_reward, rejected_reward = output
        chosen = chosen_reward.detach()
        rejected = rejected_reward.detach()
        # The observer calls the function after the measured steps, so that the comparison adds no work to a step.
        rewards = (chosen, rejected, lambda: chosen > rejected)
        marks.log(loss=value, **dict(zip(REWARDS, rewards, strict=True)), weight=STEP.weight)

    module = config.instantiate(OmegaConf.create(loss))
    module.register_forward_hook(log)
    return module


def marked_adamw(parameters: Any, **options: Any) -> AdamW:
    """Return an optimizer that marks the end of a step after each of its updates."""
    optimizer = AdamW(parameters, **options)
    optimizer.register_step_post_hook(STEP.end)
    return optimizer


def schedule(optimizer: AdamW, num_training_steps: int, last_epoch: int, steps: int, warmup_steps: int) -> LambdaLR:
    """Return the schedule of learning rates over `steps`; the recipe's own number of steps is ignored."""
    return get_cosine_schedule_with_warmup(optimizer, warmup_steps, steps, last_epoch=last_epoch)


class ReadingCheckpointer(FullModelHFCheckpointer):
    """A checkpointer that reads weights and writes none."""

    def save_checkpoint(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing: the run is a measurement."""
