"""Steps without the host's work: one is captured as a CUDA graph, and replayed from then on without the script.

The last step of the warm-up is captured, from the end of one update to the end of the next, and so must not wait for
the GPU. PyTorch warns of waits, which tells in the steps before which do: none where a script has no such line, and
some where it logs now and then. What else PyTorch asks for in its notes on CUDA graphs: a side stream before a backward
pass first meets the parameters, optimizers that are `capturable`, and eleven steps of DistributedDataParallel before.

An error that says why it cannot be done ends the script: `NotLeftOut`.
"""

import contextlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from multicard.record.clock import wait_for
from multicard.record.observe.ablation import HOST, NotLeftOut
from multicard.record.observe.ranks import exchanges
from multicard.record.observe.recording import Recording
from multicard.record.observe.replace import is_compiling, replace
from multicard.record.out_of_memory import is_out_of_memory

FIRST_REPLAYED = 2  # step that gets a batch of those before it, which lie on the GPU
WAITS = "called a synchronizing CUDA operation"  # PyTorch's warning
MOST_POSTPONED = 3  # steps that the capture waits for one without a wait
# Whose frames are no line of the script's.
NOT_OF_SCRIPT = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", warnings.__file__)


class Graphed:
    """Of one process."""

    def __init__(self) -> None:
        self.is_open = False  # whether a step is being captured
        self.counts: dict[str, Any] = {}  # what the script says is in its steps
        self._step = 0  # that is watched
        self._waits: dict[str, list[int]] = {}  # steps that wait for the GPU, by the line
        self._prepared = WeakSet[Any]()  # optimizers
        self._has_graphs = False  # of the script's own, which it replays
        self._graph = self._capture = None
        self._exchanges: dict[str, int] | None = None
        self._show: Callable[..., None] | None = None  # plain `warnings.showwarning`
        self._stream: torch.cuda.Stream | None = None
        self._hook = register_module_forward_pre_hook(self._note_call)

        def wrap(plain: Callable[..., None], parallel: Any, module: Any, *arguments: Any, **options: Any) -> None:
            self._leave_default_stream(module.parameters())
            plain(parallel, module, *arguments, **options)

        def replay(plain: Callable[..., None], graph: Any) -> None:
            self._has_graphs = True
            plain(graph)

        self._undo = [
            replace(DistributedDataParallel, "__init__", wrap),
            replace(torch.cuda.CUDAGraph, "replay", replay),
        ]

    def _note_call(self, module: torch.nn.Module, _inputs: Any) -> None:
        if not is_compiling():
            self._leave_default_stream(module.parameters())

    def _leave_default_stream(self, parameters: Iterable[torch.Tensor]) -> None:
        """Have this thread work on a side stream of the GPU of parameters from now on."""
        gpu = next((each.device for each in parameters if each.is_cuda), None)
        if self._stream is not None or gpu is None:
            return
        self._hook.remove()
        before = torch.cuda.current_stream(gpu)
        self._stream = torch.cuda.Stream(gpu) if before == torch.cuda.default_stream(gpu) else before
        self._stream.wait_stream(before)
        with torch.cuda.device(gpu):  # to set a stream makes its GPU the current one
            torch.cuda.set_stream(self._stream)

    def prepare(self, optimizer: Any) -> None:
        """Have an optimizer keep on the GPU what it counts, where it can."""
        if optimizer in self._prepared:
            return
        self._prepared.add(optimizer)
        self._leave_default_stream(each for group in optimizer.param_groups for each in group["params"])
        for group in optimizer.param_groups:
            if "capturable" in group and all(each.is_cuda for each in group["params"]):
                group["capturable"] = True
                for each in group["params"]:
                    state = optimizer.state.get(each, {})
                    if isinstance(step := state.get("step"), torch.Tensor):
                        state["step"] = step.to(each.device)

    # The warm-up.

    def captures(self, recording: Recording) -> bool:
        """Begin to capture the step that comes, if it is the one for that; else watch it.

        Raises `NotLeftOut` if its work cannot be captured.
        """
        plan, self._step = recording.plan, recording.observer.step
        if self._step < plan.warmup:
            self._watch()
            return False
        has_ranks = dist.is_available() and dist.is_initialized()
        why_not = {
            "it does not compute on a GPU": recording.devices[0].type != "cuda",
            "a single process drives all devices": len(recording.devices) > 1,
            "its steps are CUDA graphs already": self._has_graphs,
            "ranks exchange by gloo, on the host": has_ranks and "cuda:gloo" in dist.get_backend_config(),
        }
        for why, is_so in why_not.items():
            if is_so:
                raise NotLeftOut(HOST, why)
        seen = [self._waits]
        if recording.barrier is not None:
            name = f"waits before {self._step}"
            seen = [json.loads(each) for each in recording.barrier.gather(name, json.dumps(self._waits))]
        if postponed := self._postponed(seen):
            plan.warmup += postponed
            self._watch()
            return False
        self._stop_watching()
        self._exchanges = exchanges()
        self._graph = torch.cuda.CUDAGraph()
        gpu = recording.devices[0]
        # Threads of loaders, and of process groups, may go on.
        self._capture = torch.cuda.graph(
            self._graph, stream=torch.cuda.current_stream(gpu), capture_error_mode="thread_local"
        )
        self.is_open = True
        self._capture.__enter__()
        return True

    def _watch(self) -> None:
        """Note where the step waits for the GPU."""
        if self._step == 1:
            self._waits.clear()
        if self._show is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it says that it is a prototype
                torch.cuda.set_sync_debug_mode("warn")
            self._show, warnings.showwarning = warnings.showwarning, self._note_wait
        # Again and again: the script may have filters, and the last one counts.
        warnings.filterwarnings("always", message=WAITS)

    def _note_wait(self, message: Any, *arguments: Any, **options: Any) -> None:
        if WAITS not in str(message):
            self._show(message, *arguments, **options)
            return
        steps = self._waits.setdefault(_line(traceback.walk_stack(sys._getframe())) or "an unknown line", [])
        steps += [self._step] if self._step not in steps else []

    def _stop_watching(self) -> None:
        torch.cuda.set_sync_debug_mode("default")
        warnings.showwarning = self._show
        for undo in self._undo:
            undo()

    def _postponed(self, seen: Iterable[Mapping[str, list[int]]]) -> int:
        """By how many steps to postpone the capture, so that the script does not wait in it on any rank.

        A line is expected to wait as often as it did the last time, unless it is late.
        """
        lines = [(line, *steps[-2:]) for each in seen for line, steps in each.items() if len(steps) > 1]
        for step in range(self._step, self._step + MOST_POSTPONED):
            waits = {
                line for line, one, two in lines if 2 * two - one >= self._step and (step - two) % (two - one) == 0
            }
            if not waits:
                return step - self._step
        raise NotLeftOut(HOST, f"each step waits for the GPU at {' and '.join(sorted(waits))}")

    # From the captured step on.

    def make_steps(self, recording: Recording) -> None:
        """End the capture, and make the captured step and all others by replaying it."""
        observer = recording.observer
        self._end_capture()
        if recording.barrier is not None:
            recording.barrier.wait()  # a replay would wait for ever for a rank that failed
        before, after = self._exchanges, exchanges()
        recording.replayed, observer.loader = observer.step, None  # from which nothing is drawn any more
        while not recording.is_complete:
            recording.begin_step()
            recording.count(self.counts)
            self._graph.replay()
            recording.end_step()
            observer.step += 1
        recording.exchanged = None if None in (before, after) else before != after  # replays are not counted
        wait_for(recording.devices)
        self._graph.reset()  # before process groups end

    def _end_capture(self) -> None:
        self._capture.__exit__(None, None, None)
        self.is_open = False

    def explained(self, error: BaseException | None) -> BaseException | None:
        """The error that ends the script, or that a step cannot be captured because of it."""
        if not self.is_open:
            return error
        with contextlib.suppress(Exception):  # it has failed
            self._end_capture()
        self.is_open = False
        if error is None or is_out_of_memory(error):
            return error
        chain = [error]  # what a script does in the end may fail, too, since the capture has
        while chain[-1].__context__ is not None:
            chain.append(chain[-1].__context__)
        error = next((each for each in reversed(chain) if "captur" in str(each)), error)
        first, *_ = str(error).splitlines() or [""]
        frames = reversed(list(traceback.walk_tb(error.__traceback__)))
        what = [_line(frames), first or type(error).__name__]
        return NotLeftOut(HOST, f"its step cannot be a CUDA graph: {': '.join(filter(None, what))}")


def _line(frames: Iterable[Any]) -> str | None:
    """The first frame that is of the script, as `train.py:41`; None where none is.

    `frames`: with their lines, the innermost first.
    """
    for frame, line in frames:
        if not (name := frame.f_code.co_filename).startswith(NOT_OF_SCRIPT):
            return f"{Path(name).name}:{line}"
    return None
