"""Batches from NVIDIA DALI: the samples of PyTorch's DataLoader in the same order, prepared by other code."""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from multicard.core.errors import UserError
from multicard.workloads.vision.parameters import VisionParameters

OUT_OF_MEMORY = ("CUDA allocation failed", "out of memory", "bad_alloc")  # in DALI's messages


class DaliLoader:
    """Loader whose batches DALI reads ahead: on the GPU if `device` is one, else with CPU threads.

    A pass yields `(images, labels)` of full batches: float32 of shape (N, 3, S, S) and int64 of shape (N,), both on
    `device`. Files are read and decoded by DALI's own threads (JPEG on the GPU if there is one), without worker
    processes. Only the latest pass continues; the loader drops what an earlier one has read ahead.

    The images are those of `vision.data.open_split` up to rounding, as measured on a CPU with random pixels: arrays
    differ by less than 0.002 of 255 gray levels, files by at most 1, since both libraries round the resized pixels.
    The outermost pixels of an image that shrinks differ more, by some 20 gray levels in noise: there the filter
    reaches over the edge, where DALI repeats the last pixel and PyTorch leaves it out. JPEG files decode to the same
    pixels on a CPU; the decoder of a GPU may differ by a few gray levels more. EXIF orientation is ignored by both.

    Parameters
    ----------
    dataset
        Arrays (`multicard.workloads.vision.data.GrayscaleDataset`) or files (`ImageFolder`); its transform is not used.
    sampler
        Indices of one pass, in order.
    facts
        Of the data set's provenance: `mean` and `std` of each channel, of pixels scaled to [0, 1].

    Raises `UserError` if DALI is not installed. Raises `MemoryError` if memory runs out during a pass, on the GPU or on
    the host.
    """

    def __init__(
        self, dataset: Dataset, sampler: Any, p: VisionParameters, facts: Mapping[str, Any], device: torch.device
    ):
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            raise UserError(
                'loader: dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
            ) from error
        self.dataset, self.sampler, self.device = dataset, sampler, device
        self._p, self._facts = p, facts
        self._source = _Source(dataset)
        self._pipeline: Any = None
        self._pass = 0

    def __len__(self) -> int:
        return len(self.sampler) // self._p.batch_of_rank

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Begin a pass at once: the first batches are under way when this returns."""
        self._rewind()
        indices, size = [int(index) for index in self.sampler], self._p.batch_of_rank
        self._source.begin([indices[number * size : (number + 1) * size] for number in range(len(self))])
        self._pass += 1
        try:
            if self._pipeline is None:
                self._pipeline = self._build()
            self._pipeline.schedule_run()
        except RuntimeError as error:
            self._explain(error)
        return self._batches(self._pass)

    def close(self) -> None:
        """End DALI's threads and free its memory; a new pass starts them again."""
        self._pass += 1
        self._pipeline = None

    def _batches(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while number == self._pass:
            # Bound to this stream, the memory of a batch is not reused before the work queued on it is done.
            stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
            try:
                images, labels = self._pipeline.outputs(stream)
                self._pipeline.schedule_run()
            except StopIteration:
                return
            except RuntimeError as error:
                self._explain(error)
            yield torch.from_dlpack(images.as_tensor()), torch.from_dlpack(labels.as_tensor())
        raise RuntimeError("this pass over the data cannot go on: the loader has begun another or is closed")

    def _rewind(self) -> None:
        """End a pass that was left before its end, so that the pipeline can begin another."""
        self._source.begin([])
        try:
            while self._pipeline is not None:
                self._pipeline.outputs()
                self._pipeline.schedule_run()
        except StopIteration:
            self._pipeline.reset()
        except RuntimeError:
            self.close()  # an error in batches that nobody asked for; the pipeline is of no more use

    def _build(self) -> Any:
        """Build the pipeline that turns what the source gives into batches."""
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        p, source, gpu = self._p, self._source, self.device.type == "cuda"
        scaling: dict[str, Any] = {"dtype": types.FLOAT, "output_layout": "CHW"}
        scaling |= {name: [255 * value for value in self._facts[name]] for name in ("mean", "std")}
        size, threads = [p.image_size, p.image_size], max(1, p.workers_of_rank)
        pipeline = Pipeline(
            p.batch_of_rank, threads, self.device.index if gpu else None, prefetch_queue_depth=p.prefetch_factor
        )
        with pipeline:
            images, labels = fn.external_source(
                source, num_outputs=2, dtype=[types.UINT8, types.INT64], layout=["" if source.files else "HWC", ""]
            )
            if source.files:
                # The decoder would pin its threads to cores of its own choice, not to those that the rank is bound to.
                images = fn.decoders.image(
                    fn.io.file.read(images),
                    device="mixed" if gpu else "cpu",
                    output_type=types.RGB,
                    adjust_orientation=False,
                    **({"affine": False, "jpeg_fancy_upsampling": True} if gpu else {}),
                )
                images = fn.resize(images, size=size, antialias=True)
                images = fn.crop_mirror_normalize(images, **scaling)
            else:
                # Scaling and resizing commute; this way round it is the small image that is scaled and transposed.
                images = images.gpu() if gpu else images
                images = fn.crop_mirror_normalize(fn.cat(images, images, images, axis=2), **scaling)
                images = fn.resize(images, size=size, antialias=True)
            pipeline.set_outputs(images, labels.gpu() if gpu else labels)
        pipeline.build()
        return pipeline

    def _explain(self, error: RuntimeError) -> NoReturn:
        """Say that memory ran out; else raise the error as it is."""
        self.close()  # after an error DALI's pipeline is of no more use
        said = " ".join(str(error).split())
        if any(sign in said for sign in OUT_OF_MEMORY):
            raise MemoryError(f"DALI: {said}") from error
        raise error


class _Source:
    """What DALI calls for the raw samples of the next batch: pixels or names of files, and labels.

    It knows nothing of the loader, so that the loader and DALI's threads go as soon as nobody uses the loader.
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.files = isinstance(dataset, ImageFolder)
        self.begin([])

    def begin(self, batches: list[list[int]]) -> None:
        """Lay out the indices of a pass; an empty pass ends the one before."""
        self.ahead = deque(batches)

    def __call__(self) -> tuple[Any, np.ndarray]:
        if not self.ahead:
            raise StopIteration
        batch = self.ahead.popleft()
        if self.files:
            samples = [self.dataset.samples[index] for index in batch]
            names = [np.frombuffer(os.fsencode(path), np.uint8) for path, _ in samples]
            return names, np.array([label for _, label in samples], np.int64)
        return np.asarray(self.dataset.images[batch])[..., None], np.asarray(self.dataset.labels[batch], np.int64)
