"""Steps without the host's work: one step is captured as a CUDA graph, and then replayed without the script.

The last step of the warm-up is captured, from the end of one update to the end of the next. A step can only be captured
if it does not wait for the GPU. PyTorch warns of each wait, so the warnings in earlier steps show which later steps are
likely to wait: a script that logs now and then waits in some steps only.

PyTorch's notes on CUDA graphs demand three more things: a side stream before the first backward pass of the parameters,
optimizers that are `capturable`, and eleven earlier steps with DistributedDataParallel.

If a step cannot be captured, `NotLeftOut` ends the script and says why.
"""

import contextlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from multicard.record.clock import wait_for
from multicard.record.observe.ablation import HOST, NotLeftOut
from multicard.record.observe.ranks import exchanges, has_process_group
from multicard.record.observe.recording import Recording, compare_exchanges
from multicard.record.observe.replace import is_compiling, replace
from multicard.record.out_of_memory import is_out_of_memory
from multicard.record.recorder import StepCounts

FIRST_REPLAYED = 2  # number of the first step that gets a kept batch, which lies on the GPU
SYNCHRONIZES = "called a synchronizing CUDA operation"  # how PyTorch's warning of a wait for the GPU begins
STEPS_CONSIDERED = 3  # number of steps in a row that are considered for the capture, to find one without a wait
# Code in a file whose path begins with one of these is not the script's.
NOT_OF_SCRIPT = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", warnings.__file__)


class Graphed:
    """Captures and replays the steps of this process; made by `hooks`, used by `Observer`."""

    def __init__(self) -> None:
        self.is_open = False  # True while a step is being captured
        self.counts = StepCounts()  # of a step, as the script states them
        self._waits = Waits()
        self._prepared_optimizers = WeakSet[Any]()
        self._replays_own_graphs = False  # True once the script replays a CUDA graph of its own
        self._captured: CapturedStep | None = None
        self._side_stream: torch.cuda.Stream | None = None
        self._forward_hook = register_module_forward_pre_hook(self._note_call)

        def make_parallel(
            plain: Callable[..., None], parallel: Any, module: Any, *arguments: Any, **options: Any
        ) -> None:
            self._leave_default_stream(module.parameters())
            plain(parallel, module, *arguments, **options)

        def replay(plain: Callable[..., None], graph: Any) -> None:
            self._replays_own_graphs = True
            plain(graph)

        self._undo_replacements = [
            replace(DistributedDataParallel, "__init__", make_parallel),
            replace(torch.cuda.CUDAGraph, "replay", replay),
        ]

    def _note_call(self, module: torch.nn.Module, _inputs: Any) -> None:
        if not is_compiling():
            self._leave_default_stream(module.parameters())

    def _leave_default_stream(self, parameters: Iterable[torch.Tensor]) -> None:
        """Have this thread work on a side stream of the GPU of these parameters from now on.

        Only the first call with a parameter on a GPU does so. A thread that is on a side stream already stays there.
        """
        gpu = next((parameter.device for parameter in parameters if parameter.is_cuda), None)
        if self._side_stream is not None or gpu is None:
            return
        self._forward_hook.remove()
        current = torch.cuda.current_stream(gpu)
        is_default = current == torch.cuda.default_stream(gpu)
        self._side_stream = torch.cuda.Stream(gpu) if is_default else current
        self._side_stream.wait_stream(current)
        with torch.cuda.device(gpu):  # setting a stream makes its GPU the current one
            torch.cuda.set_stream(self._side_stream)

    def prepare(self, optimizer: Any) -> None:
        """Have an optimizer keep its step counts on the GPU (`capturable`), if it can and its parameters are there."""
        if optimizer in self._prepared_optimizers:
            return
        self._prepared_optimizers.add(optimizer)
        self._leave_default_stream(parameter for group in optimizer.param_groups for parameter in group["params"])
        for group in optimizer.param_groups:
            if "capturable" in group and all(parameter.is_cuda for parameter in group["params"]):
                group["capturable"] = True
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    if isinstance(step := state.get("step"), torch.Tensor):
                        state["step"] = step.to(parameter.device)

    # The warm-up.

    def captures(self, recording: Recording) -> bool:
        """Begin to capture the next step and return True, if it is the one to capture; else watch it and return False.

        That is the last step of the warm-up. If any rank is expected to wait for the GPU in it, the warm-up becomes
        longer. Raises `NotLeftOut` if the work of a step cannot be captured.
        """
        plan = recording.plan
        step = recording.loop.step
        if step < plan.warmup:
            self._waits.watch(step)
            return False
        self._check(recording)
        waits_of_ranks: list[dict[str, list[int]]] = [self._waits.steps_of_lines]
        if recording.barrier is not None:
            texts = recording.barrier.gather(f"waits before {step}", json.dumps(self._waits.steps_of_lines))
            waits_of_ranks = [json.loads(text) for text in texts]
        postponed = postponed_steps(step, waits_of_ranks)
        if postponed:
            plan.warmup += postponed
            self._waits.watch(step)
            return False
        self._waits.stop()
        for undo in self._undo_replacements:
            undo()
        self._captured = CapturedStep(recording.devices[0])
        self.is_open = True
        self._captured.begin()
        return True

    def _check(self, recording: Recording) -> None:
        """Raise `NotLeftOut` if no step of this process can be captured."""
        if recording.devices[0].type != "cuda":
            raise NotLeftOut(HOST, "it does not compute on a GPU")
        if len(recording.devices) > 1:
            raise NotLeftOut(HOST, "a single process drives all devices")
        if self._replays_own_graphs:
            raise NotLeftOut(HOST, "its steps are CUDA graphs already")
        if has_process_group() and "cuda:gloo" in dist.get_backend_config():
            raise NotLeftOut(HOST, "ranks exchange by gloo, on the host")

    # The captured step, and all later ones.

    def make_steps(self, recording: Recording) -> None:
        """End the capture, and make the captured step and all later steps by replaying it."""
        captured = self._captured
        if captured is None:
            return
        self._end_capture(captured)
        if recording.barrier is not None:
            recording.barrier.wait()  # a replay would wait for ever for a rank that failed
        # The counters of exchanges do not see replays. Each replay exchanges what was counted during the capture.
        exchanged = compare_exchanges(captured.exchanges_before, exchanges())
        loop = recording.loop
        recording.replayed_from = loop.step
        loop.loader = None  # replays draw nothing
        while not recording.is_complete:
            recording.begin_step()
            recording.events.count(self.counts)
            captured.graph.replay()
            recording.end_step()
            loop.step += 1
        recording.exchanged = exchanged
        wait_for(recording.devices)
        captured.graph.reset()  # before process groups end

    def _end_capture(self, captured: "CapturedStep") -> None:
        captured.end()
        self.is_open = False

    def explained(self, error: BaseException | None) -> BaseException | None:
        """Return the error to report for `error`, which ends the script; None for None.

        While a step is being captured this is a `NotLeftOut` that quotes the error, unless memory ran out.
        """
        if not self.is_open or self._captured is None:
            return error
        with contextlib.suppress(Exception):  # the capture has failed
            self._end_capture(self._captured)
        self.is_open = False
        if error is None or is_out_of_memory(error):
            return error
        cause = _first_about_capture(error)
        message, *_ = str(cause).splitlines() or [""]
        line = line_of_script(reversed(list(traceback.walk_tb(cause.__traceback__))))
        details = [line, message or type(cause).__name__]
        return NotLeftOut(HOST, f"its step cannot be a CUDA graph: {': '.join(filter(None, details))}")


def _first_about_capture(error: BaseException) -> BaseException:
    """Return the earliest error about the capture, of those that led to `error`; `error` if none is.

    Later ones only follow from it, because what a script does as it ends fails during a capture, too.
    """
    chain = [error]
    while (context := chain[-1].__context__) is not None:
        chain.append(context)
    return next((earlier for earlier in reversed(chain) if "captur" in str(earlier)), error)


class CapturedStep:
    """A CUDA graph of one step."""

    def __init__(self, gpu: torch.device) -> None:
        self.exchanges_before = exchanges()
        self.graph = torch.cuda.CUDAGraph()
        # "thread_local" allows other threads, such as those of loaders and process groups, to use CUDA in the meantime.
        self._capture = torch.cuda.graph(
            self.graph, stream=torch.cuda.current_stream(gpu), capture_error_mode="thread_local"
        )

    def begin(self) -> None:
        """Capture from here."""
        self._capture.__enter__()

    def end(self) -> None:
        """Capture until here."""
        self._capture.__exit__(None, None, None)


class Waits:
    """Notes which lines of the script wait for the GPU, by PyTorch's warnings."""

    def __init__(self) -> None:
        self.steps_of_lines: dict[str, list[int]] = {}  # for each line, the numbers of the steps in which it waited
        self._step = 0  # number of the step that is watched
        self._plain_show: Callable[..., None] | None = None  # `warnings.showwarning` once it is replaced

    def watch(self, step: int) -> None:
        """Note where the step that begins waits for the GPU; `step`: its number."""
        self._step = step
        if step == 1:  # waits before the first step belong to no step
            self.steps_of_lines.clear()
        if self._plain_show is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns that this mode is a prototype
                torch.cuda.set_sync_debug_mode("warn")
            self._plain_show = warnings.showwarning
            warnings.showwarning = self._note_warning
        # Set again in each step, because the script may add filters, and the latest one decides.
        warnings.filterwarnings("always", message=SYNCHRONIZES)

    def stop(self) -> None:
        """Stop noting waits."""
        torch.cuda.set_sync_debug_mode("default")
        if self._plain_show is not None:
            warnings.showwarning = self._plain_show

    def _note_warning(self, message: Any, *arguments: Any, **options: Any) -> None:
        if SYNCHRONIZES not in str(message):
            if self._plain_show is not None:
                self._plain_show(message, *arguments, **options)
            return
        line = line_of_script(traceback.walk_stack(sys._getframe())) or "an unknown line"
        steps = self.steps_of_lines.setdefault(line, [])
        if self._step not in steps:
            steps.append(self._step)


class WaitingLine(NamedTuple):
    """A line of the script, and the last two steps in which it waited for the GPU."""

    line: str
    last_but_one: int
    last: int

    def is_expected_in(self, step: int, first: int) -> bool:
        """True if the line will wait in the step `step` if it goes on with the interval of its last two waits.

        False if its next wait was due before the step `first`: then the line has lost that rhythm.
        """
        period = self.last - self.last_but_one
        is_late = self.last + period < first
        return not is_late and (step - self.last) % period == 0


def postponed_steps(first: int, waits_of_ranks: Iterable[Mapping[str, list[int]]]) -> int:
    """Return by how many steps to postpone the capture from the step `first`, so that no rank waits in it.

    `waits_of_ranks`: for each rank, the steps in which each line of the script waited so far. A line that has waited
    only once is not expected to wait again.

    >>> postponed_steps(12, [{"train.py:7": [4, 8]}]), postponed_steps(12, [{"train.py:7": [8]}])
    (1, 0)

    Raises `NotLeftOut` if a rank is expected to wait in each of `STEPS_CONSIDERED` steps.
    """
    lines = [
        WaitingLine(line, *steps[-2:]) for waits in waits_of_ranks for line, steps in waits.items() if len(steps) > 1
    ]
    waiting: set[str] = set()
    for step in range(first, first + STEPS_CONSIDERED):
        waiting = {line.line for line in lines if line.is_expected_in(step, first)}
        if not waiting:
            return step - first
    raise NotLeftOut(HOST, f"each step waits for the GPU at {' and '.join(sorted(waiting))}")


def line_of_script(frames: Iterable[Any]) -> str | None:
    """Return file and line of the first frame that is the script's, such as "train.py:41"; None if none is.

    `frames`: pairs of a frame and its line number, the innermost first.
    """
    for frame, line in frames:
        name = frame.f_code.co_filename
        if not name.startswith(NOT_OF_SCRIPT):
            return f"{Path(name).name}:{line}"
    return None
