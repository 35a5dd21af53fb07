"""A loader by NVIDIA DALI: the samples of PyTorch's DataLoader in the same order, prepared by other code."""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torchvision.datasets import ImageFolder

from multicard.core.errors import UserError
from multicard.workloads.vision.data import GrayscaleDataset
from multicard.workloads.vision.parameters import VisionParameters

# Parts of DALI's messages when memory runs out.
OUT_OF_MEMORY = ("CUDA allocation failed", "out of memory", "bad_alloc")


class DaliLoader:
    """A loader whose batches DALI reads ahead: on the GPU if `device` is one, else with CPU threads.

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
        Contents of the data set's provenance.json: `mean` and `std` of each channel, of pixels scaled to [0, 1].

    Raises `UserError` if DALI is not installed. Raises `MemoryError` if memory runs out during a pass, on the GPU or on
    the host.
    """

    def __init__(
        self,
        dataset: GrayscaleDataset | ImageFolder,
        sampler: Any,
        p: VisionParameters,
        facts: Mapping[str, Any],
        device: torch.device,
    ):
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            raise UserError(
                'loader: dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
            ) from error
        self.dataset = dataset
        self.sampler = sampler
        self.device = device
        self._p = p
        self._facts = facts
        self._source = _Source(dataset)
        self._pipeline: Any = None
        # Number of the latest pass: the batches of an earlier one end.
        self._pass = 0

    def __len__(self) -> int:
        return len(self.sampler) // self._p.batch_of_rank

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Begin a pass at once: the first batches are under way when this returns."""
        self._rewind()
        indices = [int(index) for index in self.sampler]
        size = self._p.batch_of_rank
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
            # An error in batches that were read ahead and are not needed. The pipeline cannot be used any more.
            self.close()

    def _build(self) -> Any:
        """Return the pipeline that makes batches of what the source returns."""
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        p = self._p
        source = self._source
        on_gpu = self.device.type == "cuda"
        # DALI's modules are made of its operators when they are imported, which type checkers cannot see.
        operators: Any = fn
        data_types: Any = types
        # Statistics of the data set are those of pixels in [0, 1], DALI's of pixels in [0, 255].
        scaling: dict[str, Any] = {name: [255 * value for value in self._facts[name]] for name in ("mean", "std")}
        scaling |= {"dtype": data_types.FLOAT, "output_layout": "CHW"}
        size = [p.image_size, p.image_size]
        pipeline = Pipeline(
            p.batch_of_rank,
            max(1, p.workers_of_rank),
            self.device.index if on_gpu else None,
            prefetch_queue_depth=p.prefetch_factor,
        )
        with pipeline:
            images, labels = operators.external_source(
                source,
                num_outputs=2,
                dtype=[data_types.UINT8, data_types.INT64],
                layout=["" if source.files else "HWC", ""],
            )
            if source.files:
                # The decoder would pin its threads to cores of its own choice, not to those that the rank is bound to.
                options = {"affine": False, "jpeg_fancy_upsampling": True} if on_gpu else {}
                images = operators.decoders.image(
                    operators.io.file.read(images),
                    device="mixed" if on_gpu else "cpu",
                    output_type=data_types.RGB,
                    adjust_orientation=False,
                    **options,
                )
                images = operators.resize(images, size=size, antialias=True)
                images = operators.crop_mirror_normalize(images, **scaling)
            else:
                # Scaling and resizing commute; this way round it is the small image that is scaled and transposed.
                images = images.gpu() if on_gpu else images
                images = operators.crop_mirror_normalize(operators.cat(images, images, images, axis=2), **scaling)
                images = operators.resize(images, size=size, antialias=True)
            pipeline.set_outputs(images, labels.gpu() if on_gpu else labels)
        pipeline.build()
        return pipeline

    def _explain(self, error: RuntimeError) -> NoReturn:
        """Raise an error of DALI's: as `MemoryError` if memory ran out, else as it is."""
        # After an error DALI's pipeline cannot be used any more.
        self.close()
        message = " ".join(str(error).split())
        if any(part in message for part in OUT_OF_MEMORY):
            raise MemoryError(f"DALI: {message}") from error
        raise error


class _Source:
    """The function that DALI calls for the raw samples of the next batch: pixels or names of files, and labels.

    It has no reference to the loader, so that the loader and DALI's threads are freed when the loader goes out of use.
    """

    def __init__(self, dataset: GrayscaleDataset | ImageFolder):
        self.dataset = dataset
        self.begin([])

    @property
    def files(self) -> bool:
        """True if samples are names of files, False if they are pixels."""
        return isinstance(self.dataset, ImageFolder)

    def begin(self, batches: list[list[int]]) -> None:
        """Set the indices of the batches of a pass; an empty pass ends the one before."""
        self.ahead = deque(batches)

    def __call__(self) -> tuple[Any, np.ndarray]:
        if not self.ahead:
            raise StopIteration
        batch = self.ahead.popleft()
        if isinstance(self.dataset, ImageFolder):
            samples = [self.dataset.samples[index] for index in batch]
            names = [np.frombuffer(os.fsencode(path), np.uint8) for path, _ in samples]
            return names, np.array([label for _, label in samples], np.int64)
        images = np.asarray(self.dataset.images[batch])
        return images[..., None], np.asarray(self.dataset.labels[batch], np.int64)
