// Copies the link, saves the stage as a PNG (made in the browser, nothing is sent anywhere), and saves files that the server makes
// when their button is pressed: they come as data, since the files of Streamlit's own download buttons are gone once a part of
// the page is redrawn alone.
// data: { query, file, plot, files, made } – plot: class of the element that holds the figure; files: labels of the buttons;
// made: null or the file that was asked for, { turn, name, kind, content }. State: `want`, { turn, label }.
function save({ name, kind, content }) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export default function ({ data, parentElement, setStateValue }) {
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
  const png = root.querySelector(".png");
  const buttons = data.files.map((label) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.onclick = () => {
      root.asked = Date.now();
      said.textContent = "Making the file …";
      setStateValue("want", { turn: root.asked, label });
    };
    return button;
  });
  const there = [...png.parentElement.children].filter((child) => child !== png);
  // The same buttons stay, or the one just pressed would lose the focus.
  if (there.map((button) => button.textContent).join("\n") === data.files.join("\n")) {
    there.forEach((button, i) => { button.onclick = buttons[i].onclick; });
  } else png.parentElement.replaceChildren(...buttons, png);
  if (data.made && data.made.turn === root.asked) {
    root.asked = null;
    save(data.made);
    said.textContent = `${data.made.name} saved.`;
  }
  png.onclick = async () => {
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
