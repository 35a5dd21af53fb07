"""The report as a reader has it: opened in a real Chromium, from a file."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from made import HOSTILE, PLANS, QUESTION, REASON, RUNS, judged, results

from browser import CHROMIUM, Browser, browser
from factories import vision_runs, write_results
from multicard.answers.bottlenecks.options import DIFFERENT, HIGHER, LOWER, TuningOption, options
from multicard.config.load import read_experiment
from multicard.figures.draw import draw, save
from multicard.programs import PROGRAMS
from multicard.programs.program import Program
from multicard.report.page import write_report
from multicard.report.results import ScenarioPlan
from multicard.results.results import Results

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH (envs/install-chromium.sh)"),
]

NAMED = {"image", "img", "button", "link", "figure", "region"}
LANDMARKS = ("banner", "navigation", "main", "contentinfo")
STRUCTURE = ("figure", "table", "rowheader", "columnheader", "caption")
TITLE = "multicard: 3 questions, 7 runs"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = judged(results(tmp_path_factory.mktemp("made") / "results"))
    write_report(folder, folder / "report.html", PLANS)
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def opened(chromium: Browser, page: Path) -> Browser:
    chromium.scripts(allowed=True)
    chromium.width(1200)
    chromium.scheme("light")
    chromium.open(page)
    return chromium


def test_the_page_itself_may_fetch_nothing(opened: Browser) -> None:
    tried = "fetch('http://127.0.0.1:9/').then(() => 'fetched', (error) => error.name)"
    assert opened.run(tried) == "TypeError"
    assert any("Content Security Policy" in line for line in opened.complaints)
    # Nor does any script run but the page's own.
    opened.run("document.body.append(Object.assign(document.createElement('script'), {text: 'window.taken = true'}))")
    opened.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.taken = true\">')")
    opened.run("new Promise((done) => setTimeout(done, 100))")
    assert opened.run("window.taken") is None


def test_hostile_text_is_shown_as_the_text_that_it_is(opened: Browser) -> None:
    assert opened.run("document.title") == TITLE
    text = opened.run("document.body.innerText")
    for shown in (QUESTION, REASON, f"killed {HOSTILE}", f"QLoRA is the smallest. {HOSTILE}"):
        assert shown in text
    assert HOSTILE in opened.run("document.querySelector('figure details').textContent")
    assert opened.run("document.scripts.length") == 1  # the page's own
    assert opened.run("document.querySelectorAll('a[href^=javascript], [onclick], [onerror]').length") == 0


def test_every_figure_is_there_with_caption_picture_and_numbers(opened: Browser, page: Path) -> None:
    assert (opened.requests, opened.complaints) == ([page.as_uri()], [])  # nothing else is asked for
    assert opened.run("[...document.querySelectorAll('figure')].map((figure) => figure.dataset.figure)") == [
        "iteration_time", "step_times", "step_breakdown", "techniques",
    ]  # fmt: skip
    assert opened.run("[...document.querySelectorAll('figure img')].every((img) => img.complete && img.naturalWidth)")
    assert opened.run("[...document.querySelectorAll('figure img')].every((img) => img.alt.length > 40)")
    assert opened.run("[...document.querySelectorAll('figcaption')].every((caption) => caption.innerText.length > 40)")
    assert "Nothing to show: no phases were recorded." in opened.run("document.querySelectorAll('figure')[2].innerText")


def test_a_screen_reader_finds_landmarks_headings_and_names(opened: Browser) -> None:
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    roles = [role.lower() for role, _ in named]
    assert [roles.count(role) for role in LANDMARKS] == [1, 1, 1, 1]
    assert set(STRUCTURE) <= set(roles)
    assert [role for role, name in named if role in NAMED and not name.strip()] == []
    levels = opened.run("[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((each) => +each.tagName[1])")
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = opened.run("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(set(ids)) == len(ids)


# The contrast of text with what lies behind it, as WCAG 2.2 defines it (success criterion 1.4.3: 4.5 to 1).
CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const back = parts(getComputedStyle(element).backgroundColor);
      if (back.length === 3 || back[3] > 0) return back;
    }
    return [255, 255, 255];
  };
  document.querySelectorAll('details').forEach((each) => { each.open = true; });
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest('svg')) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data.trim()]);
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(opened: Browser, page: Path, scheme: str) -> None:
    opened.scheme(scheme)
    opened.open(page)
    contrasts = opened.run(CONTRAST)
    assert len(contrasts) > 100
    assert [each for each in contrasts if each[0] < 4.5] == []
    brightness = opened.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(brightness) < 60 if scheme == "dark" else min(brightness) > 200


ROWS = "[...document.querySelectorAll('#all-runs tbody tr')].filter((row) => !row.hidden)"
NAMES = f"{ROWS}.map((row) => row.cells[0].title)"
VISION, LLM, GPUS = [name for name, *_ in RUNS[:4]], [name for name, *_ in RUNS[4:6]], [RUNS[6][0]]


def clicks(browser: Browser, heading: str) -> None:
    """Click on a heading of the table of runs."""
    button = f"[...document.querySelectorAll('#all-runs th button')].find((it) => it.textContent === '{heading}')"
    browser.run(f"{button}.click()")


def test_the_table_of_runs_sorts_by_any_column_with_empty_cells_last(opened: Browser) -> None:
    assert opened.run(NAMES) == [*VISION, *LLM, *GPUS]
    clicks(opened, "Iteration time (s)")
    # 80, 100, 120 ms, 1.5 and 10.25 s: as text, 10.25 would come before 1.5. Two runs have none.
    rising = [VISION[2], VISION[0], VISION[1], *LLM]
    assert opened.run(NAMES) == [*rising, VISION[3], *GPUS]
    assert opened.run("document.querySelector('#all-runs [aria-sort]').ariaSort") == "ascending"
    clicks(opened, "Iteration time (s)")
    assert opened.run(NAMES) == [*reversed(rising), VISION[3], *GPUS]
    clicks(opened, "Iteration time (s)")
    assert opened.run(NAMES) == [*VISION, *LLM, *GPUS]
    clicks(opened, "Scenario")
    assert opened.run(NAMES) == [*GPUS, *VISION, *LLM]


def test_the_table_of_runs_shows_the_rows_with_all_words_and_choices(opened: Browser) -> None:
    typed = "(words) => { const field = document.querySelector('#runs .filter input'); field.value = words; "
    typed += "field.dispatchEvent(new Event('input', {bubbles: true})); }"
    opened.run(f"({typed})('CPU2 r')")
    assert opened.run(NAMES) == VISION[2:]
    assert opened.run("document.querySelector('#runs .filter output').textContent") == "2 of 7 runs"
    chosen = "[...document.querySelectorAll('#runs .filter label')].find((it) => it.textContent.startsWith('Outcome'))"
    opened.run(f"(() => {{ const field = {chosen}.querySelector('select'); field.value = 'out of memory'; "
               "field.dispatchEvent(new Event('input', {bubbles: true})); })()")  # fmt: skip
    assert opened.run(NAMES) == [VISION[3]]
    opened.run("document.querySelector('#runs .filter button').click()")
    opened.wait(f"{ROWS}.length === 7")


def test_a_button_copies_each_setting_to_try(chromium: Browser, tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", vision_runs(100.0, data_share=0.4))
    write_report(folder, folder / "report.html", {"s0": ScenarioPlan()})
    chromium.scripts(allowed=True)
    chromium.open(folder / "report.html")
    chromium.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    codes = chromium.run("[...document.querySelectorAll('.try code')].map((code) => code.textContent)")
    settings = [text for text in codes if ": " in text]
    assert "loader: dali" in settings and "raise num_workers" in codes
    assert chromium.run("[...document.querySelectorAll('.copy')].map((it) => it.title)") == [
        f"Copy {text}" for text in settings
    ]
    chromium.run("document.querySelector('.copy').click()")
    assert chromium.run("window.copied") == settings[0]
    chromium.wait("document.querySelector('.copy').textContent === 'Copied'")


def _has_parameters(program: Program[Any], option: TuningOption) -> bool:
    return option.changes.keys() <= program.parameters.model_fields.keys()


FILE = """
datasets:
  digits: {{source: digits}}
  instructions: {{source: shipped-text, texts: instructions}}
models:
  tiny: {{architecture: tiny}}
scenarios:
  pasted:
    question: Is it faster?
    fixed:
      workload: {workload}
      device: {device}
{fixed}
    vary:
      devices: [1, 2]
    figures: [iteration_time]
"""


def test_what_is_copied_is_a_valid_part_of_a_configuration(opened: Browser, tmp_path: Path) -> None:
    file = tmp_path / "pasted.yaml"
    copied = []
    for option in [option for against in options().parameters.values() for option in against]:
        text = opened.run(f"pasteable({json.dumps(option.name)})")
        if set(option.changes.values()) & {HIGHER, LOWER, DIFFERENT}:
            assert text is None
            continue
        programs = [name for name, program in PROGRAMS.items() if _has_parameters(program, option)]
        lines = "\n".join(f"      {line}" for line in text.splitlines())
        file.write_text(FILE.format(workload=programs[0], device=option.device or "cuda", fixed=lines))
        [scenario] = read_experiment(file, outside=False).scenarios.values()
        assert option.changes.items() <= scenario.fixed.stated().items()
        copied.append(text)
    assert "pin_memory: true\nnon_blocking: true" in copied and 'tf32: "on"' in copied
    assert opened.run("pasteable('layout: [nchw, nhwc]')") == "layout: [nchw, nhwc]"
    assert opened.run("pasteable('pin_memory: true, raise num_workers')") is None


def test_ticked_configurations_stand_side_by_side(opened: Browser) -> None:
    shown = "document.querySelector('.comparison .scroll').checkVisibility()"
    ticks = "document.querySelectorAll('#all-configurations input')"
    assert opened.run(f"[{ticks}.length, {shown}]") == [4, False]
    opened.run(f"{ticks}[1].click(), {ticks}[2].click()")
    assert opened.run(shown)
    rows = opened.run("[...document.querySelectorAll('.comparison tr')].map((row) => [...row.cells].map((cell) => "
                      "cell.textContent.trim()))")  # fmt: skip
    names = opened.run(f"[{ticks}[1], {ticks}[2]].map((tick) => tick.parentElement.textContent.trim())")
    assert rows[0] == ["Configuration", *names]
    assert ["Scenario", "processes", "techniques"] in rows
    assert ["Iteration time (s)", "0.08", "1.5"] in rows
    # The longest bar is that of 1.5 s, the other is as much shorter as 0.08 s.
    shares = "[...document.querySelectorAll('.comparison tr')].find((row) => row.textContent.startsWith('Iteration'))"
    lengths = opened.run(
        f"[...{shares}.querySelectorAll('td')].map((it) => parseFloat(it.style.cssText.split(':')[1]))"
    )
    assert lengths[0] / lengths[1] == pytest.approx(0.08 / 1.5)
    opened.run(f"{ticks}[1].click()")
    assert not opened.run(shown)


@pytest.mark.parametrize("width", [1200, 390])
def test_links_to_logs_and_traces_of_all_runs_are_in_sight(opened: Browser, page: Path, width: int) -> None:
    opened.width(width)
    opened.open(page)
    assert "Runs, logs, traces" in opened.run("document.querySelector('nav').innerText")
    cells = "[...document.querySelectorAll('#all-runs td.links')]"
    # The last run was not run; the others have a folder.
    assert opened.run(f"{cells}.map((cell) => cell.innerText)") == ["folder"] * 6 + [""]
    links = f"{cells}.flatMap((cell) => [...cell.querySelectorAll('a')])"
    sight = "checkVisibility({opacityProperty: true, visibilityProperty: true})"
    assert opened.run(f"{links}.every((link) => link.{sight} && link.getBoundingClientRect().width > 20)")
    # They stand beside the names, so that nothing has to be scrolled to reach them.
    edge = opened.run(f"Math.max(...{links}.map((link) => link.getBoundingClientRect().right))")
    assert edge < width


def test_a_mark_says_its_numbers_where_a_reader_points(chromium: Browser, tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", vision_runs(100.0) + vision_runs(180.0, devices=2))
    drawn = draw("speedup", Results.read_scenario(folder / "scenarios/s0"))
    save(*drawn, folder / "figures/s0/speedup")
    write_report(folder, folder / "report.html", {"s0": ScenarioPlan(figures=("speedup",))})
    chromium.scripts(allowed=False)  # it needs none
    for width in (1200, 390):
        chromium.width(width)
        chromium.open(folder / "report.html")
        # The speed-up is 1.8 in each pair of repeats.
        mark = "document.querySelectorAll('.mark')[1]"
        assert chromium.run(f"{mark}.dataset.text").startswith("ddp-ds, 2 GPUs: speed-up 1.80")
        size = "getBoundingClientRect().toJSON()"
        box, picture = (chromium.run(f"document.querySelector('{it}').{size}") for it in (".drawn", ".drawn img"))
        assert box == picture  # so that a part of the one is the same part of the other
        chromium.run(f"{mark}.scrollIntoView({{block: 'center', inline: 'center'}})")
        at = chromium.run(f"(() => {{ const box = {mark}.getBoundingClientRect(); return [box.x + 9, box.y + 9]; }})()")
        chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
        assert "speed-up 1.80" in chromium.run(f"getComputedStyle({mark}, '::after').content")


@pytest.fixture
def page_of_bars(tmp_path: Path) -> Path:
    """A page whose picture has a bar of 50 ms forward, 100 ms backward and 50 ms of other things."""
    times = {"iteration_time_s": 0.2, "forward_s": 0.05, "backward_s": 0.1}
    folder = write_results(tmp_path / "results", vision_runs(100.0, (1.0,), **times))
    drawn = draw("step_breakdown", Results.read_scenario(folder / "scenarios/s0"))
    save(*drawn, folder / "figures/s0/step_breakdown")
    write_report(folder, folder / "report.html", {"s0": ScenarioPlan(figures=("step_breakdown",))})
    return folder / "report.html"


def test_a_part_of_a_bar_says_its_numbers_where_a_reader_points(chromium: Browser, page_of_bars: Path) -> None:
    chromium.scripts(allowed=False)  # it needs none
    for width in (1200, 390):
        chromium.width(width)
        chromium.open(page_of_bars)
        assert not chromium.run("document.querySelector('.keys').checkVisibility()")
        bar = "document.querySelectorAll('.mark')[1]"
        chromium.run(f"{bar}.scrollIntoView({{block: 'center', inline: 'center'}})")
        box, picture = (chromium.run(f"{it}.getBoundingClientRect().toJSON()") for it in (bar, f"{bar}.parentElement"))
        assert picture["width"] * 0.1 < box["width"] < picture["width"] * 0.6
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        chromium.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        assert "ddp-ds, 1 GPU: backward 100 ms (n=1)" in chromium.run(f"getComputedStyle({bar}, '::after').content")


def test_arrow_keys_go_from_mark_to_mark_of_a_picture(chromium: Browser, page_of_bars: Path) -> None:
    chromium.scripts(allowed=True)
    chromium.width(1200)
    chromium.open(page_of_bars)
    assert chromium.run("document.querySelector('.keys').checkVisibility()")
    shown = "[...document.querySelectorAll('.mark.shown')].map((it) => it.dataset.text.split(': ')[1])"
    chromium.run("document.querySelector('.picture').focus()")
    found = []
    for name, code in (("ArrowRight", 39), ("ArrowRight", 39), ("ArrowLeft", 37), ("Escape", 27), ("ArrowLeft", 37)):
        chromium.key(name, code)
        found.append(chromium.run(shown))
    forward, backward, other = (f"{part} ms (n=1)" for part in ("forward 50.0", "backward 100", "other 50.0"))
    assert found == [[forward], [backward], [forward], [], [other]]
    assert "other 50.0" in chromium.run("getComputedStyle(document.querySelector('.mark.shown'), '::after').content")
    chromium.run("document.activeElement.blur()")
    assert chromium.run(shown) == []
    assert chromium.complaints == []


def test_decimal_points_of_a_column_lie_below_each_other(opened: Browser) -> None:
    ends = """(heading) => {
      const table = document.getElementById('all-runs');
      const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === heading);
      const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]).filter((cell) => cell.textContent);
      return cells.map((cell) => {
        const range = document.createRange();
        range.setStart(cell.firstChild, 0);
        range.setEnd(cell.firstChild, cell.textContent.search(/\\D|$/));
        return [cell.textContent, range.getBoundingClientRect().right];
      });
    }"""
    found = opened.run(f"({ends})('Iteration time (s)')")
    # The text of a cell is the number and nothing else.
    assert [text for text, _ in found] == ["0.1", "0.12", "0.08", "1.5", "10.25"]
    assert [place for _, place in found] == pytest.approx([found[0][1]] * len(found), abs=0.1)


def test_without_scripts_the_page_is_whole_and_has_no_controls(chromium: Browser, page: Path) -> None:
    chromium.scripts(allowed=False)
    chromium.open(page)
    assert chromium.run(NAMES) == [*VISION, *LLM, *GPUS]
    controls = "[...document.querySelectorAll('button, input, select')].filter((it) => it.checkVisibility())"
    assert chromium.run(f"{controls}.length") == 0
    assert chromium.run("document.querySelectorAll('figure img').length") == 3


def test_on_paper_caveats_and_settings_are_open_controls_are_gone_and_the_page_is_white(opened: Browser) -> None:
    opened.call("Emulation.setEmulatedMedia", media="print")
    texts = opened.run("[...document.querySelectorAll('.notes li, details.same p')].filter((it) => it.checkVisibility("
                       "{contentVisibilityAuto: true})).map((it) => it.textContent)")  # fmt: skip
    assert "Runs without numbers: 1 out of memory." in texts
    assert any("batch size 4" in text for text in texts)
    controls = "[...document.querySelectorAll('input, select, .copy, .links')].filter((it) => it.checkVisibility())"
    assert opened.run(f"{controls}.length") == 0
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.call("Emulation.setEmulatedMedia", media="")


def test_what_goes_on_beyond_an_edge_fades_out_there(opened: Browser, page: Path) -> None:
    fades = "(() => { const style = getComputedStyle(document.querySelector('#runs .scroll')); "
    fades += "return ['left', 'right'].map((side) => parseFloat(style.getPropertyValue(`--fade-${side}`)) > 0); })()"
    opened.width(2000)
    assert opened.run(fades) == [False, False]  # it is all there
    opened.width(390)
    assert opened.run("document.documentElement.scrollWidth") == 390
    opened.wait(f"({fades}).join() === 'false,true'")
    opened.run("document.querySelector('#runs .scroll').scrollLeft = 9999")
    opened.wait(f"({fades}).join() === 'true,false'")
