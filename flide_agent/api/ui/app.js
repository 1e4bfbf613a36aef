"use strict";
// Sessions, the steps of one with its answers over time, reuse and latency, the store's tiers. Everything shown is put in as text.

const at = (id) => document.getElementById(id);
const make = (tag, text, ...classes) => {
  const out = document.createElement(tag);
  if (text !== undefined) out.textContent = text;
  out.classList.add(...classes);
  return out;
};
const size = (n) => (n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : n >= 2 ** 20 ? `${(n / 2 ** 20).toFixed(1)} MiB` : `${(n / 1024).toFixed(0)} KiB`);
const MOST_CHARTS = 8, MOST_POINTS = 200;

let key = "", current = null, cursor = null, stop = null;
let steps = new Map(); // head -> what is known of the step

async function ask(path, options = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch(path, { ...options, headers: { ...headers, ...options.headers } });
  if (reply.status === 401) {
    at("key-form").hidden = false;
    throw new Error("an API key is needed");
  }
  if (!reply.ok) throw new Error(`${path.split("?")[0]}: ${reply.status}`);
  return reply;
}
const read = async (path) => (await ask(path)).json();

function say(text) { at("state").textContent = text; }

async function listSessions(more = false) {
  const page = await read(`/v1/sessions?limit=100${more && cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
  cursor = page.cursor;
  if (!more) at("sessions").replaceChildren();
  for (const session of page.sessions.sort((a, b) => b.updated - a.updated)) {
    const button = make("button", session.id);
    button.dataset.session = session.id;
    button.append(make("small", `${session.step} steps, ${session.tokens} tokens`));
    if (current === session.id) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => { location.hash = encodeURIComponent(session.id); });
    const item = make("li");
    item.append(button);
    at("sessions").append(item);
  }
  at("count").textContent = `${at("sessions").children.length}${cursor ? "+" : ""}`;
  at("more").hidden = !cursor;
}

async function overview() {
  const models = await read("/v1/models");
  const ready = await read("/ready").catch(() => ({ ready: false }));
  const model = models.models[0];
  at("model").textContent = model.name + (model.x_untrained ? " (untrained)" : "");
  if (!ready.ready || !stop) say(ready.ready ? "ready" : "not ready");
  const reply = await fetch("/v1/stats", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  const rows = ready.engine ? [["device", `${ready.engine.device}, ${ready.engine.dtype}`]] : [];
  if (reply.ok) {
    const { engine, store } = await reply.json();
    rows.push(["on the device", `${store.device_count} checkpoints, ${size(store.device_bytes)}`]);
    rows.push(["on disk", `${store.disk_count} checkpoints, ${size(store.disk_bytes)} of ${size(store.disk_limit)}`]);
    rows.push(["disk", store.mode === "rw" ? "takes writes" : "refuses writes"]);
    rows.push(["found", `${store.hits_device} on the device, ${store.hits_disk} on disk, ${store.misses} not`]);
    rows.push(["tokens", `${engine.tokens_computed} computed, ${engine.tokens_reused} reused`]);
    rows.push(["waiting", `${engine.waiting} requests`]);
  }
  at("store").replaceChildren(...rows.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
}

// --- one session ---

function value(answer) {
  if (answer.type === "noul") return { text: answer.noul.toFixed(3), share: answer.noul };
  if (answer.type === "choice") return { text: answer.choice, share: answer.probabilities[answer.choice] };
  const top = Math.max(1, Object.keys(answer.probabilities).length - 1);
  return { text: answer.score.toFixed(2), share: answer.score / top };
}

function answersCell(answers) {
  const cell = make("td");
  for (const [id, answer] of Object.entries(answers || {})) {
    const { text, share } = value(answer);
    const whole = make("span", undefined, "answer"), bar = make("span", undefined, "bar"), fill = make("i");
    whole.dataset.question = id;
    whole.append(make("b", id), ` ${text}`);
    fill.style.width = `${100 * share}%`;
    bar.append(fill);
    whole.append(bar);
    cell.append(whole);
  }
  return cell;
}

function kept(step) {
  const tiers = new Set((step.checkpoints || []).flatMap((c) => c.tiers));
  return [...tiers].join(" + ") + (step.durable ? ", durable" : "");
}

function draw() {
  const list = [...steps.values()].sort((a, b) => a.number - b.number);
  const rows = list.slice().reverse().map((step) => {
    const row = make("tr");
    row.dataset.step = step.number;
    const cells = [step.number, step.reason, step.tokens, step.m, step.computed ?? "", step.latency ? step.latency.total.toFixed(1) : ""];
    row.append(...cells.map((text) => make("td", text)), make("td", kept(step)), answersCell(step.answers));
    return row;
  });
  at("steps").replaceChildren(...rows);
  const shown = list.slice(-MOST_POINTS);
  const series = [["reused of the history", shown.map((s) => (s.tokens ? s.m / s.tokens : 0))]];
  const longest = Math.max(1e-9, ...shown.map((s) => (s.latency ? s.latency.total : 0)));
  series.push([`latency, up to ${longest.toFixed(1)} ms`, shown.filter((s) => s.latency).map((s) => s.latency.total / longest)]);
  const ids = [...new Set(shown.flatMap((s) => Object.keys(s.answers || {})))].slice(0, MOST_CHARTS);
  for (const id of ids) series.push([id, shown.filter((s) => s.answers && s.answers[id]).map((s) => value(s.answers[id]).share)]);
  at("charts").replaceChildren(...series.map(([name, points]) => chart(name, points)));
}

function chart(name, points) {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "polyline");
  svg.setAttribute("viewBox", "0 0 200 50");
  svg.setAttribute("width", "200");
  svg.setAttribute("height", "50");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${name}: ${points.map((p) => p.toFixed(2)).join(", ")}`);
  const x = (i) => (points.length < 2 ? 100 : 4 + (192 * i) / (points.length - 1)), y = (p) => 46 - 42 * p;
  const path = points.length === 1 ? `90,${y(points[0])} 110,${y(points[0])}` : points.map((p, i) => `${x(i)},${y(p)}`).join(" ");
  line.setAttribute("points", path);
  svg.append(line);
  const out = make("figure");
  out.append(svg, make("figcaption", name));
  return out;
}

function take(kind, data) {
  if (kind === "step") {
    const { head, step, m, reason, history_tokens, computed_tokens, latency, answers } = data;
    const known = steps.get(head) || {};
    steps.set(head, { ...known, number: step, reason, m, tokens: history_tokens, computed: computed_tokens, latency, answers });
    at("about").textContent = `${history_tokens} tokens, ${steps.size} steps`;
  } else if (kind === "durable" && steps.has(data.head)) {
    steps.set(data.head, { ...steps.get(data.head), durable: true, checkpoints: data.checkpoints });
  } else if (kind === "deleted") {
    say("this session was deleted");
    return;
  }
  draw();
}

// EventSource cannot send a key, so the stream is read by hand.
async function follow(session, signal) {
  let last = 0;
  while (!signal.aborted) {
    try {
      const reply = await ask(`/v1/sessions/${encodeURIComponent(session)}/events?after=${last}`, { signal });
      say("live");
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value: part } = await reader.read();
        if (done) break;
        text += part;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const fields = Object.fromEntries(event.split("\n").filter((l) => l[0] !== ":").map((l) => [l.slice(0, l.indexOf(":")), l.slice(l.indexOf(":") + 2)]));
          if (fields.id) last = Number(fields.id);
          if (fields.event) take(fields.event, JSON.parse(fields.data));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      say(error.message);
    }
    last = 0; // a server that started again counts from the beginning
    await new Promise((go) => setTimeout(go, 1000));
  }
}

async function open(session) {
  if (stop) stop.abort();
  stop = new AbortController();
  current = session;
  steps = new Map();
  const found = await read(`/v1/sessions/${encodeURIComponent(session)}`);
  for (const step of found.steps) steps.set(step.head, { ...step });
  at("session").hidden = false;
  at("hint").hidden = true;
  at("title").textContent = session;
  at("about").textContent = `${found.tokens} tokens, ${found.steps.length} steps`;
  for (const button of document.querySelectorAll("[data-session]")) button.toggleAttribute("aria-current", button.dataset.session === session);
  draw();
  follow(session, stop.signal);
}

const guarded = (work) => work().catch((error) => say(error.message));
function start() {
  guarded(async () => {
    await overview();
    await listSessions();
    if (location.hash.length > 1) await open(decodeURIComponent(location.hash.slice(1)));
  });
}
at("more").addEventListener("click", () => guarded(() => listSessions(true)));
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value;
  at("key-form").hidden = true;
  start();
});
window.addEventListener("hashchange", () => guarded(() => open(decodeURIComponent(location.hash.slice(1)))));
setInterval(() => guarded(async () => { if (!document.hidden && at("key-form").hidden) { await overview(); await listSessions(); } }), 5000);
start();
