"""torch.compile makes the same graphs of a script with the observer as without, and the same losses."""

from pathlib import Path

import pytest

from observed_scripts import STEPS, Server, after_head, server_fixture

pytestmark = pytest.mark.slow

COMPILER = ("torch._inductor.compile_fx", "networkx")  # what torch.compile imports when it first runs, for seconds
TRAINING = """
import torch._dynamo
from torch._dynamo.utils import counters
model = nn.Sequential(nn.Embedding(20, 16), nn.Dropout(0.2), nn.Linear(16, 20))
ids = TensorDataset(torch.randint(20, (32, 12)))
def loss_of(x):
    return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
{compiled}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
updates = 0
while updates < 12:
    for x, in DataLoader(ids, batch_size=8, shuffle=True):
        loss = train(x)
        schedule.step()
        graphs = dict(counters["frames"]), dict(counters["stats"]), sum(counters["graph_break"].values())
        print("update", updates, loss.item().hex(), *graphs, flush=True)
        updates += 1
"""
COMPILED = {
    "model": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    def forward(self, ids):
        return self.head(self.layer(self.embedding(ids)))
model = torch.compile(Block(), backend="eager")
def train(x):
    loss = loss_of(x)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    optimizer.zero_grad()
    return loss
""",
    # https://docs.pytorch.org/tutorials/recipes/compiling_optimizer.html
    "update": """
@torch.compile(fullgraph=False, backend="aot_eager")
def update():
    optimizer.step()
def train(x):
    optimizer.zero_grad()
    loss = loss_of(x)
    loss.backward()
    update()
    return loss
""",
    "update by a gradient scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
@torch.compile(backend="aot_eager")
def train(x):
    loss = loss_of(x)
    torch.autograd.backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss
""",
}


# Servers of their own: those of other tests are to import what scripts there import.
compiling = server_fixture("module", observed=True)
plain_compiling = server_fixture("module", observed=False)


@pytest.mark.parametrize(
    "compiled",
    [pytest.param(text, id=name, marks=[pytest.mark.rare] * (name == "update")) for name, text in COMPILED.items()],
)
def test_losses_and_graphs_are_the_same_without_the_observer(
    compiling: Server, plain_compiling: Server, tmp_path: Path, compiled: str
) -> None:
    script = after_head(TRAINING.replace("{compiled}", compiled))
    for folder in (observed := tmp_path / "observed", plain := tmp_path / "plain"):
        folder.mkdir()
    found = compiling.run(observed, script, COMPILER)
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed"), found.output
    assert [step["samples"] for step in found.steps[0]] == STEPS * ["8"]
    expected, lines = (
        [line for line in output.splitlines() if line.startswith("update")]
        for output in (plain_compiling.run(plain, script, COMPILER).output, found.output)
    )
    assert len(expected) == 12
    assert STEPS <= len(lines) < 12
    assert lines == expected[: len(lines)]
