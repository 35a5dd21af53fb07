"""Tuning language models: models, texts, their memory, and the one module that runs torchtune."""
