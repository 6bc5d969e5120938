// Copies the link and saves the stage as a PNG; both are made in the browser, nothing is sent anywhere.
// data: { query, file, plot } – plot: class of the element that holds the figure.
export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".take");
  const link = root.querySelector("input");
  const said = root.querySelector(".said");
  const here = window.location.origin + window.location.pathname;
  link.value = here + "?" + data.query;
  // The time cursor moves on without this component; the address knows.
  const refresh = () => {
    const query = new URLSearchParams(window.location.search);
    query.delete("embed");
    query.delete("embed_options");
    if (query.has("v")) link.value = here + "?" + query;
  };
  root.onpointerenter = refresh;
  link.onfocus = refresh;

  root.querySelector(".copy").onclick = async () => {
    refresh();
    try {
      await navigator.clipboard.writeText(link.value);
      said.textContent = "Copied.";
    } catch { // no permission, or not a secure address
      link.focus();
      link.select();
      said.textContent = "The browser does not let the page copy. The link is selected: copy it with Ctrl+C.";
    }
  };
  root.querySelector(".png").onclick = async () => {
    const plot = document.querySelector(`.${CSS.escape(data.plot)} .js-plotly-plot`);
    try {
      const size = { width: plot.clientWidth, height: plot.clientHeight, scale: 2 };
      await window.Plotly.downloadImage(plot, { format: "png", filename: data.file, ...size });
      said.textContent = `${data.file}.png saved.`;
    } catch {
      said.textContent = "Not possible here. Move the pointer over the figure and use the camera in its corner.";
    }
  };
}
