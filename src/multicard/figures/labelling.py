"""Labels of points, placed where they cover neither points nor each other."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from multicard.figures.style import lay_out

Box = tuple[float, float, float, float]  # left, bottom, right, top

GAP = 5.0  # between a label and what is drawn, in points
# How much farther away a label may be, in points; from the second on a line joins it with its point.
DISTANCES = (0.0, 8.0, 16.0, 26.0)
DIRECTIONS = ((0, 1), (0, -1), (-1, 0), (1, 0), (-1, 1), (1, -1), (-1, -1), (1, 1))
PIECES = 12  # of a line, between which labels may stand


def boxes_of(axes: Axes) -> list[Box]:
    """Boxes around the points and along the bars and lines of a panel."""
    lines = [line.get_xydata() for line in axes.get_lines()]
    lines += [segment for each in axes.collections for segment in each.get_segments()]
    boxes = []
    for line in lines:
        for start, end in zip(line, line[1:] if len(line) > 1 else line, strict=False):
            along = np.linspace(start, end, PIECES)
            boxes += [(*np.minimum(a, b), *np.maximum(a, b)) for a, b in pairwise(along)]
    return boxes


def label_points(
    axes: Axes, points: Iterable[tuple[float, float, str]], drawn: Iterable[Box], most: int | None = None
) -> None:
    """Write the label of each point near it, in the first free place or else the one that covers least.

    The rest of the figure must be complete, since its layout decides where the points are.

    Parameters
    ----------
    axes
        Where the points are.
    points
        Place of each point, in the units of the axes, and its label.
    drawn
        Boxes that labels should not cover, in the units of the axes; a box may be as narrow as a line.
    most
        If given, points that cover each other share a label, and none is written if that leaves more labels.
    """
    lay_out(axes.figure)
    point = axes.figure.dpi / 72  # in pixels
    if most is not None:
        points = _together(axes, points, GAP * point)
        if len(points) > most:
            return
    taken = [_pixels(axes, box).padded(GAP * point / 2).extents for box in drawn]
    for x, y, name in points:
        text = axes.annotate(name, (x, y), textcoords="offset points", xytext=(0, 0), fontsize="x-small", zorder=4)
        text.set_in_layout(False)  # labels stay inside
        extent = text.get_window_extent()
        at = axes.transData.transform((x, y))
        places = list(_candidates(at, extent.width, extent.height, point))
        found = np.array([box.extents for box, _ in places])
        outside = extent.width * extent.height - _shared(found, [axes.bbox.extents])
        box, far = places[np.argmin(np.round(_shared(found, taken) + outside, 6))]  # the first of equals
        taken.append(box.extents)
        text.set_position((box.min - at) / point)
        if far:
            near = (np.clip(at, box.min, box.max) - at) / point
            line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.5", "shrinkA": 0}
            axes.annotate("", (x, y), near, textcoords="offset points", arrowprops=line).set_in_layout(False)


def _together(axes: Axes, points: Iterable[tuple[float, float, str]], near: float) -> list[tuple[float, float, str]]:
    """One point, with all of their labels, of those closer than `near` pixels to the first of them."""
    found: list[tuple[tuple[float, float], dict[str, None]]] = []
    for x, y, name in points:
        at = axes.transData.transform((x, y))
        places = (names for place, names in found if np.hypot(*(axes.transData.transform(place) - at)) < near)
        names = next(places, None)
        if names is None:
            found.append(((x, y), {name: None}))
        else:
            names[name] = None
    return [(*place, ", ".join(names)) for place, names in found]


def _candidates(at: np.ndarray, width: float, height: float, point: float) -> Iterator[tuple[Bbox, bool]]:
    """Boxes for a name of the point `at`, the preferred first, in pixels; and whether it is far enough for a line."""
    for distance in DISTANCES:
        for right, up in DIRECTIONS:
            reach = (GAP + distance) * point * (0.7 if right and up else 1.0)
            left = at[0] + right * reach + (right - 1) / 2 * width
            bottom = at[1] + up * reach + (up - 1) / 2 * height
            yield Bbox.from_bounds(left, bottom, width, height), distance > 0


def _pixels(axes: Axes, box: Box) -> Bbox:
    return Bbox(axes.transData.transform((box[:2], box[2:])))


def _shared(boxes: np.ndarray, others: Sequence[Box]) -> np.ndarray:
    """Area that each of some boxes shares with others, by their extents; with several the sum."""
    low, high = np.split(np.reshape(others, (-1, 4)), 2, axis=1)
    left, right = np.maximum(boxes[:, None, :2], low), np.minimum(boxes[:, None, 2:], high)
    return np.clip(right - left, 0, None).prod(axis=2).sum(axis=1)
