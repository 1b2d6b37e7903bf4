/* SPDX-License-Identifier: Apache-2.0 */
/* Filters, sorting and copying of the matrix. Every word of the page stands in it without this
   script; nothing here asks the network for anything. The state is in the URL's fragment. */
"use strict";
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("matrix");
  // A cell with a time is a list of the fields that `data.fields` names.
  for (const row of data.rows) row.cells = row.cells.map((list) => {
    if (!Array.isArray(list)) return list;
    const cell = { status: "ok" };
    data.fields.forEach((name, n) => { cell[name] = list[n]; });
    cell.kernel = data.kernels[cell.kernel];
    cell.spread = (cell.q3 - cell.q1) / cell.median;
    return cell;
  });
  const SAME = 0.02; // as in bench/matrix.h
  const words = { // of the fragment, with what they are without it
    op: "", pattern: "", type: "", kernel: "", find: "", hide: "", base: "",
    sort: "shape", by: "time", dir: "up", bars: "linear", y: "time",
  };
  const state = Object.assign({}, words);
  const kinds = { prefill: "Prefill", chunk: "Chunk", backward: "Gradients", decode: "Decode" };
  const listeners = [];

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties || {});
    for (const child of children) element.append(child);
    return element;
  }

  // ------------------------------------------------------------------ the state

  function readFragment() {
    const text = location.hash.slice(1);
    if (text && !text.includes("=")) return; // a place of the page
    const given = new URLSearchParams(text);
    for (const word in words) state[word] = given.has(word) ? given.get(word) : words[word];
  }

  function writeFragment() {
    const changed = new URLSearchParams();
    for (const word in words) if (state[word] !== words[word]) changed.set(word, state[word]);
    const text = changed.toString();
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  }

  function set(word, value) {
    state[word] = value;
    writeFragment();
    apply();
  }

  const hidden = () => new Set(state.hide.split(",").filter((k) => /^\d+$/.test(k)).map(Number)
    .filter((k) => k < data.columns.length));

  // ------------------------------------------------------------------ what is shown

  // A time that counts: measured, by a device that is shown, with the kernel that is asked for.
  function shown(cell, column, off) {
    return cell && cell.status === "ok" && !off.has(column) &&
      (!state.kernel || cell.kernel === state.kernel);
  }

  function rowFits(row, off) {
    if (state.op && row.kind !== state.op) return false;
    if (state.pattern && row.pattern !== state.pattern) return false;
    if (state.type && row.dtype !== state.type) return false;
    const text = `${kinds[row.kind]} ${row.name} ${row.detail} ${row.problem}`.toLowerCase();
    for (const word of state.find.toLowerCase().split(/\s+/))
      if (!text.includes(word)) return false;
    return row.cells.some((cell, k) =>
      state.kernel ? shown(cell, k, off) : cell && !off.has(k));
  }

  // Of two columns of a row, as matrix_compare does.
  function compare(row, k, base) {
    const x = row.cells[k], than = row.cells[base], value = than.median / x.median;
    const a = data.columns[k], b = data.columns[base];
    const beside = a.file === b.file && a.at === b.at && a.peer !== b.peer;
    const drift = beside ? 1 : 1 + Math.max(a.drift || 0, b.drift || 0);
    const same = than.q1 / x.q3 / drift <= 1 && than.q3 / x.q1 * drift >= 1;
    return { value, same: same || Math.abs(value - 1) <= SAME };
  }

  // The fastest of what is shown of a row; less than two times have none, nor has a row of which
  // another was foretold to be faster.
  function fastest(row, off) {
    let best = -1, n = 0;
    row.cells.forEach((cell, k) => {
      if (!shown(cell, k, off)) return;
      n++;
      if (best < 0 || cell.median < row.cells[best].median) best = k;
    });
    const doubtful = (cell, k) => cell && cell.status === "slow" && !off.has(k) &&
      cell.estimate_seconds !== null && cell.estimate_seconds < row.cells[best].median;
    return n < 2 || row.cells.some(doubtful) ? -1 : best;
  }

  // As short_ratio writes it.
  const decimals = (v) => (v < 0.0995 ? Math.min(1 - v.toExponential(1).split("e")[1], 10) :
    v < 9.995 ? 2 : v < 99.95 ? 1 : 0);
  const times = (v) => v.toFixed(decimals(v)) + "x";

  function showCell(td, row, k, best, off) {
    const cell = row.cells[k], tag = td.querySelector(".tag");
    td.hidden = off.has(k);
    const filtered = state.kernel && !shown(cell, k, off);
    td.classList.toggle("off", Boolean(filtered));
    if (!cell || cell.status !== "ok") return;
    const behind = best >= 0 ? cell.median / row.cells[best].median : 0;
    const level = best >= 0 && k !== best && compare(row, k, best).same;
    td.classList.toggle("best", k === best);
    td.classList.toggle("level", level);
    tag.textContent = k === best ? "\u2605 fastest" : level ? "\u2248 level" :
      behind ? (behind < 9.95 ? behind.toFixed(2) : behind.toFixed(0)) + "\u00d7" : "";
    td.style.setProperty("--w", (behind ? 100 / behind : 0) + "%");
    showRatio(td, row, k, off);
  }

  function showRatio(td, row, k, off) {
    let line = td.querySelector(".ratio");
    const base = state.base === "" ? -1 : Number(state.base);
    if (line && line.dataset.first === undefined) line.dataset.first = line.textContent;
    if (base < 0) {
      if (line) line.textContent = line.dataset.first;
      return;
    }
    if (!line) {
      line = make("small", { className: "ratio" });
      line.dataset.first = "";
      td.append(line);
    }
    const than = row.cells[base];
    if (k === base || !shown(than, base, new Set())) {
      line.textContent = k === base ? "base" : "";
    } else {
      const r = compare(row, k, base);
      line.textContent = r.same ? "no difference" : times(r.value) + " base";
    }
    line.hidden = off.has(k);
  }

  const orders = { // of cells, the best first
    time: (c) => c.median, rate: (c) => -c.rate, share: (c) => -(c.limit_share || 0),
    spread: (c) => c.spread,
    behind: (c, row, off) => {
      const best = fastest(row, off);
      return best < 0 ? 1 : c.median / row.cells[best].median;
    },
  };

  function sortRows(off) {
    const column = state.sort === "shape" ? -1 : Number(state.sort);
    const sign = state.dir === "down" ? -1 : 1;
    const order = orders[state.by];
    const place = (tr) => {
      const row = data.rows[tr.dataset.r], cell = column >= 0 ? row.cells[column] : null;
      if (column < 0) return Number(tr.dataset.r);
      return shown(cell, column, off) ? order(cell, row, off) : Infinity;
    };
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((tr) => tr.dataset.r !== undefined);
      rows.sort((a, b) => {
        const x = place(a), y = place(b);
        if (x === y) return a.dataset.r - b.dataset.r;
        if (x === Infinity || y === Infinity) return x === Infinity ? 1 : -1;
        return sign * (x - y);
      });
      body.append(...rows);
    }
    for (const th of table.tHead.querySelectorAll("[aria-sort]")) {
      const mine = th.dataset.c === undefined ? "shape" : th.dataset.c;
      th.setAttribute("aria-sort", mine !== state.sort ? "none" :
        sign > 0 ? "ascending" : "descending");
    }
  }

  function showBars(off) {
    for (const bars of document.querySelectorAll(".bars")) {
      const rows = [...bars.querySelectorAll("p")], values = [];
      const cellOf = (row) => data.rows[row.parentNode.dataset.r].cells[row.dataset.c];
      for (const group of bars.children)
        group.hidden = !rowFits(data.rows[group.dataset.r], off);
      for (const row of rows) {
        row.hidden = !shown(cellOf(row), Number(row.dataset.c), off);
        if (!row.hidden && !row.parentNode.hidden) values.push(cellOf(row).rate);
      }
      const most = Math.max(...values), least = Math.min(...values) / 2;
      for (const row of rows) {
        const v = cellOf(row).rate;
        const share = state.bars === "log" ? Math.log(v / least) / Math.log(most / least) :
          v / most;
        row.querySelector("i").style.setProperty("--w",
          Math.max(0, Math.min(1, share)) * 100 + "%");
      }
    }
  }

  function showHeads(off, rows) {
    const counts = data.columns.map(() => [0, 0]);
    for (const row of rows) {
      const best = fastest(row, off);
      if (best < 0) continue;
      counts[best][0]++;
      row.cells.forEach((cell, k) => { if (shown(cell, k, off)) counts[k][1]++; });
    }
    for (const th of table.tHead.querySelectorAll("[data-c]")) {
      const k = Number(th.dataset.c), text = th.querySelector("small span");
      th.hidden = off.has(k);
      if (text) text.textContent = `${counts[k][0]} of ${counts[k][1]}`;
    }
    for (const other of document.querySelectorAll(".devices [data-c], .legend [data-c]"))
      other.hidden = off.has(Number(other.dataset.c));
  }

  // What a fragment says and no control offers is as if it said nothing.
  function settle() {
    for (const word in controls) {
      const offered = controls[word].options;
      if (offered && ![...offered].some((o) => o.value === state[word])) state[word] = words[word];
    }
    if (state.dir !== "down") state.dir = "up";
  }

  function apply() {
    settle();
    const off = hidden(), rows = [];
    for (const body of table.tBodies) {
      let any = false;
      for (const tr of body.rows) {
        if (tr.dataset.r === undefined) continue;
        const row = data.rows[tr.dataset.r], fits = rowFits(row, off);
        tr.hidden = !fits;
        if (!fits) continue;
        any = true;
        rows.push(row);
        const best = fastest(row, off);
        for (const td of tr.querySelectorAll("td")) showCell(td, row, td.cellIndex - 1, best, off);
      }
      body.hidden = !any;
    }
    const groups = new Set(rows.map((row) => row.group));
    for (const figure of document.querySelectorAll(".panels figure"))
      figure.hidden = !groups.has(Number(figure.dataset.g));
    showHeads(off, rows);
    sortRows(off);
    showBars(off);
    showControls(off, rows.length);
    for (const listener of listeners) listener();
  }

  // ------------------------------------------------------------------ controls

  const controls = {};

  function select(word, label, choices) {
    const list = make("select", { onchange: () => set(word, list.value) });
    for (const [value, text] of choices) list.append(make("option", { value, textContent: text }));
    controls[word] = list;
    return make("label", { textContent: label }, list);
  }

  function showControls(off, rows) {
    for (const word in controls)
      if (controls[word].value !== state[word]) controls[word].value = state[word];
    for (const box of document.querySelectorAll(".controls [type=checkbox]"))
      box.checked = !off.has(Number(box.value));
    document.getElementById("count").textContent =
      `${rows} of ${data.rows.length} shapes, ${data.columns.length - off.size} of ` +
      `${data.columns.length} devices`;
  }

  const distinct = (values) => [...new Set(values.filter(Boolean))];
  const choices = (all, values) => [["", all], ...distinct(values).map((v) => [v, v])];

  function deviceBoxes() {
    const group = make("fieldset", {}, make("legend", { textContent: "Devices" }));
    data.columns.forEach((column, k) => {
      const box = make("input", { type: "checkbox", value: k, checked: true });
      box.onchange = () => {
        const off = hidden();
        if (box.checked) off.delete(k); else off.add(k);
        set("hide", [...off].sort((a, b) => a - b).join(","));
      };
      const key = table.tHead.querySelector(`[data-c="${k}"] .key`).cloneNode(true);
      group.append(make("label", {}, box, key, column.name));
    });
    return group;
  }

  function buildControls() {
    const columns = data.columns.map((c, k) => [String(k), c.name]);
    const ops = distinct(data.rows.map((r) => r.kind)).map((k) => [k, kinds[k]]);
    const find = make("input", { type: "search", oninput: () => set("find", find.value) });
    controls.find = find;
    const box = make("form", { className: "controls", onsubmit: () => false },
      select("op", "Operation", [["", "all"], ...ops]),
      select("pattern", "Pattern", choices("all", data.rows.map((r) => r.pattern))),
      select("type", "Type", choices("all", data.rows.map((r) => r.dtype))),
      select("kernel", "Kernel", choices("any", data.rows.flatMap((r) =>
        r.cells.map((c) => c && c.kernel)))),
      make("label", { textContent: "Find" }, find),
      select("sort", "Sort by", [["shape", "shape"], ...columns]),
      select("by", "in order of", [["time", "time"], ["rate", "rate"], ["share", "share of limit"],
        ["spread", "IQR"], ["behind", "distance from fastest"]]),
      select("base", "Ratios to", [["", data.by_base ? "as compared" : "none"], ...columns]),
      make("button", { type: "button", textContent: "Copy as Markdown", onclick: copy }),
      make("button", { type: "button", textContent: "Reset", onclick: reset }),
      deviceBoxes());
    box.setAttribute("aria-label", "Filter and sort");
    const fold = make("details", { className: "fold", open: window.innerWidth >= 720 },
      make("summary", { textContent: "Filter, sort, copy" }), box);
    document.getElementById("controls").append(fold,
      make("p", { id: "count", className: "muted small" }));
    document.getElementById("count").setAttribute("role", "status");
    const bars = document.querySelector("[data-for=bars]");
    bars.append(select("bars", "Axis ", [["linear", "linear"], ["log", "logarithmic"]]));
  }

  function sortable() {
    for (const th of table.tHead.rows[0].cells) {
      const mine = th.dataset.c === undefined ? "shape" : th.dataset.c;
      const button = make("button", { type: "button" });
      const name = [...th.childNodes].filter((n) => n.nodeName !== "SMALL");
      button.append(...name);
      th.prepend(button);
      th.setAttribute("aria-sort", "none");
      button.onclick = () => {
        state.dir = state.sort === mine && state.dir === "up" ? "down" : "up";
        set("sort", mine);
      };
    }
  }

  function reset() {
    Object.assign(state, words);
    writeFragment();
    apply();
  }

  // ------------------------------------------------------------------ Markdown

  const plain = (text) => text.replace(/\s+/g, " ").trim().replace(/([\\|<>*_`[\]])/g, "\\$1");

  function markdown() {
    const off = hidden(), heads = [...table.tHead.rows[0].cells].filter((th) => !th.hidden);
    const names = heads.map((th) => plain(th.querySelector("button").textContent));
    let text = "";
    for (const body of table.tBodies) {
      if (body.hidden) continue;
      text += `| ${kinds[body.dataset.kind]} | ${names.slice(1).join(" | ")} |\n` +
        `| --- |${" ---: |".repeat(names.length - 1)}\n`;
      for (const tr of body.rows) {
        if (tr.hidden || tr.dataset.r === undefined) continue;
        const row = data.rows[tr.dataset.r];
        const cells = [...tr.querySelectorAll("td")].filter((td) => !td.hidden).map((td) => {
          const time = td.querySelector("b");
          if (td.classList.contains("off")) return "";
          if (!time) return plain(td.textContent);
          const bold = td.matches(".best,.level") ? "**" : "";
          const ratio = td.querySelector(".ratio");
          const rate = td.querySelector("small").textContent.replace(/\s*\u00b7\s*/g, ", ");
          return `${bold}${plain(time.textContent)}${bold}, ${plain(rate)}` +
            (ratio && ratio.textContent ? `, ${plain(ratio.textContent)}` : "");
        });
        text += `| ${plain(row.name + ", " + row.detail)} | ${cells.join(" | ")} |\n`;
      }
      text += "\n";
    }
    const files = data.files.map((f) => `Tessera ${f.version}, ${f.cpu}, ${f.created}`);
    return text + "Median time, useful rate, share of the device's own limit, distance of the " +
      "quartiles. Bold: the fastest of its row, or no difference from it. " +
      plain(files.join("; ")) + ".\n" + (off.size ? "Some devices are left out.\n" : "");
  }

  async function copy() {
    const text = markdown();
    let area = document.querySelector("textarea.copied"), said = "Select the text to copy it.";
    if (!area) {
      area = make("textarea", { className: "copied", readOnly: true });
      area.setAttribute("aria-label", "The table as Markdown");
      document.getElementById("controls").append(area);
    }
    area.value = text;
    area.select();
    try {
      await navigator.clipboard.writeText(text);
      said = "Copied.";
    } catch (error) {
      if (document.execCommand("copy")) said = "Copied.";
    }
    document.getElementById("count").textContent = said;
  }

  // ------------------------------------------------------------------ start

  if (!table) return { data, state, listeners };
  readFragment();
  buildControls();
  sortable();
  window.addEventListener("hashchange", () => { readFragment(); apply(); });
  return { data, state, listeners, hidden, shown, rowFits, select, set, apply, make, kinds };
})();
