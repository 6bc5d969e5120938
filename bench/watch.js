// When does what is drawn on the page change? Injected into both pages before any script of theirs.
//
// targets: name -> CSS selector of a Plotly picture, which shows the outlines drawn in it, or of a box, which shows its text.
// A change counts when the DOM holds it; the time kept is that of the last one, so that a picture drawn in two goes counts
// as drawn when it is complete.
(() => {
  const targets = {}, shown = {}, times = {};
  let zero = 0;

  const look = (selector) => {
    const box = document.querySelector(selector);
    if (!box?.matches(".js-plotly-plot")) return box?.textContent ?? "";
    const paths = box.querySelectorAll(".cartesianlayer path, .shapelayer path");
    return [...paths].map((path) => `${path.getAttribute("d")} ${path.getAttribute("transform")}`).join();
  };

  new MutationObserver((records) => {
    const now = performance.now();
    for (const name in targets) {
      const box = document.querySelector(targets[name]);
      if (!box || !records.some((record) => box.contains(record.target) || record.target.contains(box))) continue;
      const seen = look(targets[name]);
      if (seen && seen !== shown[name]) {
        shown[name] = seen;
        times[name] = now - zero;
      }
    }
  }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["d", "transform"] });

  // The clock starts at the next key press; for the first load it starts with the navigation.
  const start = (wanted) => {
    for (const name in times) delete times[name];
    Object.assign(targets, wanted);
    for (const name in targets) shown[name] = look(targets[name]);
  };
  document.addEventListener("keydown", () => { zero = performance.now(); }, true);
  window.benchWatch = { start, times: () => ({ ...times }), targets };
})();
