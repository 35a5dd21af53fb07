// What the page can do where scripts run: without them it is complete, and the controls stay hidden.
"use strict";

// A cell of numbers may have its interval in brackets after the value, and commas between thousands.
function valueOf(cell) {
  return parseFloat(cell.textContent.replaceAll(",", "").replace("\u2212", "-"));
}

function compareCells(a, b, isNumber) {
  if (isNumber) return valueOf(a) - valueOf(b);
  return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

function isEmpty(cell, isNumber) {
  return isNumber ? Number.isNaN(valueOf(cell)) : cell.textContent.trim() === "";
}

// Sorts the rows by a column; empty cells come last, whichever the direction. Equal rows keep their order.
function sortRows(table, column, isNumber, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => {
    const [first, second] = [a.cells[column], b.cells[column]];
    const emptiness = isEmpty(first, isNumber) - isEmpty(second, isNumber);
    if (emptiness || isEmpty(first, isNumber)) return emptiness;
    return direction * compareCells(first, second, isNumber);
  });
  body.append(...rows);
}

function makeSortable(table) {
  const original = [...table.tBodies[0].rows];
  const headings = [...table.tHead.rows[0].cells];
  for (const [column, heading] of headings.entries()) {
    if ("unsorted" in heading.dataset) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const order = next[heading.ariaSort || "none"];
      for (const other of headings) other.removeAttribute("aria-sort");
      table.tBodies[0].append(...original);
      if (order === "none") return;
      heading.ariaSort = order;
      sortRows(table, column, heading.classList.contains("number"), order === "ascending" ? 1 : -1);
    });
  }
}

// A cell may name several things, such as all scenarios of a run.
function namesIn(cell) {
  return cell.textContent.split(", ").map((name) => name.trim());
}

function makeFilter(form) {
  const table = document.getElementById(form.dataset.table);
  const rows = [...table.tBodies[0].rows];
  const headings = [...table.tHead.rows[0].cells];
  const search = form.querySelector("input[type=search]");
  const status = form.querySelector("output");
  const choices = [];
  for (const [column, heading] of headings.entries()) {
    if (!("choice" in heading.dataset)) continue;
    const names = [...new Set(rows.flatMap((row) => namesIn(row.cells[column])))].filter(Boolean);
    if (names.length < 2) continue;
    names.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const select = document.createElement("select");
    select.append(new Option("all", ""), ...names.map((name) => new Option(name, name)));
    const label = document.createElement("label");
    label.append(`${heading.textContent.trim()} `, select);
    status.before(label, " ");
    choices.push({ column, select });
  }
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = `${row.textContent} ${row.cells[0].title}`.toLowerCase();
      const isChosen = ({ column, select }) => !select.value || namesIn(row.cells[column]).includes(select.value);
      row.hidden = !words.every((word) => text.includes(word)) || !choices.every(isChosen);
    }
    const shown = rows.filter((row) => !row.hidden).length;
    status.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} ${form.dataset.rows}`;
  };
  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
}

// A row of the side-by-side table: one value of each ticked configuration, with a bar as long as its share of the largest.
function comparedRow(heading, column, ticked) {
  const cells = ticked.map((row) => row.cells[column]);
  const isMeasure = heading.classList.contains("number") && !("choice" in heading.dataset);
  const values = cells.map((cell) => (isMeasure ? Math.max(0, valueOf(cell)) || 0 : 0));
  const largest = Math.max(...values);
  const row = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = heading.textContent;
  row.append(name);
  for (const [index, cell] of cells.entries()) {
    const copy = document.createElement("td");
    copy.textContent = cell.textContent;
    if (largest > 0) copy.style.setProperty("--share", `${(90 * values[index]) / largest}%`);
    row.append(copy);
  }
  return row;
}

function makeComparison(box) {
  const table = document.getElementById(box.dataset.table);
  const headings = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows];
  const region = box.querySelector(".scroll");
  const compared = region.querySelector("table");
  const show = () => {
    const ticked = rows.filter((row) => row.querySelector("input").checked);
    region.hidden = ticked.length < 2;
    const titles = [headings[0], ...ticked.map((row) => row.cells[0])].map((cell) => {
      const title = document.createElement("th");
      title.scope = "col";
      title.textContent = cell.textContent;
      return title;
    });
    compared.tHead.rows[0].replaceChildren(...titles);
    const known = headings.map((heading, column) => [heading, column]).slice(1);
    const shown = known.filter(([, column]) => ticked.some((row) => row.cells[column].textContent));
    compared.tBodies[0].replaceChildren(...shown.map(([heading, column]) => comparedRow(heading, column, ticked)));
  };
  for (const row of rows) {
    const tick = document.createElement("input");
    tick.type = "checkbox";
    tick.ariaLabel = `Compare ${row.cells[0].textContent}`;
    tick.addEventListener("change", show);
    row.cells[0].prepend(tick, " ");
  }
  box.hidden = false;
}

// What a shell or a configuration file takes as it stands: a command, or a line for each setting of `pin_memory: true,
// non_blocking: true`. Null for words such as `raise batch_size`, and for settings beside such words.
function pasteable(text) {
  if (text.startsWith("multicard ")) return text;
  const lines = text.split(/, (?=[\w.-]+: )/);
  return lines.every((line) => /^[\w.-]+: (\[[^\]]+\]|[^[,→]+)$/.test(line)) ? lines.join("\n") : null;
}

function addCopyButton(code, copied) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.title = `Copy ${copied}`;
  button.ariaLive = "polite";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copied);
      button.textContent = "Copied";
    } catch {
      // Browsers give no clipboard to a page from a server without encryption: the reader copies what is selected.
      getSelection().selectAllChildren(code);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  });
  code.after(" ", button);
}

// The arrow keys show the numbers of one mark after the other while a picture has the focus; Escape hides them.
function makeMarksReachable(picture) {
  const marks = [...picture.querySelectorAll(".mark")];
  if (!marks.length) return;
  let place = -1;
  const show = (next) => {
    marks[place]?.classList.remove("shown");
    place = next;
    marks[place]?.classList.add("shown");
    marks[place]?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  picture.addEventListener("keydown", (event) => {
    // With Alt, an arrow goes to another page.
    const step = event.altKey ? 0 : { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      // From no mark, left goes to the last one.
      const start = place < 0 && step < 0 ? 0 : place;
      show((start + step + marks.length) % marks.length);
      // Otherwise the browser would scroll the picture as well.
      event.preventDefault();
    }
    if (event.key === "Escape") show(-1);
  });
  picture.addEventListener("blur", () => show(-1));
}

for (const code of document.querySelectorAll(".try code")) {
  const copied = pasteable(code.textContent);
  if (copied !== null) addCopyButton(code, copied);
}
for (const table of document.querySelectorAll("table.numbers")) makeSortable(table);
for (const box of document.querySelectorAll(".comparison")) makeComparison(box);
for (const form of document.querySelectorAll("form.filter")) makeFilter(form);
for (const picture of document.querySelectorAll(".picture")) makeMarksReachable(picture);
for (const sentence of document.querySelectorAll(".keys")) sentence.hidden = false;
