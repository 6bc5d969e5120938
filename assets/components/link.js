// Keeps the address in step with the page, without adding to the history: Streamlit's own writes would.
// Streamlit's embed keys stay as they are; the server never sees them.
export default function ({ data }) {
  const query = new URLSearchParams(data.query);
  for (const [key, value] of new URLSearchParams(window.location.search)) {
    if (key === "embed" || key === "embed_options") query.append(key, value);
  }
  const search = "?" + query;
  if (window.location.search !== search) {
    window.history.replaceState(window.history.state, "", window.location.pathname + search + window.location.hash);
  }
}
