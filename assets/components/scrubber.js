// Moves the time cursor of every timeline and says who is where at that instant, without a trip to the server.
// data: { policies, end, step, t } – times in ms or null (never); t is null until the cursor is placed. A policy is {name, slots,
// arrival, admitted, first, finished, released, slot}, columns by request, or, where there are no slots to show,
// {name, spans: [[state, request[], from[], until[]], …]}: who is in which state from when until when.
// On release the time goes to the server as the state value `cursor`: {t, drawn}; drawn is false where the figures could not be
// moved here (Plotly is not within reach), and the server draws.
const MOST_NAMED = 12;
const MOST_SLOTS = 6; // that are seen without scrolling

const milliseconds = (t) => t.toLocaleString("en-US", { maximumFractionDigits: t < 10 ? 1 : 0 }) + " ms";

function moveCursor(t) {
  if (typeof window.Plotly?.relayout !== "function") return false;
  let moved = false;
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const i = (plot.layout?.shapes ?? []).findIndex((shape) => shape.name === "cursor");
    if (i < 0) continue;
    moved = true;
    const { x0, visible } = plot.layout.shapes[i];
    if (x0 === t && visible !== false) continue;
    const at = `shapes[${i}].`;
    Promise.resolve(window.Plotly.relayout(plot, { [at + "x0"]: t, [at + "x1"]: t, [at + "visible"]: true })).catch(() => {});
  }
  return moved;
}

// Times are half-open: at its own end a request is gone. A slot of a static batch is held from the last token to the release.
function stateAt(policy, t) {
  const slots = Array.from({ length: policy.slots }, () => "empty");
  const queued = [];
  const finished = [];
  const after = (time) => time === null || time > t; // null: never
  for (let i = 0; i < policy.arrival.length; i++) {
    if (after(policy.arrival[i])) continue;
    if (after(policy.admitted[i])) queued.push(i + 1);
    else if (after(policy.released[i])) {
      const phase = after(policy.first[i]) ? "prefill" : after(policy.finished[i]) ? "decode" : "ended, held";
      slots[policy.slot[i]] = `request ${i + 1}, ${phase}`;
    }
    if (!after(policy.finished[i])) finished.push(i + 1);
  }
  return { slots, queued, finished };
}

function listed(numbers, latest) {
  if (numbers.length === 0) return "none";
  const named = latest ? numbers.slice(-MOST_NAMED) : numbers.slice(0, MOST_NAMED);
  const cut = numbers.length > MOST_NAMED;
  return `${numbers.length}: ` + (cut && latest ? "… " : "") + named.join(", ") + (cut && !latest ? " …" : "");
}

function cell(kind, text, scope) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
}

function row(head, cells) {
  const made = document.createElement("tr");
  made.append(cell("th", head, "row"), ...cells);
  return made;
}

// The requests of a state at t; those who stay in it for ever are named from the latest on.
function spanAt([, request, from, until], t) {
  const there = request.filter((_, i) => from[i] <= t && (until[i] === null || until[i] > t));
  return listed(there.map((r) => r + 1), until.length > 0 && until.every((end) => end === null));
}

function spanRows(policies, t) {
  return policies[0].spans.map(([state], k) => row(state, policies.map((p) => cell("td", spanAt(p.spans[k], t)))));
}

function fill(root, policies, t) {
  const heads = policies.map((policy) => cell("th", policy.name, "col"));
  root.querySelector("thead tr").replaceChildren(cell("td", ""), ...heads);
  const spans = policies[0].spans;
  root.style.setProperty("--rows", String(spans ? 1 + spans.length * 1.05 : 3 + Math.min(slotsOf(policies), MOST_SLOTS)));
  root.querySelector("tbody").replaceChildren(...(spans ? spanRows : slotRows)(policies, t));
}

const slotsOf = (policies) => Math.max(...policies.map((policy) => policy.slots));

function slotRows(policies, t) {
  const states = policies.map((policy) => stateAt(policy, t));
  const rows = [
    row("Queued", states.map((s) => cell("td", listed(s.queued, false)))),
    row("Finished", states.map((s) => cell("td", listed(s.finished, true)))),
  ];
  for (let k = 0; k < slotsOf(policies); k++) {
    rows.push(row(`Slot ${k + 1}`, states.map((s) => cell("td", s.slots[k] ?? ""))));
  }
  return rows;
}

export default function ({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".scrub");
  const range = root.querySelector("input");
  const shown = root.querySelector("output");
  const own = (root.own ??= { busy: false, frame: 0, timer: 0 }); // survives a rerun, as the element does

  const show = (t) => {
    shown.textContent = milliseconds(t);
    range.setAttribute("aria-valuetext", milliseconds(t));
    fill(root, data.policies, t);
  };
  const commit = () => {
    own.busy = false;
    const t = Number(range.value);
    setStateValue("cursor", { t, drawn: moveCursor(t) });
  };

  range.max = String(data.end);
  range.step = String(data.step);
  // The time of a link need not lie on the grid of the range: it is shown as it is, not as the range rounds it.
  const t = own.busy ? Number(range.value) : Math.min(data.t ?? 0, data.end);
  if (!own.busy) range.value = String(t);
  show(t);
  if (data.t !== null) moveCursor(t);

  range.oninput = () => {
    own.busy = true;
    window.cancelAnimationFrame(own.frame);
    own.frame = window.requestAnimationFrame(() => {
      show(Number(range.value));
      moveCursor(Number(range.value));
    });
  };
  // A key held down changes the value many times a second; the server hears of the last one.
  range.onchange = () => {
    window.clearTimeout(own.timer);
    own.timer = window.setTimeout(commit, 200);
  };
  return () => {
    window.cancelAnimationFrame(own.frame);
    window.clearTimeout(own.timer);
  };
}
