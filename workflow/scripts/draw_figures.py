"""Draw figures of a scenario as PNG, SVG and PDF, with the numbers as CSV and the caption as text.

python workflow/scripts/draw_figures.py FIGURE ... --scenario results/scenarios/NAME --out FOLDER
"""

import argparse
import gc
from pathlib import Path

from multicard.config.figures import FIGURES
from multicard.core.errors import reported
from multicard.figures.draw import draw_scenario
from multicard.figures.style import PAGE, WIDTHS_IN

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("figures", nargs="+", choices=FIGURES, metavar="FIGURE", help="names of the figures")
parser.add_argument("--scenario", type=Path, required=True, help="folder of the scenario, with its measures and tables")
parser.add_argument("--out", type=Path, required=True, help="folder of the files to write")
parser.add_argument("--width", choices=WIDTHS_IN, default=PAGE, help="width of the figures (default: %(default)s)")
arguments = parser.parse_args()
gc.freeze()  # to look through all that the libraries hold, again and again, takes a tenth of the time
with reported():
    draw_scenario(arguments.figures, arguments.scenario, arguments.out, arguments.width)
