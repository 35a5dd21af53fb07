"""Tuning language models: models, texts, their memory, and the one module that runs torchtune."""

from multicard.workloads.llm.workload import WORKLOAD

__all__ = ["WORKLOAD"]
