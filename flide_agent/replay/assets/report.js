"use strict";
// Texts of files reach the page through textContent alone, never as markup.
const $ = (id) => document.getElementById(id);
const data = (id) => JSON.parse($(id).textContent);
const S = data("summary");
const ids = Object.keys(S.questions);
const NS = "http://www.w3.org/2000/svg";
const colour = (i) => `var(--c${i % 8})`;
const state = { run: -1, step: 0, shown: [], overall: false, value: null };

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k === "text") node.textContent = v;
    else if (k.startsWith("on")) node.addEventListener(k.slice(2), v);
    else node.setAttribute(k, v);
  }
  node.append(...children);
  return node;
}
function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS(NS, tag);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  if (text !== null) node.textContent = text;
  return node;
}
const fixed = (x, n = 2) => (x === null || x === undefined ? "n/a" : Number(x).toFixed(n));
const sum = (some, of) => some.reduce((total, one) => total + of(one), 0);
const mixed = ids.some((q) => S.questions[q].moment !== "before");
const title = (q) => S.questions[q].title + (mixed ? `, ${S.questions[q].moment}` : "");
// Of a step: the history that it is about, and what its requests cost together.
const tokens = (s) => Math.max(0, ...s.requests.map((r) => r.tokens));
const reused = (s) => sum(s.requests, (r) => r.reused);
const computed = (s) => sum(s.requests, (r) => r.computed);
const percentiles = (v) => Object.entries(v).filter((e) => e[0] !== "n").map(([k, x]) => `${k === "p100" ? "max" : k} ${+Number(x).toPrecision(3)}`).join(", ");
const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
function nice(top) {
  const base = 10 ** Math.floor(Math.log10(Math.max(top, 1e-9)));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((f) => f * base).find((v) => v >= top) || 1;
}

// What is drawn of an answer: P(yes); a score as part of its highest level; the probability of the option that is chosen.
function height(id, answer) {
  if (!answer) return null;
  if (answer.type === "noul") return answer.noul;
  if (answer.type === "score") return answer.score / Math.max(S.questions[id].options.length - 1, 1);
  return answer.probabilities[answer.choice];
}
function shown(id, answer) {
  if (!answer) return "-";
  if (answer.type === "noul") return fixed(answer.noul);
  if (answer.type === "score") return fixed(answer.score);
  return `${answer.choice} ${fixed(answer.probabilities[answer.choice])}`;
}

// Scroll a list, and the list alone, until an entry is in sight.
function within(list, entry) {
  const a = list.getBoundingClientRect(), b = entry.getBoundingClientRect();
  if (b.top < a.top) list.scrollTop -= a.top - b.top;
  else if (b.bottom > a.bottom) list.scrollTop += b.bottom - a.bottom;
}

function frame(label, h, top, left = 54, w = 1000) {
  const plot = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": label, "data-plot": label });
  for (const part of [0, 0.5, 1]) {
    const y = h - 18 - part * (h - 30);
    plot.append(svg("line", { class: "axis", x1: left, x2: w - 8, y1: y, y2: y }));
    plot.append(svg("text", { x: left - 5, y: y + 4, "text-anchor": "end" }, top(part)));
  }
  return plot;
}
const legend = (items) => {
  const box = el("div", { class: "legend" });
  for (const [text, fill] of items) {
    const dot = el("i");
    dot.style.background = fill;
    box.append(el("span", {}, dot, document.createTextNode(text)));
  }
  return box;
};

function timeline(value) {
  const box = $("timeline");
  box.replaceChildren();
  const steps = value.steps;
  if (!steps.length) return;
  const left = 54, w = 1000, n = steps.length;
  const x = (i) => left + ((i + 0.5) * (w - left - 8)) / n;
  const wide = (w - left - 8) / n;
  const hits = (plot, h) => {
    plot.append(svg("line", { class: "cursor", y1: 6, y2: h - 18, x1: 0, x2: 0 }));
    steps.forEach((s, i) => {
      const hit = svg("rect", { class: "hit", x: x(i) - wide / 2, y: 0, width: wide, height: h, "data-step": i });
      hit.append(svg("title", {}, `step ${s.step}, ${tokens(s)} tokens\n` + ids.map((q) => `${title(q)}: ${shown(q, s.answers[q])}`).join("\n")));
      hit.addEventListener("click", () => choose(i));
      plot.append(hit);
    });
    const every = Math.ceil(n / 20);
    steps.forEach((s, i) => { if (i % every === 0) plot.append(svg("text", { x: x(i), y: h - 4, "text-anchor": "middle" }, s.step)); });
    box.append(plot);
  };

  const curves = ids.filter((q) => S.questions[q].type !== "choice");
  if (curves.length) {
    const h = 190, y = (v) => h - 18 - v * (h - 30);
    const plot = frame("answers", h, (part) => fixed(part, 1));
    curves.forEach((q) => {
      const i = ids.indexOf(q), t = S.questions[q].threshold;
      const points = steps.map((s, k) => [x(k), height(q, s.answers[q])]).filter((p) => p[1] !== null).map((p) => `${p[0].toFixed(1)},${y(p[1]).toFixed(1)}`);
      plot.append(svg("polyline", { class: "curve", points: points.join(" "), fill: "none", stroke: colour(i), "stroke-width": 2 }));
      if (n === 1 && points.length) plot.append(svg("circle", { cx: points[0].split(",")[0], cy: points[0].split(",")[1], r: 4, fill: colour(i) }));
      if (t !== null) {
        plot.append(svg("line", { class: "threshold", x1: left, x2: w - 8, y1: y(t), y2: y(t), stroke: colour(i), "stroke-dasharray": "6 4" }));
      }
      steps.forEach((s, k) => {
        if (s.fired.includes(q)) plot.append(svg("circle", { class: "fire", cx: x(k), cy: y(height(q, s.answers[q])), r: 4, fill: colour(i) }));
      });
    });
    steps.forEach((s, k) => { if (s.failed) plot.append(svg("path", { class: "failed", d: `M${x(k) - 4},4 h8 l-4,7 z`, fill: "var(--bad)" })); });
    box.append(legend([...curves.map((q) => [title(q) + (S.questions[q].type === "score" ? " (part of its range)" : "") + (S.questions[q].threshold !== null ? `, fires from ${S.questions[q].threshold}` : ""), colour(ids.indexOf(q))]), ["▼ the last command failed (from the file)", "var(--bad)"]]));
    hits(plot, h);
  }
  for (const q of ids.filter((q) => S.questions[q].type === "choice")) {
    const options = S.questions[q].options, h = 52;
    const plot = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": q, "data-plot": q });
    steps.forEach((s, k) => {
      const answer = s.answers[q];
      if (!answer) return;
      const p = answer.probabilities[answer.choice];
      plot.append(svg("rect", { class: "band", x: x(k) - wide / 2, y: 6, width: Math.max(wide - 0.5, 0.5), height: 26, fill: colour(options.indexOf(answer.choice)), "fill-opacity": (0.25 + 0.75 * p).toFixed(3) }));
    });
    box.append(legend([[`${title(q)}:`, "transparent"], ...options.map((o, i) => [o, colour(i)])]));
    hits(plot, h);
  }
  {
    const h = 120, top = nice(Math.max(1, ...steps.map((s) => reused(s) + computed(s)))), y = (v) => h - 18 - (v / top) * (h - 30);
    const plot = frame("reuse", h, (part) => Math.round(part * top).toLocaleString("en"));
    steps.forEach((s, k) => {
      const bar = Math.max(wide - 1, 0.6);
      plot.append(svg("rect", { class: "reused", x: x(k) - bar / 2, y: y(reused(s)), width: bar, height: h - 18 - y(reused(s)), fill: "var(--reused)" }));
      plot.append(svg("rect", { class: "computed", x: x(k) - bar / 2, y: y(reused(s) + computed(s)), width: bar, height: y(reused(s)) - y(reused(s) + computed(s)), fill: "var(--computed)" }));
    });
    box.append(legend([["tokens reused", "var(--reused)"], ["tokens computed", "var(--computed)"]]));
    hits(plot, h);
  }
  {
    const h = 100, top = nice(Math.max(1e-6, ...steps.flatMap((s) => s.requests.map((r) => Math.max(r.ms, r.other ? r.other.ms : 0))))), y = (v) => h - 18 - (v / top) * (h - 30);
    const plot = frame("latency", h, (part) => String(+(part * top).toPrecision(3)));
    steps.forEach((s, k) => s.requests.forEach((r) => {
      plot.append(svg("circle", { class: "ms", cx: x(k), cy: y(r.ms), r: Math.min(3, wide / 2 + 1), fill: "var(--c0)" }));
      if (r.other) plot.append(svg("circle", { class: "other", cx: x(k), cy: y(r.other.ms), r: Math.min(3, wide / 2 + 1), fill: "var(--c1)" }));
    }));
    box.append(legend([["latency, ms", "var(--c0)"], ...(steps.some((s) => s.requests.some((r) => r.other)) ? [["the other side, ms", "var(--c1)"]] : [])]));
    hits(plot, h);
  }
}

function jumps(steps) {
  const box = $("jumps");
  box.replaceChildren();
  const to = (text, i) => { if (i >= 0) box.append(el("button", { type: "button", text: `${text}: step ${steps[i].step}`, onclick: () => choose(i) })); };
  for (const q of ids) {
    to(`first ${title(q)} over its threshold`, steps.findIndex((s) => s.fired.includes(q)));
    if (S.questions[q].type === "score" && steps.length) {
      const best = steps.reduce((b, s, i) => (s.answers[q] && (b < 0 || s.answers[q].score > steps[b].answers[q].score) ? i : b), -1);
      to(`highest ${title(q)}`, best);
    }
  }
  to("first failed command", steps.findIndex((s) => s.failed));
  to("first repeated action", steps.findIndex((s, i) => i && s.action && s.action === steps[i - 1].action));
  to("first rewritten history", steps.findIndex((s) => s.gone > 0));
}

function show(i, step = 0) {
  const run = S.runs[i];
  if (!run) return;
  state.run = i;
  state.overall = false;
  state.value = data(`run-${i + 1}`);
  $("run").hidden = false;
  $("overall").hidden = true;
  $("run-title").textContent = run.name || run.file;
  const place = run.row === 1 ? run.file : `${run.file}:${run.row}`;
  $("run-about").textContent = [place, run.format, count(run.steps, "step"), `${run.tokens.toLocaleString("en")} tokens at the end`, ...(run.tools ? [count(run.tools, "tool schema")] : []), ...run.notes].join(" · ");
  timeline(state.value);
  jumps(state.value.steps);
  const list = $("steps");
  list.replaceChildren(...state.value.steps.map((s, k) => {
    const row = el("div", { class: "row", role: "option", id: `row-${k}`, "aria-selected": "false", onclick: () => choose(k) });
    row.append(el("span", { text: s.step }), el("span", { text: tokens(s) }), el("span", { text: s.action.slice(0, 120) || "-" }), el("span", { class: "flag", text: (s.failed ? "▼" : "") + (s.fired.length ? "●" : "") }));
    return row;
  }));
  for (const item of $("runs").children) item.setAttribute("aria-current", String(Number(item.dataset.run) === i));
  const current = $("runs").querySelector('[aria-current="true"]');
  if (current) within($("runs"), current);
  if (state.value.steps.length) choose(Math.min(step, state.value.steps.length - 1));
  else $("step").replaceChildren(el("p", { text: "No steps." }));
}

function choose(k) {
  const s = state.value.steps[k];
  if (!s) return;
  const old = $(`row-${state.step}`);
  if (old) old.setAttribute("aria-selected", "false");
  state.step = k;
  const row = $(`row-${k}`);
  row.setAttribute("aria-selected", "true");
  within($("steps"), row);
  $("steps").setAttribute("aria-activedescendant", row.id);
  for (const cursor of $("timeline").querySelectorAll(".cursor")) {
    const hit = cursor.parentNode.querySelector(`[data-step="${k}"]`);
    const x = Number(hit.getAttribute("x")) + Number(hit.getAttribute("width")) / 2;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }
  const box = $("step");
  box.replaceChildren(el("h2", { text: `Step ${s.step}` }));
  for (const r of s.requests) box.append(el("p", { text: `${mixed ? `${r.moments.join(", ")}: ` : ""}${r.tokens.toLocaleString("en")} tokens of history, m = ${r.m}, ${r.reused} reused, ${r.computed} computed (${r.reason}), ${fixed(r.ms, 1)} ms: ${Object.entries(r.phases).filter(([k]) => k !== "total").map(([k, v]) => `${k} ${fixed(v, 1)}`).join(", ")}` }));
  const table = el("table", {}, el("tr", {}, ...["question", ...(mixed ? ["moment"] : []), "answer", "", "file says"].map((t) => el("th", { text: t }))));
  for (const q of ids.filter((q) => s.answers[q])) {
    const answer = s.answers[q], fill = el("span", { class: "bar" });
    fill.style.width = `${Math.round(90 * (height(q, answer) || 0))}px`;
    fill.style.background = colour(ids.indexOf(q));
    const value = el("td", { text: shown(q, answer) + (s.outside[q] ? " ?" : "") + (s.fired.includes(q) ? " fires" : "") });
    if (s.outside[q]) value.title = `out of the model's scope: ${s.outside[q]}`;
    if (s.fired.includes(q)) value.className = "fired";
    const right = s.right[q];
    const top = answer && (answer.type === "noul" ? String(answer.noul >= 0.5) : answer.type === "choice" ? answer.choice : Object.keys(answer.probabilities).reduce((a, b) => (answer.probabilities[b] > answer.probabilities[a] ? b : a)));
    const told = el("td", { text: right === null || right === undefined ? "" : right });
    if (told.textContent) told.className = top === right ? "right" : "wrong";
    const name = el("td", { text: S.questions[q].title, title: S.questions[q].instructions });
    table.append(el("tr", {}, name, ...(mixed ? [el("td", { text: S.questions[q].moment })] : []), value, el("td", {}, fill), told));
  }
  box.append(table);
  for (const { other } of s.requests) if (other) box.append(el("p", { text: other.error ? `The other side did not answer: ${other.error}` : `The other side: ${other.same ? "equal to the last bit" : `at most ${other.apart} apart`}, ${fixed(other.ms, 1)} ms` }));
  const seen = mixed ? "questions at “before” did not see it" : "it was not in the question";
  if (s.action) box.append(el("h3", { text: `What the agent then did (${seen})` }), el("pre", { class: "action", text: s.action }));
  if (s.result && s.result.length) box.append(el("h3", { text: "What came back" }), ...s.result.map((m) => message(m, true)));
  box.append(el("h3", { text: s.gone ? `New in the history: ${count(s.new.length, "message")}, in place of ${s.gone} earlier` : `New in the history: ${count(s.new.length, "message")}` }));
  const messages = s.new.map((i) => state.value.messages[i]);
  if (!messages.length) box.append(el("p", { text: S.without_text ? "The report holds no texts of this run: it grew too large." : "Nothing." }));
  box.append(...messages.map((m, i) => message(m, messages.length - i <= 6)));
  history.replaceState(null, "", `#run-${state.run + 1}-step-${s.step}`);
}

function message(m, open) {
  const d = el("details", {}, el("summary", { text: `${m.role}, ${(m.text.length + m.calls.length).toLocaleString("en")} characters` }));
  d.open = open;
  if (m.text) d.append(el("pre", { text: m.text }));
  if (m.calls) d.append(el("pre", { class: "action", text: m.calls }));
  return d;
}

function scatter(label, points, xs, ys, unit, fill) {
  const w = 520, h = 240, left = 56;
  const right = nice(Math.max(1, ...points.map(xs))), top = nice(Math.max(1e-6, ...points.map(ys)));
  const plot = frame(label, h, (part) => String(+(part * top).toPrecision(3)), left, w);
  for (const p of points) plot.append(svg("circle", { class: "point", cx: (left + (xs(p) / right) * (w - left - 12)).toFixed(1), cy: (h - 18 - (ys(p) / top) * (h - 30)).toFixed(1), r: 2.2, fill: fill(p), "fill-opacity": 0.6 }));
  for (const part of [0, 0.5, 1]) plot.append(svg("text", { x: left + part * (w - left - 12), y: h - 4, "text-anchor": part === 1 ? "end" : "middle" }, Math.round(part * right).toLocaleString("en")));
  return el("div", {}, el("h3", { text: `${label}, ${unit}, against history tokens` }), plot);
}

function bars(label, entries) {
  const w = 520, h = 180, left = 44, top = nice(Math.max(1, ...entries.map((e) => e[1])));
  const plot = frame(label, h, (part) => Math.round(part * top), left, w), wide = (w - left - 8) / Math.max(entries.length, 1);
  entries.forEach(([name, n, i], k) => {
    const y = h - 18 - (n / top) * (h - 30);
    const bar = svg("rect", { class: "bin", x: left + k * wide + 1, y, width: Math.max(wide - 2, 1), height: h - 18 - y, fill: colour(i) });
    bar.append(svg("title", {}, `${name}: ${n}`));
    plot.append(bar);
    if (entries.length <= 12 || k % 4 === 0) plot.append(svg("text", { x: left + (k + 0.5) * wide, y: h - 4, "text-anchor": "middle" }, name.slice(0, 12)));
  });
  return el("div", {}, el("h3", { text: label }), plot);
}

function reliability(q, r) {
  const w = 520, h = 240, left = 44, x = (v) => left + v * (w - left - 12), y = (v) => h - 18 - v * (h - 30);
  const plot = frame(`calibration of ${q}`, h, (part) => fixed(part, 1), left, w);
  plot.append(svg("line", { class: "axis", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  for (const b of r.reliability) {
    plot.append(svg("line", { x1: x(b.mean), x2: x(b.mean), y1: y(b.interval[0]), y2: y(b.interval[1]), stroke: "var(--soft)" }));
    const dot = svg("circle", { class: "reliable", cx: x(b.mean), cy: y(b.share), r: 3 + Math.min(5, Math.log10(b.n + 1) * 2), fill: colour(ids.indexOf(q)) });
    dot.append(svg("title", {}, `${b.n} answers, mean ${fixed(b.mean)}, right ${fixed(b.share)}`));
    plot.append(dot);
  }
  return el("div", {}, el("h3", { text: `${title(q)}: how often right, against its probability` }), plot);
}

function overall() {
  state.overall = true;
  $("run").hidden = true;
  const box = $("overall");
  box.hidden = false;
  const t = S.totals;
  const range = (i) => (i ? ` [${fixed(i[0])}, ${fixed(i[1])}]` : "");
  box.replaceChildren(el("h2", { text: "Overall" }));
  const rows = [["decisions", t.decisions.toLocaleString("en")], ["requests", t.requests.toLocaleString("en")], ["runs", t.runs], ["problems", t.problems], ["tokens computed", t.computed_tokens.toLocaleString("en")], ["tokens without reuse", t.computed_without_reuse.toLocaleString("en")], ["reused", `${(100 * t.reuse).toFixed(1)} %`], ["forks", Object.entries(t.reasons).map((e) => e.join(" ")).join(", ")], ["latency, ms", percentiles(t.milliseconds)], ["inside the service, ms", percentiles(t.service_milliseconds)], ["decisions a second", t.decisions_per_second]];
  if (t.compared) rows.push(["compared", `${t.compared.same} of ${t.compared.asked} equal to the last bit, at most ${t.compared.apart} apart, ${t.compared.failed} not answered; ${t.compared.own_computed_tokens.toLocaleString("en")} tokens computed here, ${t.compared.computed_tokens.toLocaleString("en")} there; latency there, ms: ${percentiles(t.compared.milliseconds)}`]);
  box.append(el("table", { id: "totals" }, ...rows.map(([k, v]) => el("tr", {}, el("th", { text: k }), el("td", { text: v })))));
  box.append(el("h3", { text: "Latency by history size" }), el("table", {}, ...Object.entries(t.milliseconds_by_size).map(([k, v]) => el("tr", {}, el("th", { text: k }), el("td", { text: `n ${v.n}, ${percentiles(v)}` })))));
  const plots = el("div", { class: "plots" });
  const warm = (p) => (p[4] ? "var(--c0)" : "var(--c1)");
  plots.append(scatter("Latency", S.points, (p) => p[0], (p) => p[1], "ms, blue warm, red cold", warm), scatter("Reuse", S.points, (p) => p[0], (p) => (100 * p[2]) / Math.max(p[2] + p[3], 1), "% of the tokens", warm));
  for (const q of ids) {
    const seen = S.histograms[q] || {}, type = S.questions[q].type;
    const entries = type === "noul" ? Array.from({ length: 20 }, (_, i) => [fixed(i / 20), seen[i] || 0, ids.indexOf(q)]) : S.questions[q].options.map((o, i) => [o, seen[o] || 0, type === "choice" ? i : ids.indexOf(q)]);
    plots.append(bars(`${title(q)}: ${type === "noul" ? "P(yes)" : "most probable"}`, entries));
  }
  for (const [q, r] of Object.entries(S.scores)) if (r.reliability) plots.append(reliability(q, r));
  box.append(plots);
  if (S.every > 1) box.append(el("p", { text: `The plots show every ${S.every}th decision.` }));
  if (Object.keys(S.scores).length) {
    const head = ["question", "n", "accuracy", "AUROC", "ECE", "threshold", "error there", "fires"];
    box.append(el("h3", { text: "Compared with what the files say (95 % intervals over runs)" }), el("table", { id: "scores" }, el("tr", {}, ...head.map((x) => el("th", { text: x }))), ...Object.entries(S.scores).map(([q, r]) => el("tr", {}, ...[title(q), r.n, fixed(r.accuracy) + range(r.accuracy_interval), fixed(r.auroc) + range(r.auroc_interval), fixed(r.ece) + range(r.ece_interval), r.threshold ? fixed(r.threshold.value) + range(r.threshold.interval) : "none", r.threshold ? fixed(r.threshold.error) + range(r.threshold.error_interval) : "", r.threshold ? r.threshold.fires : ""].map((x) => el("td", { text: x }))))));
  }
  if (S.problems.length) box.append(el("h3", { text: count(S.problems.length, "problem") }), el("table", { id: "problems" }, ...S.problems.map((p) => el("tr", {}, el("td", { text: p.file + (p.line ? `:${p.line}` : "") }), el("td", { text: p.message })))));
  filter();
  history.replaceState(null, "", "#overall");
}

function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean), fired = $("fired-only").checked;
  state.shown = S.runs.map((r, i) => i).filter((i) => {
    const r = S.runs[i], text = `${r.name} ${r.file} ${r.format} ${r.fired.join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word)) && (!fired || r.fired.length);
  });
  $("runs").replaceChildren(...state.shown.map((i) => {
    const r = S.runs[i];
    const item = el("li", { "data-run": i, "aria-current": String(i === state.run && !state.overall), onclick: () => show(i) });
    item.append(document.createTextNode(r.name || r.file.split("/").pop()), el("small", { text: `${r.format}, ${count(r.steps, "step")}, ${r.tokens.toLocaleString("en")} tokens${r.fired.length ? ", fired: " + r.fired.map((q) => S.questions[q].title).join(", ") : ""}` }));
    return item;
  }));
  $("count").textContent = `${state.shown.length} of ${count(S.runs.length, "run")}`;
}

function theme(next) {
  const now = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = next || (now === "dark" ? "light" : "dark");
}
function neighbour(by) {
  const at = state.shown.indexOf(state.run);
  const to = state.shown[at < 0 ? 0 : at + by];
  if (to !== undefined) show(to);
}
function fire(by) {
  const steps = state.value ? state.value.steps : [];
  for (let k = state.step + by; k >= 0 && k < steps.length; k += by) if (steps[k].fired.length) return choose(k);
}
const keys = {
  ArrowRight: () => choose(state.step + 1), l: () => choose(state.step + 1), ArrowLeft: () => choose(state.step - 1), h: () => choose(state.step - 1),
  Home: () => choose(0), End: () => choose(state.value.steps.length - 1), "]": () => neighbour(1), j: () => neighbour(1), "[": () => neighbour(-1), k: () => neighbour(-1),
  n: () => fire(1), p: () => fire(-1), "/": () => $("filter").focus(), o: () => (state.overall ? show(Math.max(state.run, 0), state.step) : overall()), t: () => theme(), "?": () => $("help").showModal(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target === $("filter")) {
    if (event.key === "Escape" || event.key === "Enter") $("filter").blur();
    return;
  }
  const act = keys[event.key];
  if (!act || (state.overall && /^(Arrow|Home|End|[hlnp]$)/.test(event.key)) || (!state.value && /^(Arrow|Home|End|[hlnp]$)/.test(event.key))) return;
  event.preventDefault();
  act();
});
$("filter").addEventListener("input", filter);
$("fired-only").addEventListener("change", filter);
$("theme").addEventListener("click", () => theme());
$("help-button").addEventListener("click", () => $("help").showModal());
$("overall-button").addEventListener("click", keys.o);
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
$("about").textContent = `${S.totals.models.join(", ")} · ${count(S.totals.decisions, "decision")} in ${count(S.totals.runs, "run")} · ${(100 * S.totals.reuse).toFixed(1)} % of the tokens reused · p50 ${S.totals.milliseconds.p50 === undefined ? "n/a" : +S.totals.milliseconds.p50.toPrecision(3)} ms · ${S.created}`;
if (S.totals.untrained) {
  $("warning").hidden = false;
  $("warning").textContent = "Untrained model: random weights, so these answers mean nothing yet.";
}
filter();
const place = /^#run-(\d+)(?:-step-(\d+))?$/.exec(location.hash);
if (location.hash === "#overall" || !S.runs.length) overall();
else {
  show(place ? Number(place[1]) - 1 : 0);
  if (place && place[2] && state.value) choose(Math.max(0, state.value.steps.findIndex((s) => s.step === Number(place[2]))));
}
