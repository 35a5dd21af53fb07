"""docs/traces.md as a notebook: each of its Python blocks is a cell, run by a kernel, shown as a reader sees it."""

from typing import Any

import pytest
from markdown_it import MarkdownIt

from conftest import ROOT
from factories import vision_runs, write_results
from synthetic import nsys_export

pytestmark = pytest.mark.rare


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each cell shows, by its text: representations by their type."""
    import nbformat  # a second that only this worker spends
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    nsys_export(folder / "report.sqlite")
    nsys_export(folder / "after.sqlite")
    runs = [row for count in (1, 2, 4) for row in vision_runs(90.0 * count, devices=count, iteration_time_s=0.5)]
    write_results(folder / "results", runs)
    (folder / "results/scenarios/s0").rename(folder / "results/scenarios/strategies")
    page = MarkdownIt("commonmark").parse((ROOT / "docs/traces.md").read_text(encoding="utf-8"))
    cells = [token.content for token in page if token.type == "fence" and token.info == "python"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)  # which the command line sets, in tests in this process
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    assert all(not cell.outputs or cell.outputs[-1].output_type == "execute_result" for cell in notebook.cells)
    assert all(len(cell.outputs) <= 1 for cell in notebook.cells), "a figure is shown once"
    return {cell.source: cell.outputs[0].data if cell.outputs else {} for cell in notebook.cells}


def shown(outputs: dict[str, dict[str, Any]], text: str) -> dict[str, Any]:
    [found] = [data for source, data in outputs.items() if source.rstrip().splitlines()[-1].startswith(text)]
    return found


def test_a_trace_is_shown_with_its_tables_and_a_figure_as_a_picture(
    outputs: dict[str, dict[str, Any]],
) -> None:
    html = next(iter(outputs.values()))["text/html"]
    assert "<strong>Trace report.sqlite</strong>" in html
    assert "kernels" in html and "cannot tell: the capture holds no collectives that are named" in html
    assert "gemm" in shown(outputs, "trace.kernels")["text/html"]

    for figure in ("trace.figure", "results.figure"):
        assert len(shown(outputs, figure)["image/png"]) > 10_000


def test_results_are_shown_as_tables_and_text(outputs: dict[str, dict[str, Any]]) -> None:
    speedup = shown(outputs, "results.speedup")
    assert "4.0" in speedup["text/plain"]
    assert shown(outputs, "results.recommendations")["text/markdown"].startswith("# Recommendations")
    [results] = [data["text/html"] for data in outputs.values() if "Results results" in data.get("text/html", "")]
    assert "strategies" in results and "completed" in results
