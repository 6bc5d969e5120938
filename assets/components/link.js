// Keeps the address in step with the page, without adding to the history: Streamlit's own writes would.
// Streamlit's embed keys stay as they are; the server never sees them.
// data: { query, turn, to } – where turn has grown, `to` comes into view: "top", or the class of an element.
function bring(to) {
  if (to === "top") document.querySelector('[data-testid="stMain"]')?.scrollTo({ top: 0 });
  else document.querySelector(`.${CSS.escape(to)}`)?.scrollIntoView({ block: "nearest" });
}

export default function ({ data, parentElement }) {
  const before = parentElement.turn ?? data.turn; // what was asked of a page before this one is no matter
  parentElement.turn = data.turn;
  if (data.turn !== before) window.requestAnimationFrame(() => window.setTimeout(() => bring(data.to), 0));
  const query = new URLSearchParams(data.query);
  // An embedded lesson stands alone: style.css takes the menu away, which Streamlit's embed mode keeps.
  document.documentElement.toggleAttribute("data-embedded", new URLSearchParams(window.location.search).get("embed") === "true");
  for (const [key, value] of new URLSearchParams(window.location.search)) {
    if (key === "embed" || key === "embed_options") query.append(key, value);
  }
  const search = "?" + query;
  if (window.location.search !== search) {
    window.history.replaceState(window.history.state, "", window.location.pathname + search + window.location.hash);
  }
}
