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
      // A box given by its quantiles says them one by one; an unseen mark on its median says all.
      { type: "scatter", mode: "markers", x: panel.median, y: panel.names, hovertext: panel.texts, hoverinfo: "text",
        showlegend: false, marker: { size: 14, opacity: 0 } },
    ];
  }

  function traces(chart, panel) {
    if (chart.kind === "boxes") return boxes(panel);
    const lines = chart.kind === "lines";
    const width = 0.8 / chart.series.length;
    const drawn = panel.points.map((points, i) => {
      const series = chart.series[i];
      const aside = lines ? 0.035 * (i - (chart.series.length - 1) / 2) : 0;
      return {
        type: lines ? "scatter" : "bar",
        name: series.name,
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
          : { width: Math.min(width, 0.5),
              marker: { color: series.colour, line: { color: colour("--text"), width: 0.5 },
                        pattern: { shape: HATCHES[i % HATCHES.length], fillmode: "overlay", fgcolor: colour("--surface"), fgopacity: 0.7, size: 6 } } }),
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

  function layout(chart) {
    const lines = chart.kind === "lines";
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), fixedrange: true };
    const last = chart.ticks[chart.ticks.length - 1].at;
    const log = lines && last > 8;
    const ticks = { tickmode: "array", tickvals: chart.ticks.map((tick) => tick.at), ticktext: chart.ticks.map((tick) => tick.text) };
    const counted = { ...axis, rangemode: "tozero", automargin: true, tickformat: "~g" };
    const lying = chart.kind === "boxes";
    return {
      autosize: true, height: lying ? 70 + 30 * chart.ticks.length : chart.x ? 280 : 260,
      margin: { l: lying ? 20 : 56, r: 12, t: 10, b: chart.x ? 44 : 28 }, showlegend: false, barmode: "group",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "system-ui, sans-serif", size: 13 },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--muted"), font: { color: colour("--text") }, align: "left" },
      xaxis: lying
        ? { ...counted, title: { text: chart.x, standoff: 8 } }
        : { ...axis, title: { text: chart.x, standoff: 8 }, type: lines ? (log ? "log" : "linear") : "category",
            showgrid: false, automargin: true, ...ticks },
      yaxis: lying ? { ...axis, type: "category", autorange: "reversed", automargin: true, showgrid: false, ...ticks } : counted,
    };
  }

  function legend(chart, plots) {
    const box = document.createElement("fieldset");
    box.hidden = chart.series.length < 2;
    box.className = "series";
    box.append(Object.assign(document.createElement("legend"), { textContent: "Show" }));
    chart.series.forEach((series, i) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
      const mark = Object.assign(document.createElement("span"), { className: "mark" });
      mark.setAttribute("aria-hidden", "true");
      mark.style.backgroundColor = series.colour;
      input.addEventListener("change", () =>
        plots.forEach((plot) => window.Plotly.restyle(plot, { visible: input.checked }, [i])));
      label.append(input, mark, plain(series.name));
      box.append(label);
    });
    return box;
  }

  function build(figure) {
    const chart = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const place = figure.querySelector(".interactive");
    const picture = figure.querySelector(".picture");
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
      controls.hidden = printed || chart.series.length < 2;
    });
    const controls = legend(chart, plots);
    place.append(panels, controls, toggle);
    place.hidden = false;
    picture.hidden = true;
    const draw = () => Promise.all(plots.map((plot, i) =>
      window.Plotly.react(plot, traces(chart, chart.panels[i]).map((trace, j) => ({
        ...trace, visible: controls.querySelectorAll("input")[j]?.checked ?? true,
      })), layout(chart), { responsive: true, displayModeBar: false })));
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
