"use strict";
// The table of runs: sorted by a click on a heading, filtered by words, outcome and scenario. Without this script all rows show.
(() => {
  const table = document.getElementById("runs-table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const filter = document.getElementById("filter");
  const [words, outcome, scenario] = ["words", "outcome", "scenario"].map((name) => filter.elements[name]);
  const shown = document.getElementById("shown");

  function apply() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = wanted.every((word) => text.includes(word))
        && (!outcome.value || row.dataset.outcome === outcome.value)
        && (!scenario.value || JSON.parse(row.dataset.scenarios).includes(scenario.value));
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} run${rows.length === 1 ? "" : "s"} shown`;
  }

  function sort(heading) {
    const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction);
    const numeric = heading.classList.contains("number");
    const sign = direction === "ascending" ? 1 : -1;
    const value = (row) => row.cells[heading.cellIndex].dataset.value ?? row.cells[heading.cellIndex].textContent.trim();
    // What is empty comes last, whichever way.
    body.append(...[...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true }));
    }));
  }

  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(heading));
    heading.append(button);
  }
  filter.addEventListener("input", apply);
  filter.addEventListener("reset", () => setTimeout(apply));
  filter.addEventListener("submit", (event) => event.preventDefault());
  filter.hidden = false;
  apply();
})();
