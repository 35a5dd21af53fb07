"""One process per device, each with a shard of the model and a share of the data."""

from typing import Any

from multicard.programs.vision.strategy import Strategy

BLOCKS = 20  # parts of MobileNet v2 that are gathered one by one: 19 blocks, and the classifier


class FullyShardedDataParallel(Strategy):
    """PyTorch's FSDP2, with a distributed sampler."""

    name = "fsdp"
    description = "as ddp-ds, with weights, gradients and optimizer state split among the ranks (FSDP2)."
    distributed_sampler = True
    has_checkpoints = False
    # With FSDP2 of PyTorch 2.11, weights have to be contiguous, and fused SGD refuses the shards of weights.
    not_in_preset = ("layout", "fused_optimizer")

    def unsupported_reason(self, p: Any) -> str | None:
        """Return which parameter of the run FSDP2 does not support; None if it supports all."""
        if p.layout == "nhwc":
            return "the strategy fsdp cannot split weights in the layout nhwc"
        if p.fused_optimizer:
            return "the strategy fsdp has no fused optimizer (SGD)"
        if p.cuda_graphs:
            return "the strategy fsdp moves weights in every step, CUDA graphs need them in one place"
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Return the model sharded block by block, so that a block is gathered while the one before it computes."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (p.devices,))
        for block in model.features:
            if p.compile:
                # The training program compiles the whole model, but that is not enough: compilation stops at FSDP2's
                # hooks, and torch.compile then skips blocks whose class inherits `forward` from nn.Sequential.
                block.forward = torch.compile(block.forward)
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def improves(self, strategy: str, devices: int) -> bool:
        """Return whether there are several devices, among which FSDP splits the model of any other strategy."""
        return devices > 1


STRATEGY = FullyShardedDataParallel()
