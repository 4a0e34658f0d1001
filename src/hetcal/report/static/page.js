"use strict";
// The charts are compiled Vega specifications. This script fills in their data and links them by class.
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("report-data").textContent);
  const specs = JSON.parse(byId("report-charts").textContent);
  const state = { picked: -1, query: "", kinds: new Set() };
  const views = new Map(); // id of the element -> {view, name, element, signals}
  const FEW = 20; // up to this many classes, charts name all of them
  const MANY = 60; // above this many classes, lines are drawn as one path
  const NAMED = 120; // up to this many classes, the chart of gaps grows to fit every name
  const LINE = 14; // height of a name in pixels

  // ---- numbers to text
  const percent = (v, digits = 1) => (v == null ? "–" : `${(100 * v).toFixed(digits)}%`);
  const points = (v) => (v == null ? "–" : `${v < 0 ? "−" : "+"}${(100 * Math.abs(v)).toFixed(1)}`);
  const whole = (v) => v.toLocaleString("en-US");
  const kindOf = (k) => data.kinds[data.kind[k]];
  const largestGaps = new Set(data.order.slice(0, FEW));
  const cut = (text, maximum) => (text.length > maximum ? `${text.slice(0, maximum - 1)}…` : text);

  const tipOf = (k) =>
    `${data.names[k]}\n${data.verdicts[data.kind[k]]}, ${whole(data.n[k])} rows\nconfidence ${percent(data.conf[k])}, ` +
    `accuracy ${percent(data.acc[k])}\ngap ${points(data.gap[k])} points (${points(data.low[k])} to ${points(data.high[k])})\n` +
    `ECE ${percent(data.ece[k])}, noise floor ${percent(data.floor[k])}, after calibration ${percent(data.eceAfter[k])}` +
    (data.explanations[k] ? `\n${data.explanations[k]}` : "");

  // ---- rows of each chart
  const table = byId("class-table");
  const tableRows = [...table.tBodies[0].rows];
  const searchable = [];
  for (const row of tableRows) searchable[row.dataset.class] = row.cells[0].textContent.toLowerCase();
  const matches = (k) =>
    (!state.kinds.size || state.kinds.has(kindOf(k))) && (!state.query || searchable[k].includes(state.query));

  function classRow(k, rank) {
    const named = state.picked < 0 ? largestGaps.has(k) && matches(k) : k === state.picked;
    return {
      k, key: `${rank}:${data.names[k]}`, kind: kindOf(k), n: data.n[k], conf: data.conf[k], acc: data.acc[k],
      gap: data.gap[k], low: data.low[k], high: data.high[k], noise_low: -data.noise[k], noise_high: data.noise[k],
      gap_after: data.gapAfter[k], train: data.train ? data.train[k] : null, match: matches(k), tip: tipOf(k),
      edge: data.gap[k] > 0 ? data.low[k] : data.high[k], label: named ? cut(data.names[k], 22) : "",
    };
  }

  function effectRows() {
    const k = state.picked, last = data.methods.length - 1;
    const row = (metric, before, after, floor) => ({
      metric, before, after, floor, before_text: percent(before), after_text: percent(after),
    });
    if (k >= 0) return data.n[k] ? [row("Class ECE", data.ece[k], data.eceAfter[k], data.floorAfter[k])] : [];
    return Object.entries(data.metrics).map(([m, name]) =>
      row(name, data.methods[0].value[m], data.methods[last].value[m], data.methods[last].floor[m]));
  }

  function binsOf(which) {
    const flat = state.picked < 0 ? data.whole[which] : data.bins[which][state.picked];
    const rows = [];
    for (let i = 0; i < flat.length; i += 4) rows.push({ bin: flat[i], n: flat[i + 1], conf: flat[i + 2], acc: flat[i + 3] });
    return rows;
  }

  function reliabilityRows(which) {
    const rows = binsOf(which), maximum = Math.max(1, ...rows.map((r) => r.n));
    return rows.map((r) => {
      const x0 = r.bin / data.nBins, x1 = (r.bin + 1) / data.nBins;
      const tip = `confidence ${percent(x0, 0)} to ${percent(x1, 0)}\n${whole(r.n)} rows\nmean confidence ${percent(r.conf)}\naccuracy ${percent(r.acc)}`;
      return { ...r, x0, x1, both: Math.min(r.conf, r.acc), share: -0.2 + (0.15 * r.n) / maximum, tip };
    });
  }

  function methodRows() {
    const k = state.picked, rows = [];
    const groups = k < 0 ? Object.entries(data.metrics) : [["class", "Class ECE"]];
    for (const [m, metric] of groups)
      for (const method of data.methods) {
        const value = k < 0 ? method.value[m] : method.classEce[k];
        const floor = k < 0 ? method.floor[m] : method.classFloor[k];
        if (value == null) continue;
        const label = `${method.name} ${percent(value)}`;
        const tip = `${method.name}, ${metric}\n${percent(value, 2)}, noise floor ${percent(floor, 2)}`;
        rows.push({ metric, method: method.name, value, floor, end: Math.max(value, floor), label, tip, recommended: method.recommended });
      }
    return rows;
  }

  function temperatureRows() {
    const rows = [];
    const many = data.names.length > MANY;
    data.path.t.forEach((t, k) => {
      if (!t || (many && !matches(k))) return;
      const tip = `${data.names[k]}\ntemperature ${t[0].toPrecision(3)} if shared, ${t[t.length - 1].toPrecision(3)} if separate`;
      t.forEach((v, i) => rows.push({ i: rows.length, k, x: data.path.x[i], t: v, kind: kindOf(k), match: matches(k), tip }));
      if (many) rows.push({ i: rows.length, k, x: null, t: null, kind: kindOf(k) });
    });
    return rows;
  }

  // Names at the right end, spread out on the log scale: all classes if there are few, otherwise the selected one.
  function temperatureLabels(height) {
    const [low, high] = data.path.range.map(Math.log), end = data.path.x[data.path.x.length - 1];
    const rows = [];
    data.path.t.forEach((t, k) => {
      const shown = t && (data.names.length <= FEW || k === state.picked);
      if (shown) rows.push({ k, y: Math.min(high, Math.max(low, Math.log(t[t.length - 1]))) });
    });
    rows.sort((a, b) => b.y - a.y);
    const spots = spread(rows.map((r) => r.y), (14 * (high - low)) / height, low, high);
    return rows.map((r, i) => ({ k: r.k, x: end, t: Math.exp(spots[i]), text: data.names[r.k], match: matches(r.k) }));
  }

  // Positions closest to the descending `values` that are at least `step` apart; close neighbours move as a block.
  function spread(values, step, low, high) {
    const blocks = [];
    values.forEach((v, i) => {
      blocks.push({ sum: v + i * step, n: 1 });
      for (let last = blocks.length - 1; last > 0; last--) {
        const [a, b] = [blocks[last - 1], blocks[last]];
        if (b.sum / b.n <= a.sum / a.n) break;
        blocks.splice(last - 1, 2, { sum: a.sum + b.sum, n: a.n + b.n });
      }
    });
    const spots = blocks.flatMap((b) => Array(b.n).fill(b.sum / b.n)).map((v, i) => v - i * step);
    const lift = Math.max(0, low - spots[spots.length - 1]) - Math.max(0, spots[0] - high);
    return spots.map((v) => v + (lift || 0));
  }

  function settlingRows() {
    const rows = data.settling.map((n, i) => ({ rows: n, settled: i + 1 }));
    return [{ rows: rows[0].rows * 0.8, settled: 0 }, ...rows, { rows: rows[rows.length - 1].rows * 1.1, settled: rows.length }];
  }

  const largest = (rows, keys) => Math.max(1e-3, ...rows.flatMap((r) => keys.map((key) => r[key] || 0)));

  // name -> rows, height and signals of a chart in the current state
  const charts = {
    effect: {
      rows: effectRows,
      height: (rows) => 60 + 60 * rows.length,
      signals: (rows) => ({ axis_end: 1.06 * largest(rows, ["before", "after", "floor"]) }),
    },
    reliability: { rows: (id) => reliabilityRows(id === "chart-after" ? 1 : 0), height: (_, width) => Math.min(430, width) },
    gaps: {
      rows: () => data.order.filter(matches).map(classRow),
      height: (rows) => 60 + Math.max(30, rows.length > NAMED ? 820 : Math.min(22 * rows.length, Math.max(660, LINE * rows.length))),
    },
    map: { rows: () => data.order.map(classRow), labels: () => (state.picked < 0 ? data.order.map(classRow).filter((r) => r.label) : []), height: (_, width) => Math.min(500, Math.max(320, 0.8 * width)) },
    methods: {
      rows: methodRows,
      height: (rows) => 56 + 21 * Math.max(2, rows.length),
      signals: (rows, width) => ({ axis_end: largest(rows, ["end"]) * (1 + 125 / Math.max(120, width - 220)) }),
    },
    temperatures: { rows: temperatureRows, labels: temperatureLabels, height: () => 360 },
    training: { rows: () => data.order.map(classRow), height: () => 320 },
    settling: { rows: settlingRows, height: () => 260 },
  };

  // ---- drawing
  function chartState(id, name, width) {
    const chart = charts[name], rows = chart.rows(id), height = chart.height(rows, width);
    const signals = { picked: state.picked, chart_width: width, ...data.signals[name], ...(chart.signals ? chart.signals(rows, width) : {}) };
    return { width, height, signals, sets: { rows, ...(chart.labels ? { labels: chart.labels(height - 70) } : {}) } };
  }

  async function createChart(element) {
    const name = element.dataset.chart, current = chartState(element.id, name, element.clientWidth);
    const spec = { ...specs[name], width: current.width, height: current.height };
    spec.data = spec.data.map((set) => (current.sets[set.name] ? { ...set, values: current.sets[set.name] } : set));
    spec.signals = (spec.signals || []).map((s) => (s.name in current.signals ? { ...s, value: current.signals[s.name] } : s));
    const options = { mode: "vega", renderer: "svg", actions: false, defaultStyle: false, hover: false, tooltip: showTip };
    const { view } = await vegaEmbed(element, spec, options);
    view.addEventListener("click", (_, item) => {
      const k = item && item.datum && item.datum.k;
      if (Number.isInteger(k)) toggle(k);
    });
    views.set(element.id, { view, name, element, signals: new Set(spec.signals.map((s) => s.name)) });
  }

  function draw(id) {
    const { view, name, element, signals } = views.get(id);
    const current = chartState(id, name, element.clientWidth);
    view.width(current.width).height(current.height);
    for (const [signal, value] of Object.entries(current.signals)) if (signals.has(signal)) view.signal(signal, value);
    for (const [set, rows] of Object.entries(current.sets)) view.data(set, rows);
    return view.runAsync();
  }

  const redraw = (names) => Promise.all([...views].filter(([, v]) => !names || names.includes(v.name)).map(([id]) => draw(id)));

  function showTip(_, event, item, value) {
    const tip = byId("tip");
    tip.hidden = value == null || value === "";
    if (tip.hidden) return;
    tip.textContent = typeof value === "object" ? Object.values(value).join("\n") : value;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - box.height - 8))}px`;
  }

  // ---- selecting a class
  const toggle = (k) => pick(k === state.picked ? -1 : k);

  function pick(k) {
    state.picked = k;
    for (const row of tableRows) {
      const on = Number(row.dataset.class) === k;
      row.classList.toggle("picked", on);
      if (on) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
      if (on && !row.contains(document.activeElement)) table.parentNode.scrollTop = row.offsetTop - 150;
    }
    const name = k < 0 ? "" : data.names[k];
    byId("selection").hidden = k < 0;
    byId("selection-name").textContent = name;
    byId("selection-note").textContent = k < 0 ? "" : data.verdicts[data.kind[k]];
    byId("selection").querySelector(".dot").style.background = k < 0 ? "" : `var(--${kindOf(k)})`;
    byId("whose").textContent =
      k < 0 ? "These diagrams show the whole model. Select a class anywhere on the page to see it here." : `These diagrams show ${cut(name, 60)} (${whole(data.n[k])} rows).`;
    byId("live").textContent = k < 0 ? "Showing the whole model" : `Showing ${tipOf(k).replaceAll("\n", ", ")}`;
    describe();
    return redraw();
  }

  function describe() {
    const subject = state.picked < 0 ? "the whole model" : `class ${data.names[state.picked]}`;
    const sides = [binsOf(0), binsOf(1)];
    ["before", "after"].forEach((when, i) => {
      const parts = sides[i].map((r) => `confidence ${percent(r.conf, 0)}, accuracy ${percent(r.acc, 0)}, ${whole(r.n)} rows`);
      byId(`chart-${when}`).setAttribute("aria-label", `Reliability diagram of ${subject} ${when} calibration: ${parts.join("; ") || "no rows"}.`);
    });
    const [first, last] = sides.map((rows) => new Map(rows.map((r) => [r.bin, r])));
    const body = byId("bins").tBodies[0];
    body.replaceChildren();
    for (let b = 0; b < data.nBins; b++) {
      if (!first.has(b) && !last.has(b)) continue;
      const row = body.insertRow(), head = document.createElement("th");
      head.scope = "row";
      head.textContent = `${percent(b / data.nBins)} to ${percent((b + 1) / data.nBins)}`;
      row.append(head);
      const cells = [first.get(b), last.get(b)].flatMap((r) => (r ? [whole(r.n), percent(r.conf), percent(r.acc)] : ["0", "–", "–"]));
      for (const text of cells) row.insertCell().textContent = text;
    }
  }

  // ---- searching and sorting
  function filter() {
    let shown = 0;
    for (const row of tableRows) {
      row.hidden = !matches(Number(row.dataset.class));
      shown += !row.hidden;
    }
    byId("found").textContent = shown === tableRows.length ? "" : `${whole(shown)} of ${whole(tableRows.length)} classes`;
    return redraw(["gaps", "map", "temperatures", "training"]);
  }

  function sortBy(header) {
    const column = header.cellIndex, down = header.getAttribute("aria-sort") !== "descending";
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const text = row.cells[column].textContent.trim();
      const number = parseFloat(text.replace("−", "-").replace(/[,%+]/g, ""));
      return header.classList.contains("text") ? text.toLowerCase() : Number.isNaN(number) ? -Infinity : number;
    };
    const keyed = tableRows.map((row) => [value(row), row]);
    keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
    tableRows.splice(0, Infinity, ...keyed.map(([, row]) => row));
    table.tBodies[0].append(...tableRows);
  }

  byId("search").addEventListener("input", (event) => {
    state.query = event.target.value.trim().toLowerCase();
    filter();
  });
  byId("search").addEventListener("keydown", (event) => {
    const first = tableRows.find((row) => !row.hidden);
    if (event.key === "Enter" && first) pick(Number(first.dataset.class));
    if (event.key === "ArrowDown" && first) {
      event.preventDefault();
      first.querySelector("button").focus();
    }
  });
  for (const chip of document.querySelectorAll(".chip"))
    chip.addEventListener("click", () => {
      const on = !state.kinds.has(chip.dataset.kind);
      state.kinds[on ? "add" : "delete"](chip.dataset.kind);
      chip.setAttribute("aria-pressed", String(on));
      filter();
    });
  table.tHead.addEventListener("click", (event) => {
    if (event.target.closest("button")) sortBy(event.target.closest("th"));
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.class");
    if (button) toggle(Number(button.dataset.class));
  });
  table.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches("button.class")) return;
    event.preventDefault();
    const shown = tableRows.filter((row) => !row.hidden);
    const next = shown[shown.indexOf(event.target.closest("tr")) + step];
    (next ? next.querySelector("button") : byId("search")).focus();
  });
  byId("clear").addEventListener("click", () => pick(-1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.picked >= 0) pick(-1);
  });

  // ---- navigation and wide tables
  // Mark elements with content beyond an edge, so that the style sheet can show it.
  function markEdges(element, scroller) {
    const mark = () => {
      const hidden = scroller.scrollWidth - scroller.clientWidth;
      element.classList.toggle("wide", hidden > 1);
      element.classList.toggle("cut-left", scroller.scrollLeft > 1);
      element.classList.toggle("cut-right", hidden - scroller.scrollLeft > 1);
    };
    scroller.addEventListener("scroll", mark, { passive: true });
    const observer = new ResizeObserver(mark);
    observer.observe(scroller);
    if (scroller.firstElementChild) observer.observe(scroller.firstElementChild);
  }
  for (const box of document.querySelectorAll(".table")) markEdges(box, box.querySelector(".scroll"));

  const nav = document.querySelector("nav"), links = nav.querySelector("ul");
  markEdges(nav, links);
  const targets = [...links.querySelectorAll("a")].map((link) => [link, document.querySelector(link.hash)]);
  const NEAR_TOP = 90; // pixels from the top of the window, below the place where a link scrolls a section to
  let followed = null; // the link clicked last
  // The current section is the last one that starts near the top or above it. At the end of the page, where short
  // sections cannot reach the top, it is the one whose link was followed, or else the last one.
  function currentLink() {
    const started = targets.filter(([, section]) => section.getBoundingClientRect().top < NEAR_TOP);
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    const candidates = atEnd ? targets.slice(Math.max(0, started.length - 1)) : started.slice(-1);
    const [link] = candidates.find(([l]) => l === followed) || candidates.at(-1) || targets[0];
    return link;
  }
  function markSection() {
    const current = currentLink();
    if (current.hasAttribute("aria-current")) return;
    for (const [link] of targets) link.removeAttribute("aria-current");
    current.setAttribute("aria-current", "true");
    links.scrollLeft = current.offsetLeft - (links.clientWidth - current.offsetWidth) / 2;
  }
  links.addEventListener("click", (event) => {
    followed = event.target.closest("a");
    setTimeout(markSection); // the page may not need to scroll
  });
  addEventListener("scroll", markSection, { passive: true });
  markSection();

  // ---- start
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw(), 120);
  });
  window.hetcalReport = { data, state, views, pick };
  describe();
  Promise.all([...document.querySelectorAll(".plot")].map(createChart)).then(() =>
    document.documentElement.setAttribute("data-ready", String(Math.round(performance.now()))));
})();
