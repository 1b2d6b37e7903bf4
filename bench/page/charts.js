/* SPDX-License-Identifier: Apache-2.0 */
/* The plots by Chart.js, where the page carries it: they follow the filters, answer the pointer and
   the arrow keys. Without it the pictures stay that the page has anyway; they are also what is
   printed. */
"use strict";
(async () => {
  if (!page.apply) return;
  page.apply();
  const packed = document.getElementById("library");
  if (!packed || !window.DecompressionStream) return;
  // Five characters are four bytes, as bench/page.c writes them.
  const text = packed.textContent, view = new DataView(new ArrayBuffer(text.length / 5 * 4));
  for (let i = 0; i < text.length; i += 5) {
    let bits = 0;
    for (let k = i; k < i + 5; k++) {
      const code = text.charCodeAt(k);
      bits = bits * 85 + (code === 120 ? 60 : code) - 35;
    }
    view.setUint32(i / 5 * 4, bits);
  }
  const bytes = new Uint8Array(view.buffer, 0, Number(packed.dataset.size));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(inflated).text();
  document.head.append(script);
  const Chart = window.Chart;
  if (!Chart) return;
  const { data, state, make } = page;
  const drawn = [];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (k) => css("--c" + (k % 8));
  const PATHS = [null, null, "M0-6 5.7 4.5H-5.7z", "M0-6.2 6.2 0 0 6.2-6.2 0z", "M0 6-5.7-4.5H5.7z",
    "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "M0-6.5 1.7-2 6.2-2 2.6.9 3.9 5.5 0 2.8-3.9 5.5-2.6.9-6.2-2-1.7-2z",
    "M-3-5.5H3L6 0 3 5.5H-3L-6 0z"];

  // The mark of a column as a picture, the same as in the tables.
  function mark(k) {
    const shape = (k + Math.floor(k / 8)) % 8, canvas = make("canvas", { width: 28, height: 28 });
    const pen = canvas.getContext("2d"), path = new Path2D(PATHS[shape] || undefined);
    if (shape === 0) path.arc(0, 0, 5, 0, 7);
    if (shape === 1) path.rect(-4.5, -4.5, 9, 9);
    pen.setTransform(2, 0, 0, 2, 14, 14);
    pen.fillStyle = colour(k);
    pen.fill(path);
    const small = make("canvas", { width: 14, height: 14 });
    small.getContext("2d").drawImage(canvas, 0, 0, 14, 14);
    return small;
  }

  function scaled(v, unit, steps) {
    for (const [size, name] of steps)
      if (v >= size * 0.9995) return Number((v / size).toPrecision(3)) + " " + name + unit;
    return v.toPrecision(3) + " " + unit;
  }
  const seconds = (v) => scaled(v, "s", [[1, ""], [1e-3, "m"], [1e-6, "\u00b5"], [1e-9, "n"]]);
  const rate = (v, unit) => scaled(v, unit, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]);
  const tokens = (v) => v >= 1024 && v % 1024 === 0 ? v / 1024 + "k" : String(v);
  const percent = (v) => (v * 100).toPrecision(2) + "%";

  const quantities = {
    time: { title: "time", value: (c) => [c.median, c.q1, c.q3], text: seconds },
    rate: { title: "rate", text: (v, row) => rate(v, row.unit),
      value: (c) => [c.rate, c.rate * c.median / c.q3, c.rate * c.median / c.q1] },
    share: { title: "share of the limit", text: percent, value: (c) => [c.limit_share,
      c.limit_share * c.median / c.q3, c.limit_share * c.median / c.q1] },
    speedup: { title: "speed-up", text: (v) => Number(v.toPrecision(3)) + "x",
      value: (c) => [c.speedup, c.speedup_low, c.speedup_high] },
  };

  // ------------------------------------------------------------------ one chart

  function axis(text, extra) {
    return Object.assign({ type: "logarithmic", grid: { color: css("--grid") },
      border: { display: false },
      ticks: { color: css("--muted"), maxRotation: 0, callback: text, font: { size: 11 } } }, extra);
  }

  // A chart in the place of its picture, with the keys that walk through its points.
  function draw(holder, build, label, tall) {
    const box = make("div", { className: tall ? "plot tall" : "plot" });
    const canvas = make("canvas", { tabIndex: 0 });
    const said = make("p", { className: "skip" });
    said.setAttribute("aria-live", "polite");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label + "; the arrow keys read its points");
    box.append(canvas);
    holder.append(box, said);
    holder.classList.add("drawn");
    const entry = { holder, chart: null };
    entry.update = () => {
      const config = build();
      holder.hidden = !config.data.datasets.some((d) => d.data.length);
      if (holder.hidden) return;
      if (entry.chart) {
        entry.chart.data = config.data;
        entry.chart.options = config.options;
        entry.chart.update("none");
      } else {
        entry.chart = new Chart(canvas, config);
      }
    };
    let place = -1;
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const points = [];
      entry.chart.data.datasets.forEach((d, datasetIndex) => {
        if (d.says) d.data.forEach((_, index) => points.push({ datasetIndex, index }));
      });
      if (!points.length) return;
      place = (place + step + points.length) % points.length;
      const at = points[place], dataset = entry.chart.data.datasets[at.datasetIndex];
      const where = entry.chart.getDatasetMeta(at.datasetIndex).data[at.index];
      entry.chart.setActiveElements([at]);
      entry.chart.tooltip.setActiveElements([at], { x: where.x, y: where.y });
      entry.chart.update("none");
      said.textContent = dataset.says(dataset.data[at.index]);
    });
    drawn.push(entry);
    entry.update();
  }

  function options(scales, extra) {
    return Object.assign({
      animation: false, responsive: true, maintainAspectRatio: false, scales,
      interaction: { mode: "nearest", intersect: true },
      plugins: {
        legend: { display: false },
        tooltip: {
          filter: (item) => Boolean(item.dataset.says), displayColors: false,
          callbacks: { title: () => "", label: (item) => item.dataset.says(item.raw).split("\n") },
        },
      },
    }, extra);
  }

  // ------------------------------------------------------------------ against length

  // Lines at powers of ten; of a speed-up at those of two.
  function powers(scale, name) {
    const base = name === "speedup" ? 2 : 10, ticks = [];
    const steps = Math.log(scale.max / scale.min) / Math.log(base);
    const parts = steps < 1.5 && base === 10 ? [1, 2, 5] : [1];
    let from = Math.floor(Math.log(scale.min) / Math.log(base) + 1e-9);
    for (; ticks.length < 40 && base ** from <= scale.max * 1.001; from++)
      for (const part of parts) {
        const value = part * base ** from;
        if (value >= scale.min * 0.999 && value <= scale.max * 1.001) ticks.push({ value });
      }
    scale.ticks = ticks;
  }

  function lengthChart(rows, name) {
    const off = page.hidden(), q = quantities[name], datasets = [], ideal = [];
    const fitting = rows.filter((row) => page.rowFits(row, off));
    data.columns.forEach((column, k) => {
      const points = [], low = [], high = [], wanted = [];
      for (const row of fitting) {
        const cell = row.cells[k];
        if (!page.shown(cell, k, off)) continue;
        const [v, least, most] = q.value(cell);
        if (!(v > 0)) continue;
        points.push({ x: row.kv_len, y: v, row });
        low.push({ x: row.kv_len, y: least || v });
        high.push({ x: row.kv_len, y: most || v });
        if (row.ideal_speedup) wanted.push({ x: row.kv_len, y: row.ideal_speedup });
      }
      if (!points.length) return;
      const c = colour(k), plain = { borderWidth: 0, pointRadius: 0, pointHitRadius: 0 };
      datasets.push({ data: points, borderColor: c, borderWidth: 2, pointStyle: mark(k),
        pointRadius: 5, pointHitRadius: 8,
        says: (p) => `${column.name}\n${p.row.name}: ${q.text(p.y, p.row)}` });
      datasets.push(Object.assign({ data: low, fill: "+1", backgroundColor: c + "2e" }, plain));
      datasets.push(Object.assign({ data: high, fill: false }, plain));
      if (name === "speedup") ideal.push({ data: wanted, borderColor: c, borderWidth: 1.4,
        borderDash: [5, 4], pointStyle: "line", pointRadius: wanted.length > 1 ? 0 : 9,
        pointHitRadius: 0 });
    });
    const row = rows[0], lengths = new Set(fitting.map((r) => r.kv_len));
    return { type: "line", data: { datasets: datasets.concat(ideal) }, options: options({
      x: axis((v) => tokens(v), { type: "logarithmic", afterBuildTicks: (scale) => {
        scale.ticks = [...lengths].map((value) => ({ value }));
      }, min: Math.min(...lengths) / 1.25, max: Math.max(...lengths) * 1.25 }),
      y: axis((v) => q.text(v, row), { afterBuildTicks: (scale) => powers(scale, name) }),
    }) };
  }

  function drawPanels(holder, name) {
    for (const figure of holder.querySelectorAll("figure")) {
      const rows = data.rows.filter((r) => r.group === Number(figure.dataset.g));
      whenSeen(figure, () => draw(figure,
        () => lengthChart(rows, name === "time" ? state.y : name),
        figure.querySelector("svg").getAttribute("aria-label")));
    }
  }

  // ------------------------------------------------------------------ roofline

  // Roofs are named at the right edge; names that would overlap move apart.
  const roofNames = {
    id: "roofNames",
    afterDraw(chart) {
      const pen = chart.ctx, area = chart.chartArea;
      const names = chart.data.datasets.filter((d) => d.roof).map((d) => ({
        text: d.roof, colour: d.borderColor, wanted: chart.scales.y.getPixelForValue(d.top) }));
      names.sort((a, b) => a.wanted - b.wanted);
      names.forEach((n, i) => { n.y = Math.max(n.wanted, i ? names[i - 1].y + 13 : area.top); });
      for (let i = names.length - 1; i >= 0; i--)
        names[i].y = Math.min(names[i].y, i + 1 < names.length ? names[i + 1].y - 13 : area.bottom);
      pen.save();
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      for (const n of names) {
        pen.strokeStyle = pen.fillStyle = n.colour;
        pen.globalAlpha = 0.6;
        pen.beginPath();
        pen.moveTo(area.right, n.wanted);
        pen.lineTo(area.right + 10, n.y);
        pen.stroke();
        pen.globalAlpha = 1;
        pen.fillText(n.text, area.right + 13, n.y);
      }
      pen.restore();
    },
  };

  function limitsOf(k) {
    const column = data.columns[k];
    if (column.limits) return column.limits;
    const first = data.columns.find((c) => c.file === column.file && c.at === column.at &&
      c.limits);
    return first ? first.limits : [];
  }

  function roofs(k, low, high, unit) {
    const limits = limitsOf(k).filter((l) => l.rate > 0);
    const slope = Math.max(0, ...limits.filter((l) => l.what !== "gemm").map((l) => l.rate));
    const products = {};
    for (const l of limits)
      if (l.what === "gemm" && !l.via && !(products[l.dtype] && products[l.dtype].rate >= l.rate))
        products[l.dtype] = l;
    return Object.values(products).map((l) => {
      const knee = slope ? Math.min(Math.max(l.rate / slope, low), high) : low, points = [];
      if (slope && slope * low < l.rate) points.push({ x: low, y: slope * low });
      points.push({ x: knee, y: l.rate }, { x: high, y: l.rate });
      return { type: "line", data: points, borderColor: colour(k), borderWidth: 1.5, pointRadius: 0,
        pointHitRadius: 0, roof: `${l.dtype} ${rate(l.rate, unit)}`, top: l.rate };
    });
  }

  // The rate of decode is of bytes.
  const work = (cell, row) => row.kind === "decode" ? cell.rate * row.intensity : cell.rate;

  function rooflineChart(wide) {
    const off = page.hidden(), sets = [], unit = wide ? "FLOP/s" : "";
    let low = Infinity, high = 0, least = Infinity;
    data.columns.forEach((column, k) => {
      const points = [];
      for (const row of data.rows) {
        const cell = row.cells[k];
        if (!page.rowFits(row, off) || !page.shown(cell, k, off) || !(row.intensity > 0)) continue;
        points.push({ x: row.intensity, y: work(cell, row), row });
        low = Math.min(low, row.intensity);
        high = Math.max(high, row.intensity);
        least = Math.min(least, work(cell, row));
      }
      if (points.length) sets.push({ k, data: points, pointStyle: mark(k), pointRadius: 5,
        pointHitRadius: 6, showLine: false, says: (p) => `${column.name}\n` +
          `${page.kinds[p.row.kind]} ${p.row.name}, ${p.row.detail}\n${rate(p.y, "FLOP/s")}` });
    });
    low /= 3;
    high *= 3;
    const seen = new Set(), lines = [];
    for (const set of sets) {
      const column = data.columns[set.k], own = `${column.file} ${limitsOf(set.k) === undefined}`;
      const identity = JSON.stringify([own, limitsOf(set.k)]);
      if (!seen.has(identity)) lines.push(...roofs(set.k, low, high, unit));
      seen.add(identity);
    }
    return { type: "scatter", data: { datasets: sets.concat(lines) }, plugins: [roofNames],
      options: options({
        x: axis((v) => v, { min: low, max: high, afterBuildTicks: powers, title: { display: true,
          text: "useful FLOP per byte" + (wide ? " of Q, K, V and O" : ""),
          color: css("--muted") } }),
        y: axis((v) => rate(v, unit), { min: least / 2, afterBuildTicks: powers,
          title: { display: true, text: "useful FLOP/s", color: css("--muted") } }),
      }, { layout: { padding: { right: wide ? 130 : 78, top: 8 } } }) };
  }

  // ------------------------------------------------------------------ start

  // Plots below the first screen wait until they are near it.
  function whenSeen(element, act) {
    if (!window.IntersectionObserver) return act();
    const watch = new IntersectionObserver((entries) => {
      if (!entries.some((e) => e.isIntersecting)) return;
      watch.disconnect();
      act();
    }, { rootMargin: "300px" });
    watch.observe(element);
  }

  const switches = document.querySelector("[data-for=lengths]");
  if (document.querySelector("[data-plot=time]"))
    switches.append(page.select("y", "Show ",
      [["time", "time"], ["rate", "rate"], ["share", "share of the limit"]]));
  for (const holder of document.querySelectorAll(".panels")) drawPanels(holder, holder.dataset.plot);
  const roofline = document.querySelector("[data-plot=roofline]");
  if (roofline) whenSeen(roofline, () => draw(roofline,
    () => rooflineChart(roofline.clientWidth > 600), "Roofline: FLOP/s against FLOP per byte", true));
  page.listeners.push(() => { for (const entry of drawn) entry.update(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", page.apply);
  page.apply();
})();
