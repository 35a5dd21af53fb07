"""Folders of prepared data sets and models, named after what defines them."""

import hashlib
import json
from functools import cache

from multicard.experiment.datasets import Dataset
from multicard.experiment.models import Model

DIGITS = 8


@cache
def folder_name(name: str, definition: Dataset | Model) -> str:
    """Name of the folder in which a data set or model is prepared: its name and a digest of its definition.

    Configurations that define a name differently do not overwrite each other's data, and those that agree share one
    folder. `download` is left out: it does not change what is prepared.

    >>> from multicard.experiment.models import Model
    >>> folder_name("tiny", Model(architecture="tiny"))
    'tiny-69a8bd36'
    """
    stated = definition.model_dump(mode="json", exclude={"download"})
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:DIGITS]}"
