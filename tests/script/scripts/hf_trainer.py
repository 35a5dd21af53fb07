"""A small GPT-2 of Hugging Face's Transformers, trained by its Trainer."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

LENGTH = 16


class Texts(Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index):
        tokens = torch.randint(64, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    torch.manual_seed(0)
    size = {"n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, attn_pdrop=0.0, **size))
    arguments = TrainingArguments(
        output_dir=args.out,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        num_train_epochs=args.epochs,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=[Losses()]).train()


if __name__ == "__main__":
    main()
