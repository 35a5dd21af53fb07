"use strict";
// Draws the interactive charts with plotly.js, which lies compressed in the page. Without it, or without a browser that
// can decompress, the pictures stay.
(() => {
  const DASHES = ["solid", "dash", "dashdot", "dot"];
  const SYMBOLS = ["circle", "square-open", "triangle-up", "diamond-open", "triangle-down", "cross-open", "x", "star-open"];
  const HATCHES = ["", "/", ".", "\\", "x", "-"];
  const plain = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  async function load() {
    const packed = atob(document.getElementById("plotly").textContent.trim());
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.text = await new Response(stream).text();
    document.head.append(script);
  }

  function boxes(panel) {
    return [
      { type: "box", orientation: "h", y: panel.names, hoverinfo: "skip", showlegend: false, width: 0.6,
        ...Object.fromEntries(["lowerfence", "q1", "median", "q3", "upperfence"].map((name) => [name, panel[name]])),
        line: { color: colour("--text"), width: 1.3 }, fillcolor: colour("--box") },
      // Plotly's hover text for boxes lists quantiles one by one; an invisible marker on the median has all.
      { type: "scatter", mode: "markers", x: panel.median, y: panel.names, hovertext: panel.texts, hoverinfo: "text",
        showlegend: false, marker: { size: 14, opacity: 0 } },
    ];
  }

  const look = (fill, hatch) => ({
    color: fill, line: { color: colour("--text"), width: 0.5 },
    pattern: { shape: hatch, fillmode: "overlay", fgcolor: colour("--surface"), fgopacity: 0.7, size: 6 },
  });

  // Parts of a bar, one upon the other, of the series that are shown.
  function stacked(chart, panel, shown) {
    return panel.parts.map((part) => {
      const bars = part.bars.filter((bar) => shown[bar.series]);
      return {
        type: "bar", name: part.name, width: 0.9 * chart.width, x: bars.map((bar) => bar.x), y: bars.map((bar) => bar.y),
        hovertext: bars.map((bar) => bar.text), hoverinfo: "text", marker: look(part.colour, part.hatch),
      };
    });
  }

  function traces(chart, panel, shown) {
    if (chart.kind === "boxes") return boxes(panel);
    if (panel.parts) return stacked(chart, panel, shown);
    const lines = chart.kind === "lines";
    const drawn = panel.points.map((points, i) => {
      const series = chart.series[i];
      const aside = lines ? 0.035 * (i - (chart.series.length - 1) / 2) : 0;
      return {
        type: lines ? "scatter" : "bar",
        name: series.name,
        visible: shown[i],
        x: points.map((point) => (lines ? point.x + aside : point.x)),
        y: points.map((point) => point.y),
        hovertext: points.map((point) => point.text),
        hoverinfo: "text",
        error_y: {
          type: "data", symmetric: false, thickness: 1.2, color: lines ? series.colour : colour("--text"), width: 3,
          array: points.map((point) => point.up), arrayminus: points.map((point) => point.down),
        },
        ...(lines
          ? { mode: "lines+markers", line: { color: series.colour, dash: DASHES[i % DASHES.length] },
              marker: { symbol: SYMBOLS[i % SYMBOLS.length], size: 8, color: series.colour } }
          : { width: chart.width, marker: look(series.colour, HATCHES[i % HATCHES.length]) }),
      };
    });
    if (panel.ideal) {
      const at = chart.ticks.map((tick) => tick.at);
      drawn.push({ type: "scatter", mode: "lines", name: "ideal", x: at, hoverinfo: "skip",
        y: at.map((n) => panel.factor * (panel.ideal === "equal" ? n : 1)),
        line: { color: colour("--muted"), dash: "dot", width: 1.5 } });
    }
    return drawn;
  }

  // What became of the configurations that have no bar, in its place; and of a panel without anything.
  function words(panel, shown) {
    const font = { size: 11, color: colour("--muted") };
    if (panel.points && panel.points.every((points) => !points.length) && !panel.missing.length)
      return [{ xref: "paper", yref: "paper", x: 0.5, y: 0.5, text: "not recorded", showarrow: false, font }];
    return (panel.missing ?? []).filter((each) => shown[each.series]).map((each) => ({
      x: each.x, y: 0, yanchor: "bottom", yshift: 2, text: each.text, textangle: -90, showarrow: false, font,
    }));
  }

  function layout(chart, panel, shown) {
    const lines = chart.kind === "lines";
    const counts = (panel.points ?? panel.parts?.map((part) => part.bars) ?? [[0]]).some((points) => points.length);
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), fixedrange: true };
    const last = chart.ticks[chart.ticks.length - 1].at;
    const log = lines && last > 8;
    const ticks = { tickmode: "array", tickvals: chart.ticks.map((tick) => tick.at), ticktext: chart.ticks.map((tick) => tick.text) };
    const counted = { ...axis, rangemode: "tozero", automargin: true, tickformat: "~g", showticklabels: counts, ...(counts ? {} : { range: [0, 1] }) };
    const lying = chart.kind === "boxes";
    return {
      autosize: true, height: lying ? 70 + 30 * chart.ticks.length : chart.x ? 280 : 260,
      margin: { l: lying ? 20 : 56, r: 12, t: 10, b: chart.x ? 44 : 28 }, showlegend: false, annotations: words(panel, shown),
      barmode: panel.parts ? "stack" : "overlay",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "system-ui, sans-serif", size: 13 },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--muted"), font: { color: colour("--text") }, align: "left" },
      xaxis: lying
        ? { ...counted, title: { text: chart.x, standoff: 8 } }
        : { ...axis, title: { text: chart.x, standoff: 8 }, type: log ? "log" : "linear", showgrid: false, automargin: true,
            ...(lines ? {} : { range: [-0.5, last + 0.5], zeroline: false }), ...ticks },
      yaxis: lying ? { ...axis, type: "category", autorange: "reversed", automargin: true, showgrid: false, ...ticks } : counted,
    };
  }

  function key(mark, text) {
    const shown = Object.assign(document.createElement("span"), { className: "mark" });
    shown.setAttribute("aria-hidden", "true");
    shown.style.backgroundColor = mark;
    return [shown, text];
  }

  function partsKey(panel) {
    const list = Object.assign(document.createElement("ul"), { className: "parts" });
    for (const part of panel.parts) {
      const item = document.createElement("li");
      item.append(...key(part.colour, part.name));
      list.append(item);
    }
    return list;
  }

  function legend(chart, redraw) {
    const box = document.createElement("fieldset");
    box.hidden = chart.series.length < 2;
    box.className = "series";
    box.append(Object.assign(document.createElement("legend"), { textContent: "Show" }));
    for (const series of chart.series) {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
      input.addEventListener("change", redraw);
      label.append(input, ...key(series.colour, plain(series.name)));
      box.append(label);
    }
    return box;
  }

  function build(figure) {
    const chart = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const place = figure.querySelector(".interactive");
    const picture = figure.querySelector(".picture");
    const notes = figure.querySelector(".notes");
    const panels = document.createElement("div");
    panels.className = "panels";
    const plots = chart.panels.map((panel) => {
      const box = document.createElement("div");
      const title = Object.assign(document.createElement("p"), { className: "panel", textContent: plain(panel.title) });
      if (chart.panels.length > 1) box.append(title);
      const picture = document.createElement("div");
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", `${plain(panel.title)}; its numbers are in the table below`);
      const plot = document.createElement("div");
      plot.setAttribute("aria-hidden", "true");
      picture.append(plot);
      box.append(picture);
      if (panel.parts) box.append(partsKey(panel));
      panels.append(box);
      return plot;
    });
    const toggle = Object.assign(document.createElement("button"), { type: "button", className: "toggle", textContent: "Show the printed figure" });
    toggle.setAttribute("aria-pressed", "false");
    toggle.addEventListener("click", () => {
      const printed = toggle.getAttribute("aria-pressed") === "false";
      toggle.setAttribute("aria-pressed", String(printed));
      picture.hidden = !printed;
      panels.hidden = printed;
      if (notes) notes.hidden = printed; // they stand in the picture too
      controls.hidden = printed || chart.series.length < 2;
    });
    const draw = () => {
      const shown = [...controls.querySelectorAll("input")].map((input) => input.checked);
      return Promise.all(plots.map((plot, i) => window.Plotly.react(
        plot, traces(chart, chart.panels[i], shown), layout(chart, chart.panels[i], shown), { responsive: true, displayModeBar: false })));
    };
    const controls = legend(chart, draw);
    place.append(panels, controls, toggle);
    place.hidden = false;
    picture.hidden = true;
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    return draw();
  }

  const figures = [...document.querySelectorAll(".interactive")].map((place) => place.closest("figure"));
  if (!figures.length || !window.DecompressionStream) return;
  load().then(() => Promise.all(figures.map(build))).then(() => {
    document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // where text is measured, unseen
    document.documentElement.dataset.charts = "drawn";
  });
})();
