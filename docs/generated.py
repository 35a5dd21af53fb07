"""Pages that follow from the code, made when the site is built: parameters and figures."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from multicard.experiment.parameters_page import page as parameters_page
from multicard.figures.__main__ import page as figures_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them to what the folder holds."""
    pages = {"parameters": parameters_page(), "figures": figures_page()}
    for name, text in pages.items():
        files.append(File.generated(config, f"{name}.md", content=text))
    return files
