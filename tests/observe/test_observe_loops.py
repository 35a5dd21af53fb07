"""Loops as people write them: whatever they do, a step is what lies between two updates of their first optimizer."""

from pathlib import Path

import pytest

from observed_scripts import WINDOWS, Server, after_head

pytestmark = pytest.mark.slow

# Scripts by what is special about them. Each step draws 8 samples, unless a comment says otherwise.
LOOPS = {
    "an optimizer around another, called in parts": """
    class Around(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            super().step()
            inner.step()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = Around(model.parameters(), lr=0.1)
    while True:
        for x, y in loader:
            loss_of(x, y).backward()
            optimizer.step()
            optimizer.step()
    """,
    "a step that schedulers and the script have replaced": """
    import functools
    from torch.optim.lr_scheduler import LinearLR, SequentialLR, StepLR
    schedule = SequentialLR(optimizer, [LinearLR(optimizer), StepLR(optimizer, 2)], [2])
    optimizer.step = functools.partial(optimizer.step)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(x, y).backward()
            optimizer.step()
            schedule.step()
    """,
    "an optimizer of one's own on a stream": """
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad
    class Stream(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.randn(4), 1
    optimizer = Own(model.parameters())
    for x, y in DataLoader(Stream(), batch_size=8):
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
    """,
    "gradients without a backward pass, from an endless iterator": """
    def endless():
        while True:
            yield from loader
    for x, y in endless():
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss_of(x, y), parameters)):
            parameter.grad = gradient
        optimizer.step()
    """,
    "updates that a gradient scaler skips": """
    scaler, updates = torch.amp.GradScaler("cpu", init_scale=4.0), 0
    while True:
        for x, y in loader:
            loss = loss_of(x, y)
            scaler.scale(loss * float("inf") if updates in (2, 3) else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            updates += 1
    """,
    "activations computed again within the backward pass": """
    from torch.utils.checkpoint import checkpoint
    first = nn.Linear(4, 4)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            hidden = checkpoint(first, x.requires_grad_(), use_reentrant=True)
            loss_of(hidden, y).backward()
            optimizer.step()
    """,
    "passes that are broken off": """
    while True:
        for number, (x, y) in enumerate(loader):
            loss_of(x, y).backward()
            optimizer.step()
            if number == 2:
                break
    """,
    "two loaders at once": """
    half, other = DataLoader(data, batch_size=4), DataLoader(data, batch_size=4, shuffle=True)
    while True:
        for (x, y), (also_x, also_y) in zip(half, other):
            (loss_of(x, y) + loss_of(also_x, also_y)).backward()
            optimizer.step()
    """,
    "two loaders, the first of which it goes over": """
    class Bare(torch.utils.data.Dataset):
        def __len__(self):
            return 4000
        def __getitem__(self, at):
            return torch.zeros(4)
    labelled, bare = DataLoader(data, batch_size=4), DataLoader(Bare(), batch_size=16)
    while True:
        for (x, y), unlabelled in zip(labelled, bare):  # 20 samples
            (loss_of(x, y) + model(unlabelled).mean()).backward()
            optimizer.step()
    """,
    "workers that outlive a pass": """
    def collate(rows):  # of the labels some are missing, as boxes are in images
        return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows[:5]])
    loader = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True, collate_fn=collate)
    while True:
        for x, y in loader:
            loss_of(x[:5], y).backward()
            optimizer.step()
    """,
    "other processes that make data": """
    import os, subprocess, sys
    program, drawn = "import torch; print(torch.zeros(1).item()); raise SystemExit(3)", 0
    while True:
        for x, y in loader:
            drawn += 1
            if drawn == 3:  # in the measured window, and only once: to import torch takes seconds
                subprocess.run([sys.executable, "-c", program], check=False)
                child = os.fork()
                if child == 0:
                    model(x)
                    sys.exit(1)
                os.waitpid(child, 0)
            loss_of(x, y).backward()
            optimizer.step()
    """,
    "an optimizer that is gone with its pass, as in a cross-validation": """
    while True:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            loss_of(x, y).backward()
            optimizer.step()
        del optimizer
    """,
    "batches of torchdata, with two views of each sample": """
    from torch.utils.data import default_collate
    from torchdata.stateful_dataloader import StatefulDataLoader
    loader = StatefulDataLoader(data, batch_size=8, collate_fn=lambda rows: default_collate(rows + rows))
    while True:
        for x, y in loader:
            loss_of(x, y).backward()
            optimizer.step()
    """,
}


@pytest.mark.parametrize("script", LOOPS.values(), ids=LOOPS)
def test_steps_and_their_samples_are_counted(server: Server, tmp_path: Path, script: str) -> None:
    found = server.run(tmp_path, after_head(script))
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed"), found.output
    assert (len(found.of("measured")), len(found.ranks)) == (WINDOWS["measured_steps"], 1)
    assert {step["samples"] for step in found.steps[0]} == {"20" if "Bare" in script else "8"}
    in_pass = 8 if "batch_size=4" in script else 4
    assert found.rank["steps_per_pass"] == (None if "Iterable" in script else in_pass)
    assert "Traceback" not in found.output
